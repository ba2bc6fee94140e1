"""A folder of outputs becomes trials: names and conditions tell level and block, or a pattern does; nothing is left out silently."""

from pathlib import Path

import numpy as np
import pytest
from fakes import pgbench_output

from benchlib.errors import InputError
from benchlib.load.collected import NOTES, Source, collect
from benchlib.stats.descriptive import unseen_drift


def outputs(names: list[str], **speeds: float) -> list[Source]:
    """Outputs of those names, a second apart, at the speed of the first word of ``speeds`` that a name has."""
    made = []
    for at, name in enumerate(names):
        tps = next((speed for word, speed in speeds.items() if word in name), 500.0)
        stdout, stderr = pgbench_output(tps=tps + 7 * at % 5, clients=16 if "c16" in name else 4)
        made.append(Source(name, stdout + stderr, float(at)))
    return made


@pytest.mark.parametrize(
    ("names", "levels", "blocks"),
    [
        (["pg16/run1.txt", "pg18/run1.txt", "pg16/run2.txt", "pg18/run2.txt"], ["pg16", "pg18"], [1, 2]),
        (["off-1.log", "on-1.log", "off-2.log", "on-2.log"], ["off", "on"], [1, 2]),
        (["trial_01_a.out", "trial_01_b.out", "trial_02_a.out", "trial_02_b.out"], ["a", "b"], [1, 2]),
        (["n4/run1.txt", "n8/run1.txt", "n4/run2.txt", "n8/run2.txt"], ["n4", "n8"], [1, 2]),
        (["r5-large/run1-2.txt", "r5-small/run1-2.txt"], ["r5 large 2", "r5 small 2"], [1]),
        (["run1/run1-a.txt", "run1/run1-b.txt"], ["a", "b"], [1]),
        (["results/x/a.txt", "results/x/a c16.txt"], ["results x a", "results x a c16"], [1]),
    ],
)
def test_names_tell_level_and_block(names: list[str], levels: list[str], blocks: list[int]) -> None:
    rows = collect(outputs(names)).rows
    assert [sorted({row[key] for row in rows}) for key in ("level", "block")] == [levels, blocks]


def test_a_pattern_tells_them_where_names_do_not() -> None:
    names = [f"{day}/pgbench.{version}.txt" for day in ("mon", "tue", "wed") for version in ("v16", "v18")]
    rows = collect(outputs(names), level=r"v(\d+)", block=r"^(\w+)/").rows
    assert [(row["level"], row["block"]) for row in rows[:3]] == [("16", "mon"), ("18", "mon"), ("16", "tue")]


