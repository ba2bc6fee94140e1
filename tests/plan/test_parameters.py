"""A parameters cell is its own schema: what it declares, and what it refuses."""

from pathlib import Path

import pytest

from benchlib.errors import InputError
from benchlib.plan.parameters import (
    Parameter,
    checked,
    declared,
    from_history,
    from_yaml,
    refuse_unknown,
)

CELL = """factor: str = "configuration"  # the notebook's own name
blocks: int = 5  # how often # every level runs
levels: dict = {  # what each level changes
    "defaults": {},
    "tuned": {"settings": {"work_mem": "8MB"}},  # not this one
}
sizes: list = [
    1,
    2,
]  # told at its end
margin: float = 0.03
run: bool = True
offset: int = -3
plain = 5
later: int
factor_of_two = 2
"""


def refused(action, *args) -> str:
    with pytest.raises(InputError) as caught:
        action(*args)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_yaml_keys_are_words_even_where_values_would_be_switches() -> None:
    text = "on: {replication: {on: [db2]}, settings: {synchronous_commit: on}}"
    level = {"replication": {"on": ["db2"]}, "settings": {"synchronous_commit": True}}
    assert from_yaml(text, "levels") == {"on": level}


@pytest.mark.parametrize("text", ["{a: 1, a: 2}", "hosts:\n  db1: {}\n  db1: {}"])
def test_a_yaml_key_that_is_there_twice_is_refused(text: str) -> None:
    assert "is there twice" in refused(from_yaml, text, "fleet.yaml")


@pytest.mark.parametrize("text", ["2026-02-30", "!!map x", "[" * 3000])
def test_yaml_that_makes_no_value_is_refused(text: str) -> None:
    assert refused(from_yaml, text, "-p clients").startswith("-p clients: not YAML: ")


def test_yaml_that_inherits_may_say_otherwise() -> None:
    assert from_yaml("base: &it {a: 1, b: 2}\nown: {<<: *it, a: 3}", "levels")["own"] == {"a": 3, "b": 2}


def test_a_cell_declares_names_types_defaults_and_help() -> None:
    result = declared(CELL)
    assert list(result) == [
        "factor", "blocks", "levels", "sizes", "margin", "run", "offset"
    ]  # fmt: skip
    assert result["factor"] == Parameter("factor", "str", "configuration", "the notebook's own name")
    assert result["blocks"] == Parameter("blocks", "int", 5, "how often # every level runs")
    assert result["levels"].default == {"defaults": {}, "tuned": {"settings": {"work_mem": "8MB"}}}
    assert result["levels"].help == "what each level changes"
    assert result["sizes"] == Parameter("sizes", "list", [1, 2], "told at its end")
    assert (result["margin"].help, result["offset"].default) == ("", -3)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("a: int =", "is not Python: line 1"),
        ("%matplotlib inline", "is not Python: line 1"),
        ("a: int = 2 * 3", "parameter a: the default must be a plain value"),
        ("a: str = f'{1}'", "parameter a: the default must be a plain value"),
    ],
)
def test_a_cell_that_cannot_be_read_is_refused(source: str, why: str) -> None:
    assert why in refused(declared, source)


