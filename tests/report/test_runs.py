"""Pages from what is kept: several at a time with the same bytes, only what has changed, overviews, a folder of one's own."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import nbformat
import nbformat.v4 as v4
import psutil
import pytest
from clusters import begun, eventually
from fakes import Outcome

from benchlib.report import runs
from benchlib.study.store import project_root

PARAMETERS = 'factor: str = "{name}"  # its name\nquestion: str = "How?"  # one sentence\nrun: bool = True  # nothing runs'


@pytest.fixture
def notebook(tmp_path: Path) -> Callable[..., Path]:
    """Writes an overview of that source into a project of its own."""
    (tmp_path / "notebooks").mkdir()

    def make(name: str, source: str) -> Path:
        parameters = v4.new_code_cell(
            PARAMETERS.format(name=name), metadata={"tags": ["parameters"]}, id="parameters"
        )
        cells = [
            v4.new_markdown_cell("# Title\n\nProse.", id="title"),
            parameters,
            v4.new_code_cell(source, id="own"),
        ]
        path = tmp_path / "notebooks" / f"{name}.ipynb"
        nbformat.write(v4.new_notebook(cells=cells, metadata={"language_info": {"name": "python"}}), path)
        return path

    return make


@pytest.fixture
def call(
    tmp_path: Path,
    data_root: Path,
    command_line: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., list[str]]:
    """Runs the command line in that project, making some pages at a time; the lines it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "card", lambda entry: b"a picture")  # has tests of its own

    def run(*words: str, at_a_time: int = 1, status: int = 0) -> list[str]:
        monkeypatch.setattr(runs, "AT_A_TIME", at_a_time)
        done = command_line(*words)
        assert done.status == status, done.err
        return (done.err if status else done.out).splitlines()

    return run


EVIL = "open('pwned', 'w').write('by a notebook')"


def test_a_study_s_notebook_is_a_bare_name_of_this_installation_or_none(notebook, call, keep, tmp_path):
    cells = [v4.new_code_cell(EVIL, id="own"), v4.new_code_cell("print('all have this', study)", id="all")]
    cells[1].metadata["tags"] = ["shared"]
    template = nbformat.read(notebook("template", ""), as_version=4)
    template.cells[1].source += '\nstudy: str = ""  # its name\nlevels: dict = {}  # none'
    template.cells[2:] = cells
    nbformat.write(template, tmp_path / "notebooks" / "template.ipynb")
    elsewhere = notebook("evil", EVIL).rename(tmp_path / "evil.ipynb")
    (tmp_path / "notebooks" / "link.ipynb").symlink_to(elsewhere)
    folder = keep("first", notebook="template", blocks=2)
    own = (tmp_path / "notebooks" / "template.ipynb").resolve()
    assert runs._showing("template") == (own, True)
    for name in ("../evil", "../evil.ipynb", str(elsewhere), "link", "x" * 5000, None, "a\0b", "./template"):
        folder.write(folder.read().model_copy(update={"notebook": name}))
        assert runs._showing(name) == (own, False)
    assert {line.partition(":")[0] for line in call("report")} == {"page", "index"}
    page = (tmp_path / "reports" / "first.html").read_text()
    assert "all have this first" in page
    assert "none of this installation&#39;s" in page
    assert not (tmp_path / "pwned").exists()


