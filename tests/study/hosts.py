"""Helpers for tests of runs: studies of fake benches, unconnected fleets, and changes during a load."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest

from benchlib.plan.fleet import Fleet, FleetHost
from benchlib.plan.model import Plan, Study
from benchlib.study.bench import Bench, open_bench
from benchlib.study.environment import Environment
from benchlib.study.fleet import Hosts
from benchlib.study.loop import run_study
from benchlib.study.store import StudyFolder


def ids(folder: StudyFolder) -> list[str]:
    return [trial.id for trial in folder.read().trials]


def hosts_of_blocks(folder: StudyFolder) -> dict[int, str | None]:
    """Return each block's one host."""
    pairs = {(m.trial.block, m.ran_on) for m in folder.kept().values()}
    assert len(dict(pairs)) == len(pairs), "a block is compared inside its host"
    return dict(sorted(pairs))


def spoilt(folder: StudyFolder) -> list[str]:
    return sorted(path.name for path in folder.path.glob("spoilt/*"))


def ending(reason: tuple[type[Exception], str] | None) -> AbstractContextManager[Any]:
    """Return a context that expects an error whose one line begins so, or none."""
    return pytest.raises(reason[0], match=rf"\A{reason[1]}.*\Z") if reason else nullcontext()


def anywhere(address: str = "tcp://127.0.0.1:1", **changes: Any) -> Hosts:
    return Hosts(Fleet(**{"scheduler": address, "insecure": True, **changes}))


def fleet_of(**hosts: dict[str, Any]) -> Hosts:
    """Return the hosts of a fleet without connection."""
    return anywhere(hosts={name: FleetHost(**host) for name, host in hosts.items()})


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[Environment], object]) -> None:
    """Call ``act`` with the environment of the first load, while it runs."""
    drive, left = Bench._drive, [act]

    def meddled(bench: Bench, environment: Environment, *rest: Any) -> Any:
        *others, watch, during = rest

        def watched() -> None:
            if left:
                left.pop()(environment)
            watch()

        return drive(bench, environment, *others, watched, during)

    monkeypatch.setattr(Bench, "_drive", meddled)


def run_for_real(name: str, plan: Plan, blocks: int) -> StudyFolder:
    """Return the folder of a study that has run on real servers."""
    folder, study = StudyFolder(name), Study(name=name, title="Small", plan=plan, trials=plan.design(blocks))
    folder.write(study)
    run_study(folder, partial(open_bench, study))
    return folder