def test_an_unknown_name_is_refused_with_the_nearest_one_or_all() -> None:
    parameters = declared(CELL)
    assert refused(checked, parameters, {"block": 3}) == "unknown parameter block: did you mean blocks?"
    message = refused(refuse_unknown, ["zzz"], parameters)
    assert message.startswith("unknown parameter zzz: there are factor, blocks, levels,")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"blocks": 7}, 7), ({"blocks": "7"}, 7), ({"blocks": 7.0}, 7), ({"margin": 1}, 1.0), ({"run": False}, False),
        ({"factor": ""}, ""),
    ],
)  # fmt: skip
def test_a_value_of_its_type_is_taken(given: dict[str, object], wanted: object) -> None:
    (name,) = given
    result = checked(declared(CELL), given)[name]
    assert (result, type(result)) == (wanted, type(wanted))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"blocks": "many"}, "parameter blocks: Input should be a valid integer"),
        ({"blocks": 7.5}, "got 7.5, want int"),
        ({"blocks": None}, "got None, want int"),
        ({"blocks": True}, "parameter blocks: (got True, want int)"),
        ({"factor": [1]}, "parameter factor: Input should be a valid string (got [1], want str)"),
        ({"levels": ["defaults"]}, "want dict"),
        ({"sizes": "x"}, "want list"),
        ({"run": "perhaps"}, "want bool"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(given: dict[str, object], why: str) -> None:
    assert why in refused(checked, declared(CELL), given)


ESCAPE = "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'Popen'][0]('touch pwned', shell=True)"


@pytest.mark.parametrize("kind", ["tuple", "int | None", "__import__('os')", ESCAPE, f"list[{ESCAPE}]"])
def test_a_type_that_no_parameter_has_is_refused_and_nothing_of_it_is_executed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = refused(Parameter("a", kind, 1).check, 1)
    assert message.startswith(f"parameter a: '{kind}' is not a type of parameters; there are int, float")
    assert list(tmp_path.iterdir()) == []


# --- in a running notebook -----------------------------------------------------------

PARAMETERS = 'factor: str = "x"\nblocks: int = 5\n'


def test_the_latest_parameters_cell_counts() -> None:
    cells = [PARAMETERS, "# Parameters\nblokcs = 3\n", PARAMETERS + "seed: int = 1\n"]
    result = from_history(cells, {"factor": "x", "blocks": 7, "seed": 3})
    assert result == {"factor": "x", "blocks": 7, "seed": 3}


def test_papermill_s_cell_may_set_what_is_declared_and_nothing_else() -> None:
    injected = '# Parameters\nblocks = 3\nstudy_nmae = "x"\n'
    assert (
        from_history([PARAMETERS, "# Parameters\nblocks = 3\n"], {"factor": "x", "blocks": 3})["blocks"] == 3
    )
    assert "unknown parameter study_nmae" in refused(
        from_history, [PARAMETERS, injected], {"factor": "x", "blocks": 3}
    )


def test_cells_that_are_not_python_do_no_harm() -> None:
    cells = ["%load_ext x", "!ls", PARAMETERS, "if", "# Parameters\n%magic"]
    assert from_history(cells, {"factor": "x", "blocks": 5})["blocks"] == 5


def test_parameters_that_have_not_run_are_asked_for() -> None:
    assert refused(from_history, ["", "x: int = 1"], {}).startswith("run the parameters cell first")
    assert (
        refused(from_history, [PARAMETERS], {"factor": "x"})
        == "run the parameters cell again: blocks has no value"
    )


def test_who_gives_levels_means_none_of_the_notebook_s() -> None:
    cell = """
factor: str = "f"
profiles: dict = {"quick": {"clients": 3, "only": ["a"], "levels": {"a": {}}}}
grid: dict = {"n": {"a": {}, "b": {}}}
levels: dict = {}
against: dict = {"b": "a"}
baseline: str = "a"
answers: dict = {"b": "the other"}
lead: str = "gains"
panel: str = "costs"
"""
    own = {"levels": {"x": {}, "y": {}}}
    freed = {
        "profiles": {"quick": {"clients": 3}},
        "grid": {},
        "against": {},
        "baseline": "",
        "answers": {},
        "lead": "",
        "panel": "costs",
    }
    assert checked(declared(cell), own) == {"factor": "f", **own, **freed}
    assert checked(declared(cell), {**own, "baseline": "y"})["baseline"] == "y"
    assert checked(declared(cell), {"factor": "g"})["against"] == {"b": "a"}
    # a level is no longer compared with what the words for it say
    compared = checked(declared(cell), {"baseline": "b"})
    assert (compared["answers"], compared["lead"], compared["against"]) == ({}, "", {"b": "a"})
    run = [cell, "# Parameters\nlevels = {'x': {}, 'y': {}}\n"]
    namespace: dict[str, object] = {}
    exec("\n".join(run), namespace)
    assert from_history(run, namespace) == {"factor": "f", **own, **freed}
    assert from_history([cell], {**namespace, "levels": {}})["baseline"] == "a"
