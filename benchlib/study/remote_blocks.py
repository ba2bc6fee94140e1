"""Whole blocks of a study, run at a host of a fleet: the trials are sent to the driver, nothing is kept at the host."""

import contextlib
import os
from collections.abc import Container
from pathlib import Path

from benchlib.plan.fleet import Fleet, elsewhere_of
from benchlib.plan.model import Measurement, Study
from benchlib.study.bench import open_bench as open_own
from benchlib.study.calls import SCHEDULER, Send
from benchlib.study.fleet import Hosts
from benchlib.study.loop import Bench, OpenBench, Tell, run_study
from benchlib.study.store import StudyFolder


class Outbox(StudyFolder):
    """Where the loop leaves its trials at a host: they are sent, nothing is kept there."""

    def __init__(self, study: Study, send: Send) -> None:
        super().__init__(study.name, Path())
        self._study, self._send = study, send

    def exists(self) -> bool:
        """It is here as long as this process is."""
        return True

    def read(self) -> Study:
        """The part of the study that this host runs."""
        return self._study

    def kept(self) -> dict[str, Measurement]:
        """Nothing: it goes to the driver."""
        return {}

    def keep(self, measurement: Measurement, folder: Path) -> None:
        """Send a trial with its raw files."""
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self._send({"measurement": measurement.model_dump_json(), "files": files})


def measure(
    study: Study,
    open_bench: OpenBench | None,
    fleet: Fleet,
    host: str,
    working: Container[str],
    send: Send,
) -> None:
    """Run the trials of a part of a study at this ``host``, whole blocks, by the loop that runs every study.

    Levels that are ``working`` have succeeded there before.

    Raises:
        BenchlibError: as :func:`benchlib.study.loop.run_study`.

    """
    hosts = Hosts(fleet.changed(scheduler=os.environ.get(SCHEDULER), tls=None), host)

    def own_bench(report: Tell) -> contextlib.AbstractContextManager[Bench]:
        return open_own(study.plan, study.name, report, hosts)

    def tell(line: str) -> None:
        send({"line": line.partition(" · ")[2]})

    with hosts.connected() if elsewhere_of(study.plan) else contextlib.nullcontext():
        run_study(Outbox(study, send), open_bench or own_bench, tell, working=working)
