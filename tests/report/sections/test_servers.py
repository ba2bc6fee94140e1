"""Servers side by side: a column for each that differs, and a cost only where a price and transactions are known."""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

import pytest
from benchlib.report.sections.servers import cost_per_million, server_settings
from benchlib.report.view import View
from page_parts import named

from benchlib.errors import InputError
from benchlib.plan.level import Level
from benchlib.study.records import Parameters

STEPS = ("run, alpha", "check, beta", "run, beta")
TPS = {"defaults": 1000.0, "control": 1000.0, "run, alpha": 1000.0, "check, beta": 500.0, "run, beta": 2000.0}


def setting(value: str, boot: str | None, unit: str | None = None, source: str = "configuration file"):
    return {"setting": value, "unit": unit, "boot_val": boot, "source": source}


NEWER = {
    "io_workers": setting("3", "3", source="default"),
    "io_max_concurrency": setting("64", "-1", source="default"),
}
OWN = {"fsync": setting("on", "on", source="default"), "wal_buffers": setting("512", "-1", "8kB", "default")}
ALPHA = (
    OWN
    | NEWER
    | {"shared_buffers": setting("16384", "16384", "8kB"), "max_connections": setting("600", "100")}
)
BETA = OWN | {
    "shared_buffers": setting("1048576", "16384", "8kB"),
    "max_connections": setting("600", "100"),
    "checkpoint_timeout": setting("900", "300", "s"),
    "archive_command": setting("set", None),
}


@pytest.fixture
def view(view_of) -> Callable[..., View]:
    """A kept study of two servers, one of them with two steps, five blocks."""

    def make(settings: Mapping[str, dict] = MappingProxyType({}), noise: float = 0.02, **options) -> View:
        def tps(trial) -> float:
            return TPS[trial.level] * (1 + noise * ((trial.block * 7 + trial.position * 3) % 5 - 2))

        def leaving(trial) -> dict[str, dict]:
            kept = trial.block == 1 and trial.level in settings
            return {Parameters.FILE: settings[trial.level]} if kept else {}

        levels = {name: Level(settings={"work_mem": f"{n}MB"}) for n, name in enumerate(STEPS, 1)}
        return view_of(tps, blocks=5, leaving=leaving, levels=levels, **options)

    return make


def rows(table: object) -> dict[str, list[str]]:
    """A table's cells by the first of each row; its head is under an empty name."""
    cells = {name: list(row.values())[1:] for name, row in named(table).items()}
    return {"": list(next(iter(named(table).values()))), **cells}


OF_LEVELS = {"defaults": ALPHA, "control": ALPHA, "run, alpha": ALPHA, "check, beta": BETA, "run, beta": BETA}


def test_servers_that_differ_have_a_column_each_and_the_differences_come_first(view) -> None:
    table = server_settings(view(OF_LEVELS))
    found = rows(table)
    assert found.pop("") == ["setting", "defaults; run, alpha", "beta", "PostgreSQL's own"]
    assert list(found) == ["archive_command", "checkpoint_timeout", "shared_buffers"]
    assert found["shared_buffers"] == ["128\u00a0MB", "8\u00a0GB", "128\u00a0MB"]
    assert found["checkpoint_timeout"] == ["not there", "900 s", "300 s"]
    assert "The same on all, other than PostgreSQL&#39;s own: max_connections 600." in table.html
    assert found["archive_command"] == ["not set", "set", "not shown"]


def test_a_server_is_called_by_what_no_other_is_called(view) -> None:
    table = server_settings(view({"run, alpha": ALPHA, "run, beta": BETA}))
    assert rows(table)[""][1:3] == ["alpha", "beta"]


def test_the_cost_of_a_million_transactions_with_its_intervals(view) -> None:
    study = view(noise=0.001)
    prices = {"beta": 0.72, "run, alpha": 0.36, "defaults": 0.36}
    found = rows(cost_per_million(study, prices, "EUR"))
    assert found[""][1] == "a million transactions, EUR"
    cost, price, tps = found["run, beta"]
    assert (price, tps) == ("0.72", "2,000")
    mean, low, high = map(float, re.fullmatch(r"(.*) \((.*) to (.*)\)", cost).groups())
    assert low < mean == 0.1 < high < low * 1.01, "of this level alone"
    assert "control" not in found


def test_one_trial_has_a_cost_and_no_interval_and_a_failed_level_has_none(view) -> None:
    study = view(failing={"run, beta": "went away"})
    found = rows(cost_per_million(study, {"beta": 0.72, "defaults": 0.36}))
    assert found["run, beta"][0] == "no transactions"
    assert found["run, alpha"][0] == "no price given"
    single = study.experiment.trials[
        study.experiment.trials["block"].eq(1) | study.experiment.trials["level"].ne("check, beta")
    ]
    study.experiment.__dict__["trials"] = single
    assert "to" not in rows(cost_per_million(study, {"beta": 0.72}))["check, beta"][0]


@pytest.mark.parametrize(
    ("prices", "words"),
    [
        ({"eta": 1}, "no level is called 'eta'"),
        ({"beta": 0}, "'beta' is 0: want a price per hour above 0"),
        ({"beta": float("nan")}, "'beta' is nan"),
        ({"beta": "1"}, "'beta' is '1'"),
        ({"beta": 1, "run": 2}, "level 'run, beta' has two, of 'beta' and of 'run'"),
    ],
)
def test_a_price_that_cannot_be_used_is_refused(view, prices: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        cost_per_million(view(), prices)


def test_a_level_s_own_price_wins(view) -> None:
    for prices in ({"beta": 1, "run, beta": 2}, {"run, beta": 2, "beta": 1}):
        found = rows(cost_per_million(view(), prices))
        assert (found["run, beta"][1], found["check, beta"][1]) == ("2", "1")