@pytest.mark.parametrize(
    ("level", "names", "words"),
    [
        (None, ["n8/off-1.txt"], "such as --block"),
        (None, ["run1/trial2.txt"], "several numbers"),
        (None, ["run1.txt", "run2.txt"], "one level"),
        (r"v(\d+)", ["a/x/run1.txt"], "matches nothing"),
        (r"^(\w)/", ["a/x/run1.txt", "a/y/run1.txt", "b/x/run1.txt"], "1 twice"),
        (None, [], "no file holds the output"),
    ],
)
def test_unclear_names_are_refused(level: str | None, names: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        collect([*outputs(names), Source("notes.md", "# what I did", 9.0)], level=level)


def test_runs_of_other_clients_are_other_levels_and_many_runs_in_a_file_are_blocks() -> None:
    one, many = (pgbench_output(tps=500, clients=clients) for clients in (1, 16))
    text = "".join(stdout + "\n" for stdout, _ in (one, many, one, many, one, many))
    rows = collect([Source("bench.txt", text, 0.0)]).rows
    wanted = [(f"bench clients={clients}", block) for block in (1, 2, 3) for clients in (1, 16)]
    assert [(row["level"], row["block"]) for row in rows] == wanted


def test_what_holds_no_run_is_named_and_what_cannot_be_read_is_refused() -> None:
    more = [Source("notes.md", "# what I did", 9.0), Source("empty.txt", "", 9.0)]
    assert sorted(collect(outputs(["a-1.txt", "b-1.txt"]) + more).passed_over) == ["empty.txt", "notes.md"]
    torn = Source("b-2.txt", outputs(["b-2.txt"])[0].text.replace("number of clients: 4\n", ""), 9.0)
    with pytest.raises(InputError, match=r"b-2\.txt: .*number of clients"):
        collect([*outputs(["a-1.txt", "b-1.txt"]), torn])


@pytest.mark.parametrize(
    ("order", "apart_s", "percent", "notes"),
    [
        ("aaabbb", 9, [0.5, -0.5, 0, 0.5, -0.5, 0], ["sequential", "drift", "no_control"]),
        ("ababab", 9, [0.5, 0.5, -0.5, -0.5, 0, 0], ["same_order", "drift", "no_control"]),
        ("abbaab", 9, [0] * 6, ["drift", "no_control"]),
        ("aaabbb", 0.1, [0, 1, 2, 2, 1, 0], ["order", "worst_drift", "no_control"]),
        ("aabb", 9, [0] * 4, ["sequential", "drift", "no_control", "few"]),
        ("aab", 9, [0] * 3, ["sequential", "no_drift", "no_control", "few"]),
    ],
)
def test_what_such_data_cannot_tell_is_said(order, apart_s, percent, notes) -> None:
    made = []
    for at, (level, change) in enumerate(zip(order, percent, strict=True)):
        stdout, stderr = pgbench_output(tps=1000 * (1 + change / 100))
        made.append(Source(f"{level}-{order[:at].count(level) + 1}.txt", stdout + stderr, apart_s * at))
    told = collect(made).notes
    codes = {words.partition("{")[0]: code for code, words in NOTES.items()}
    assert [code for note in told for words, code in codes.items() if note.startswith(words)] == notes


def test_a_drift_that_nobody_can_exclude_is_told_in_percent() -> None:
    speeds = [1000 * 0.99**n for n in range(6)]
    trend, drift = unseen_drift([*"aaabbb"], speeds, in_order=True)
    assert (round(trend, 2), round(drift, 2)) == (-1.99, 3.06), "three runs apart, at 1 % a run"
    assert unseen_drift([*"aaabbb"], sorted(speeds), in_order=False)[1] == pytest.approx(drift)
    # by the confidence interval of statsmodels' OLS with a constant of each level
    assert unseen_drift([*"aaabbb"], [1000, 1010, 990] * 2, in_order=True)[1] == pytest.approx(6.4743819)
    assert np.isnan(unseen_drift([*"aab"], speeds[:3], in_order=True)).all()


def test_what_pgbench_tools_leaves_is_in_the_order_of_its_tests() -> None:
    tests = {9: ("main/1", 4), 10: ("main/1", 16), 100: ("main/2", 4), 101: ("main/2", 16)}
    made = [
        Source(f"{folder}/{test}/results.txt", "".join(pgbench_output(tps=500, clients=clients)), 5.0)
        for test, (folder, clients) in reversed(tests.items())
    ]
    found = collect([*made, Source("main/1/9/pgbench.log", "0 1 9 0 1795178920 5\n", 5.0)])
    levels = [f"main {folder[-1]} clients={clients}" for folder, clients in tests.values()]
    assert [(row["level"], row["block"]) for row in found.rows] == [(level, 1) for level in levels]
    assert found.passed_over == ["main/1/9/pgbench.log"]
    assert NOTES["order"] in found.notes, "all files have one time"


def test_from_a_folder_to_a_verdict(command_line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for level, tps in (("old", 500), ("new", 600)):
        runs = [
            pgbench_output(tps=tps + n * tps // 100 % 7, clients=clients)[0]
            for n in range(5)
            for clients in (1, 8)
        ]
        (tmp_path / "runs" / f"{level}.txt").write_text("\n".join(runs))
    done = command_line("collect", "runs")
    assert (done.status, "20 trials; try: benchlib analyze trials.csv --baseline" in done.err) == (0, True)
    pair = "new clients=8=old clients=8"
    done = command_line("analyze", "trials.csv", "--baseline", "old clients=1", "--against", pair)
    faster = [line.split()[:4] for line in done.out.splitlines() if "faster" in line]
    assert ["new", "clients=8", "old", "clients=8"] in faster
    assert command_line("collect", "runs", "--level", "(").status == 2
