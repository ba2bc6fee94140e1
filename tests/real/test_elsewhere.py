"""A study on an external server: its password is nowhere, and the server is unchanged afterwards."""

import gzip
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from foreign import Foreign

pytestmark = [pytest.mark.pg, pytest.mark.long]

LEVELS = """\
question: What does the way to another server cost?
levels: {here: {}, elsewhere: {target: boss}, elsewhere tuned: {target: boss, settings: {work_mem: 8MB}}}
baseline: here
"""
PARAMETERS = {"study": "t", "duration_s": 1, "clients": 2, "blocks": 2, "controls": 0}


def contents(path: Path) -> str:
    """A file, unpacked."""
    raw = path.read_bytes()
    return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode(errors="replace")


@pytest.mark.parametrize("source", ["PGPASSWORD", "service file", "pgpass"])
def test_a_password_is_in_no_file_output_or_command_line(
    source: str, foreign: Foreign, project: Any, tmp_path: Path
) -> None:
    secret, passes = foreign.password("boss"), tmp_path / "pgpass"
    more = f"password={secret}" if source == "service file" else ""
    (tmp_path / "services").write_text(foreign.service("boss", more=more))
    passes.write_text(f"*:*:*:boss:{secret}\n" if source == "pgpass" else "")
    passes.chmod(0o600)
    (project.folder / "levels.yaml").write_text(LEVELS)
    project.environment |= {"PGSERVICEFILE": str(tmp_path / "services"), "PGPASSFILE": str(passes)}
    project.environment |= {"PGPASSWORD": secret} if source == "PGPASSWORD" else {}
    before, logged = (foreign.databases(), foreign.altered()), foreign.cluster.log_size()
    seen: set[str] = set()
    over = threading.Event()

    def listen() -> None:
        while not over.wait(0.02):
            for process in psutil.process_iter():
                try:
                    seen.update(process.cmdline())
                except psutil.Error:
                    continue

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        words = (word for pair in PARAMETERS.items() for word in ("-p", *pair))
        said = project.call("benchlib", "run", "template", "-f", "levels.yaml", *words)
    finally:
        over.set()
        listener.join()
    assert len(project.kept()) == 6
    assert (project.reports / "t.html").exists()
    files = [contents(path) for path in project.folder.rglob("*") if path.is_file()]
    for text in (*files, *said, *seen, foreign.cluster.log_text(logged)):
        assert secret not in text
    assert any(word.endswith("pgbench") for word in seen), "the load was seen"
    assert (foreign.databases(), foreign.altered()) == before
    assert project.has_nothing_left()
