"""A parameters cell is its own schema: what it declares, and what it refuses."""

import pytest

from benchlib.errors import InputError
from benchlib.plan.parameters import Parameter, checked, declared, from_history, from_yaml, refuse_unknown

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
DECLARED = declared(CELL)
PARAMETERS = 'factor: str = "x"\nblocks: int = 5\n'
RUN = {"factor": "x", "blocks": 3}


def test_yaml_keys_are_words_even_where_values_would_be_switches_and_may_be_inherited():
    assert from_yaml("on: {on: [db2], set: {x: on}}", "levels") == {"on": {"on": ["db2"], "set": {"x": True}}}
    assert from_yaml("base: &it {a: 1, b: 2}\nown: {<<: *it, a: 3}", "levels")["own"] == {"a": 3, "b": 2}


def test_a_cell_declares_names_types_defaults_and_help():
    levels = {"defaults": {}, "tuned": {"settings": {"work_mem": "8MB"}}}
    assert list(DECLARED.values()) == [
        Parameter("factor", "str", "configuration", "the notebook's own name"),
        Parameter("blocks", "int", 5, "how often # every level runs"),
        Parameter("levels", "dict", levels, "what each level changes"),
        Parameter("sizes", "list", [1, 2], "told at its end"),
        Parameter("margin", "float", 0.03, ""),
        Parameter("run", "bool", True, ""),
        Parameter("offset", "int", -3, ""),
    ]


def test_a_value_of_its_type_is_taken():
    taken = [("blocks", value, 7) for value in (7, "7", 7.0)] + [("margin", 1, 1.0), ("run", False, False)]
    for name, given, wanted in [*taken, ("factor", "", ""), ("factor", 16, "16")]:
        result = checked(DECLARED, {name: given})[name]
        assert (result, type(result)) == (wanted, type(wanted))


@pytest.mark.parametrize(
    ("action", "argument", "why"),
    [
        *((from_yaml, text, "is there twice") for text in ("{a: 1, a: 2}", "hosts:\n  db1: {}\n  db1: {}")),
        *((from_yaml, text, "here: not YAML: ") for text in ("2026-02-30", "!!map x", "[" * 3000)),
        *((declared, source, "is not Python: line 1") for source in ("a: int =", "%matplotlib inline")),
        *((declared, source, "parameter a: the default must be a plain value")
          for source in ("a: int = 2 * 3", "a: str = f'{1}'")),
        (checked, {"block": 3}, "unknown parameter block: did you mean blocks?"),
        (refuse_unknown, ["zzz"], "unknown parameter zzz: there are factor, blocks, levels,"),
        (checked, {"blocks": "many"}, "parameter blocks: Input should be a valid integer"),
        (checked, {"blocks": 7.5}, "got 7.5, expected int"),
        (checked, {"blocks": True}, "parameter blocks: (got True, expected int)"),
        (checked, {"factor": [1]}, "parameter factor: Input should be a valid string (got [1], expected str)"),
        (checked, {"run": "perhaps"}, "expected bool"),
        # of a running notebook
        (from_history, (["", "x: int = 1"], {}), "run the parameters cell first"),
        (from_history, ([PARAMETERS], {"factor": "x"}), "run the parameters cell again: blocks has no value"),
        (from_history, ([PARAMETERS, "# Parameters\nblocks = 3\nstudy_nmae = 'x'\n"], RUN), "unknown parameter study_nmae"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_or_taken_is_refused_in_one_line_that_names_it(action, argument, why):
    given = {
        from_yaml: (argument, "here"),
        checked: (DECLARED, argument),
        refuse_unknown: (argument, DECLARED),
    }
    given |= {declared: (argument,), from_history: argument}
    with pytest.raises(InputError) as caught:
        action(*given[action])
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


ESCAPE = "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'Popen'][0]('touch pwned', shell=True)"


@pytest.mark.parametrize("kind", ["tuple", "int | None", "__import__('os')", ESCAPE, f"list[{ESCAPE}]"])
def test_a_type_that_no_parameter_has_is_refused_and_nothing_of_it_is_executed(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="is not a type of parameters; there are int, float"):
        Parameter("a", kind, 1).check(1)
    assert list(tmp_path.iterdir()) == []


def test_a_running_notebook_has_the_values_of_its_latest_parameters_cell():
    injected, other = (
        "# Parameters\nblocks = 3\n",
        ["%load_ext x", "!ls", PARAMETERS, "if", "# Parameters\n%magic"],
    )
    assert from_history([PARAMETERS, injected], RUN) == from_history(other, RUN) == RUN
    later = [PARAMETERS, "# Parameters\nblokcs = 3\n", PARAMETERS + "seed: int = 1\n"]
    assert from_history(later, {**RUN, "seed": 3}) == {**RUN, "seed": 3}


def test_who_gives_levels_means_none_of_the_notebook_s():
    cell = """
factor: str = "f"
profiles: dict = {"quick": {"clients": 3, "only": ["a"], "levels": {"a": {}}}}
grid: dict = {"n": {"a": {}, "b": {}}}
levels: dict = {}
against: dict = {"b": "a"}
baseline: str = "a"
answers: dict = {"b": "the other"}
panel: str = "costs"
"""
    own = {"levels": {"x": {}, "y": {}}}
    bare = {"grid": {}, "against": {}, "baseline": "", "answers": {}, "panel": "costs"}
    freed = {"factor": "f", "profiles": {"quick": {"clients": 3}}, **own, **bare}
    assert checked(declared(cell), own) == freed
    assert checked(declared(cell), {**own, "baseline": "y"})["baseline"] == "y"
    assert checked(declared(cell), {"factor": "g"})["against"] == {"b": "a"}
    # a level is no longer compared with what the words for it say
    compared = checked(declared(cell), {"baseline": "b"})
    assert (compared["answers"], compared["against"]) == ({}, {"b": "a"})
    run = [cell, "# Parameters\nlevels = {'x': {}, 'y': {}}\n"]
    namespace: dict[str, object] = {}
    exec("\n".join(run), namespace)
    assert from_history(run, namespace) == freed
    assert from_history([cell], {**namespace, "levels": {}})["baseline"] == "a"
