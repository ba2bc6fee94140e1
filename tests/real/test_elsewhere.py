"""A study on a server that is not ours, as a user runs it: its password is nowhere, and the server is as it was."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from foreign import Foreign, foreign_server
from test_run import Project, eventually, project

from benchlib.server.cluster import Cluster

__all__ = ["project"]
pytestmark = [pytest.mark.pg, pytest.mark.long]

LEVELS = """\
question: What does the way to another server cost?
levels:
  here: {}
  elsewhere: {target: boss}
  elsewhere tuned: {target: boss, settings: {work_mem: 8MB}}
baseline: here
"""


@pytest.fixture(scope="module")
def foreign(created: Callable[[str], Cluster]) -> Iterator[Foreign]:
    with foreign_server(created("18")) as server:
        yield server


def everything(folder: Path) -> bytes:
    """All files, packed ones unpacked, of a folder."""
    return b"\0".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("source", ["PGPASSWORD", "service file", "pgpass"])
def test_a_planted_password_stands_in_no_artefact(source: str, foreign: Foreign, project: Project) -> None:
    secret = foreign.password("boss")
    outside = project.folder.parent / f"{project.folder.name}-secrets"
    outside.mkdir(mode=0o700)
    more = f"password={secret}" if source == "service file" else ""
    (outside / "services").write_text(foreign.service("boss", more=more))
    (outside / "pgpass").write_text(f"*:*:*:boss:{secret}\n" if source == "pgpass" else "")
    (outside / "pgpass").chmod(0o600)
    (project.folder / "levels.yaml").write_text(LEVELS)
    project.environment |= {"PGSERVICEFILE": str(outside / "services"), "PGPASSFILE": str(outside / "pgpass")}
    if source == "PGPASSWORD":
        project.environment["PGPASSWORD"] = secret
    before = foreign.databases(), foreign.altered(), foreign.cluster.log_size()
    words: set[str] = set()
    over = threading.Event()

    def listen() -> None:
        while not over.wait(0.02):
            for process in psutil.process_iter():
                try:
                    words.update(process.cmdline())
                except psutil.Error:
                    continue

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        said = project.call(
            "benchlib", "run", "template", *("-f", "levels.yaml", "-p", "study", "t"),
            *("-p", "duration_s", "1", "-p", "clients", "2", "-p", "blocks", "2", "-p", "controls", "0"),
        )  # fmt: skip
    finally:
        over.set()
        listener.join()
        for path in outside.iterdir():
            path.unlink()
        outside.rmdir()
    assert said.returncode == 0, said.stderr
    assert len(project.kept()) == 6
    assert (project.folder / "reports" / "t.html").exists()
    for where, text in {
        "files": everything(project.folder).decode(errors="replace"),
        "terminal": said.stdout + said.stderr,
        "argument lists": "\n".join(words),
        "the server's log": foreign.cluster.log_text(before[2]),
    }.items():
        assert secret not in text, where
    assert any(word.endswith("pgbench") for word in words), "the load was seen"
    assert (foreign.databases(), foreign.altered()) == before[:2]
    assert eventually(lambda: project.left() == [])


def test_a_server_that_vanishes_costs_its_trials_only(
    project: Project, created: Callable[[str], Cluster]
) -> None:
    with foreign_server(created("18")) as foreign:
        (project.folder / "services").write_text(
            foreign.service("boss", more=f"password={foreign.password('boss')}")
        )
        project.environment["PGSERVICEFILE"] = str(project.folder / "services")
        (project.folder / "levels.yaml").write_text(LEVELS)
        process = project.start(
            "benchlib", "run", "template", *("-f", "levels.yaml", "-p", "study", "t"),
            *("-p", "duration_s", "2", "-p", "clients", "2", "-p", "blocks", "3", "-p", "controls", "0"),
        )  # fmt: skip
        while len(project.kept()) < 3:
            time.sleep(0.1)
        kept = project.kept()
        foreign.cluster.stop(immediately=True)
        _, err = process.communicate(timeout=200)
    last = err.strip().splitlines()[-1]
    assert process.returncode == 1
    assert last.startswith("benchlib: ")
    assert "boss" in last
    assert kept.items() <= project.kept().items(), "earlier trials are safe"