def test_notebooks_in_a_folder_of_somebody_else_are_passed_over(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert project_root() == tmp_path
    (tmp_path / "notebooks").chmod(0o777)
    assert project_root() != tmp_path, "anybody may write to it"
    (tmp_path / "notebooks").chmod(0o755)
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    os.chown(tmp_path / "notebooks", 4711, 4711)
    assert project_root() != tmp_path


def tcp_sockets(process: psutil.Process) -> dict[str, str]:
    """The TCP sockets of a process and of all below it, as the kernel lists them, by their numbers."""
    own = set()
    for each in [process, *process.children(recursive=True)]:
        for file in Path(f"/proc/{each.pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                own.add(str(file.readlink()))
    tables = [Path(f"/proc/{process.pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    lines = {line.split()[9]: line for table in tables for line in table.splitlines()[1:]}
    return {number: line for number, line in lines.items() if f"socket:[{number}]" in own}


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="no /proc/PID/net here")
def test_no_tcp_socket_is_open_while_a_page_is_made(notebook, call, tmp_path):
    cell = "import os, pathlib, time\npathlib.Path('begun').write_text(str(os.getpid()))\n"
    notebook("overview", cell + "while not pathlib.Path('go').exists():\n    time.sleep(0.01)")
    before = tcp_sockets(psutil.Process())
    running = begun(call, "run", "overview")
    assert eventually(lambda: not running.is_alive() or (tmp_path / "begun").exists())
    sockets = tcp_sockets(psutil.Process(running.pid))
    (tmp_path / "go").touch()
    running.join()
    opened = [line for number, line in sockets.items() if number not in before]
    assert (running.exitcode, opened) == (0, [])


@pytest.fixture
def template(notebook) -> Path:
    """A template that shows the study's own name."""
    path = notebook("template", "")
    made = nbformat.read(path, as_version=4)
    made.cells[1].source += '\nstudy: str = ""  # its name\nlevels: dict = {}  # none'
    made.cells[2:] = [v4.new_code_cell("print('page of', study)", metadata={"tags": ["shared"]}, id="all")]
    nbformat.write(made, path)
    return path


def names(lines: list[str]) -> list[str]:
    """What the lines say, with the names of files alone."""
    return [f"{kind}: {Path(rest).name}" for kind, _, rest in (line.partition(": ") for line in lines)]


def test_only_what_has_changed_is_made_again(template, call, keep, tmp_path):
    keep("one", notebook=None)
    keep("two", notebook=None)
    assert names(call("report")) == ["page: one.html", "page: two.html", "index: index.html"]
    first = {path.name: path.read_bytes() for path in (tmp_path / "reports").iterdir()}
    as_they_were = ["page: one.html (as it was)", "page: two.html (as it was)", "index: index.html"]
    assert names(call("report")) == as_they_were
    assert {path.name: path.read_bytes() for path in (tmp_path / "reports").iterdir()} == first
    assert names(call("report", "two")) == ["page: two.html", "index: index.html"], "it was named"
    (tmp_path / "reports" / "one.html").unlink()
    keep("two", notebook=None, blocks=4)
    keep("pilot", notebook=None, levels={})
    *made, left_out, index = call("report")
    assert names([*made, index]) == ["page: one.html", "page: two.html", "index: index.html"]
    assert left_out.startswith("left out: pilot: it measures the baseline alone")
    template.write_text(template.read_text().replace("page of", "the page of"))
    assert names(call("report"))[:2] == ["page: one.html", "page: two.html"]
    assert "the page of one" in (tmp_path / "reports" / "one.html").read_text()


def test_a_site_of_the_studies_that_are_named(template, notebook, call, keep, tmp_path):
    notebook("overview", "")
    template_of_all = nbformat.read(tmp_path / "notebooks" / "overview.ipynb", as_version=4)
    template_of_all.cells[1].source += '\nstudies: str = ""  # names'
    template_of_all.cells[2].source = "print('of', studies or 'all')"
    nbformat.write(template_of_all, tmp_path / "notebooks" / "overview.ipynb")
    for name in ("one", "two", "three"):
        keep(name, notebook=None)
    lines = call("report", "--out", str(tmp_path / "site" / "new"), "one", "three")
    assert names(lines) == ["page: one.html", "page: three.html", "page: overview.html", "index: index.html"]
    site = tmp_path / "site" / "new"
    assert "of one,three" in (site / "overview.html").read_text()
    assert (site / "methodology.html").exists()
    assert not (site / "two.html").exists()
    assert "two.html" not in (site / "index.html").read_text()
    assert not (tmp_path / "reports").exists()
    (line,) = call("report", "--out", str(tmp_path / "notebooks" / "overview.ipynb" / "site"), status=2)
    assert line.startswith("benchlib: cannot write pages into ")


@pytest.mark.long
def test_pages_are_the_same_however_many_are_made_at_a_time(notebook, call, keep, tmp_path):
    keep("alone", notebook=None)
    notebook("slow", "import time; time.sleep(0.5); print('slow', run)")
    notebook("broken", "1 / 0")
    notebook("fast", "import os; print('fast', run, os.path.isdir('notebooks'))")
    made = []
    for at_a_time in (1, 3):
        lines = call("report", at_a_time=at_a_time)
        assert lines[0].startswith("left out: alone: no notebook 'template'")
        assert lines[1].startswith("left out: the notebook failed: ZeroDivisionError")
        assert [Path(line).name for line in lines[2:]] == ["fast.html", "slow.html", "index.html"]
        (tmp_path / "reports" / "broken.ipynb").unlink()  # it holds a traceback with the library's own paths
        made.append({path.name: path.read_bytes() for path in (tmp_path / "reports").iterdir()})
        shutil.rmtree(tmp_path / "reports")
    assert made[0] == made[1]
    assert b"fast False True" in made[0]["fast.html"]
    assert b"slow False" in made[0]["slow.html"]


@pytest.mark.long
def test_an_overview_is_run_as_a_study_is(notebook, call, tmp_path):
    notebook("overview", "print('shown', run, question)")
    page, index = call("run", "overview", "-p", "question", "Why?")
    assert page == f"page: {tmp_path / 'reports' / 'overview.html'}"
    assert index == f"index: {tmp_path / 'reports' / 'index.html'}"
    assert "shown False Why?" in (tmp_path / "reports" / "overview.html").read_text()


def orphan(told: Connection) -> None:
    """Start helpers, tell who they are, and die."""
    pool = ProcessPoolExecutor(2, initializer=runs.help_parent)
    for _ in range(2):
        pool.submit(time.sleep, 600)
    while len(pool._processes) < 2:
        time.sleep(0.01)
    told.send([*pool._processes])
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_helps_with_pages_ends_with_who_started_it() -> None:
    told, telling = Pipe(duplex=False)
    dying = begun(orphan, telling, has_helpers=True)
    helpers = told.recv()
    dying.join()
    assert dying.exitcode == -signal.SIGKILL
    assert len(helpers) == 2
    assert eventually(lambda: not any(psutil.pid_exists(pid) for pid in helpers))
