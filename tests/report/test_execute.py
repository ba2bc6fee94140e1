"""Notebooks executed in this process: what their cells leave, that none sees another's, errors and Ctrl-C."""

import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import matplotlib
import nbformat
import nbformat.v4 as v4
import pytest
from benchlib.report.cells import read_notebook, write_notebook

from benchlib.errors import InputError, Interrupted, PreflightError, StudyError
from benchlib.report.execute import execute

PARAMETERS = 'factor: str = "x"  # its name\nsize: int = 3  # how much\nwords: dict = {}  # any\nrun: bool = False  # nothing runs'
Execute = Callable[..., tuple[nbformat.NotebookNode, dict[str, object]]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return tmp_path


@pytest.fixture
def run(project: Path) -> Execute:
    """Executes a notebook of these cells."""

    def call(*sources: str, given: dict[str, object] | None = None, **more: object) -> object:
        cells = [v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}, id="parameters")]
        cells += [v4.new_code_cell(source, id=f"c{number}") for number, source in enumerate(sources)]
        path = project / "notebooks" / "x.ipynb"
        nbformat.write(v4.new_notebook(cells=cells), path)
        return execute(path, given or {}, project / "failed.ipynb", **more)  # type: ignore[arg-type]

    return call  # type: ignore[return-value]


def outputs(notebook: nbformat.NotebookNode) -> list[dict[str, object]]:
    return notebook["cells"][-1]["outputs"]


def test_a_cell_leaves_what_it_prints_displays_and_ends_with_in_that_order(run: Execute) -> None:
    notebook, names = run(
        "import sys\ndisplay({'text/html': '<b>'}, raw=True)\nprint('one')\nprint('two')\nprint('no', file=sys.stderr)\n6 * 7",
        "6 * 7;",
    )
    assert outputs(notebook) == []
    notebook["cells"].pop()
    kinds = [(o["output_type"], o.get("name") or "".join(o["data"])) for o in outputs(notebook)]
    assert kinds == [("stream", "stdout"), ("stream", "stderr"), ("display_data", "text/html"), ("display_data", "text/plain")]  # fmt: skip
    assert outputs(notebook)[0]["text"] == "one\ntwo\n"
    assert outputs(notebook)[3]["data"]["text/plain"] == "42"
    assert names["size"] == 3
    nbformat.validate(notebook)


def test_progress_is_heard_where_the_caller_prints(run: Execute, capsys: pytest.CaptureFixture[str]) -> None:
    cell = "from benchlib.report.progress import progress_line\ntell = progress_line()\ntell('1 of 2')\nprint('x')\ntell('2 of 2')"
    notebook, _ = run(cell, listen=print)
    assert [o["text"] for o in outputs(notebook)] == ["x\n"]
    assert capsys.readouterr().out.splitlines() == ["starting", "1 of 2", "2 of 2"]


def test_a_display_is_updated_in_its_place(run: Execute) -> None:
    notebook, _ = run("shown = display('1 of 2', display_id=True)\ndisplay('x')\nshown.update('2 of 2')")
    assert [o["data"]["text/plain"] for o in outputs(notebook)] == ["'2 of 2'", "'x'"]


def test_a_picture_that_a_cell_draws_is_shown(run: Execute) -> None:
    for _ in range(2):
        notebook, _ = run("import matplotlib.pyplot as plt\n_ = plt.plot([1, 2])")
        assert "image/png" in outputs(notebook)[0]["data"]


def test_what_is_given_is_set_after_the_parameters_and_refused_where_it_is_none(run: Execute) -> None:
    notebook, names = run("print(size, words)", given={"size": "5", "words": {"a": [None, "'\n"]}})
    assert (names["size"], names["words"]) == (5, {"a": [None, "'\n"]})
    assert [cell["id"] for cell in notebook["cells"]] == ["parameters", "injected-parameters", "c0"]
    assert notebook["cells"][1]["source"].startswith("# Parameters\nsize = 5\n")
    with pytest.raises(InputError, match="unknown parameter sizes: did you mean size"):
        run("", given={"sizes": 5})


def test_one_notebook_sees_nothing_of_another_and_the_process_is_as_it_was(
    run: Execute, project: Path
) -> None:
    spoil = (
        "import matplotlib, warnings, sys, os\nmatplotlib.rcParams['lines.linewidth'] = 7.5\n"
        "warnings.simplefilter('ignore')\nos.chdir('/')\nleft = 1"
    )
    run("")
    before = matplotlib.rcParams["lines.linewidth"], list(warnings.filters), list(sys.path), Path.cwd()
    main, streams = sys.modules["__main__"], (sys.stdout, sys.stderr)
    first, _ = run(spoil)
    assert before == (matplotlib.rcParams["lines.linewidth"], list(warnings.filters), list(sys.path), Path.cwd())  # fmt: skip
    assert (sys.modules["__main__"], (sys.stdout, sys.stderr)) == (main, streams)
    notebook, names = run("import os\nprint('left' in globals(), os.getcwd())")
    assert outputs(notebook)[0]["text"] == f"False {project}\n"
    assert "left" not in names
    assert run(spoil)[0] == first, "the same again is the same"
    assert not (project / "ipython").exists(), "nothing of the user's is touched"


def test_modules_beside_the_notebooks_can_be_imported(run: Execute, project: Path) -> None:
    (project / "beside_the_notebooks.py").write_text("ANSWER = 42")
    assert run("from beside_the_notebooks import ANSWER")[1]["ANSWER"] == 42


def test_an_error_of_ours_is_raised_as_it_is_and_another_is_kept_with_its_traceback(
    run: Execute, project: Path
) -> None:
    with pytest.raises(PreflightError, match=r"^no room$"):
        run("from benchlib.errors import PreflightError\nraise PreflightError('no room')")
    assert not (project / "failed.ipynb").exists()
    for source, message in (("1 / 0", "ZeroDivisionError: division"), ("1 +", "SyntaxError: invalid")):
        with pytest.raises(StudyError, match=f"the notebook failed: {message}"):
            run(source, "print('never')")
        failed = nbformat.read(project / "failed.ipynb", as_version=4)
        assert message.partition(":")[0] in failed.cells[2].outputs[0]["text"]
        assert failed.cells[3].outputs == []


INTERRUPT = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("swallowed", [False, True])
def test_a_ctrl_c_or_a_sigterm_ends_the_notebook_even_where_it_is_swallowed(
    swallowed: bool, number: signal.Signals, run: Execute, project: Path
) -> None:
    before = signal.getsignal(number)
    cell = INTERRUPT.replace("SIGINT", number.name) + "while True: pass"
    if swallowed:
        cell = "try:\n    " + cell.replace("\n", "\n    ") + "\nexcept KeyboardInterrupt:\n    pass"
    with pytest.raises(Interrupted, match="run the same again"):
        run(cell, "open('next', 'w')")
    assert signal.getsignal(number) == before
    assert not (project / "next").exists()
    assert not any((project / "elsewhere").iterdir())


def test_an_interrupted_run_says_what_it_keeps(run: Execute) -> None:
    cell = f"from benchlib.errors import Interrupted\ntry:\n    {INTERRUPT.strip().replace(chr(10), '; ')}\n    while True: pass\n"
    with pytest.raises(Interrupted, match="3 of 9 trials are kept"):
        run(cell + "except KeyboardInterrupt:\n    raise Interrupted('3 of 9 trials are kept') from None")


def test_notebooks_are_read_as_their_files_have_them_and_written_so_that_others_read_them(
    tmp_path: Path,
) -> None:
    cells = [v4.new_markdown_cell("# One\nTwo", id="a"), v4.new_code_cell("x = '\u00e9'\nx", id="b")]
    nbformat.write(v4.new_notebook(cells=cells), tmp_path / "one.ipynb")
    notebook = read_notebook(tmp_path / "one.ipynb")
    assert [cell["source"] for cell in notebook["cells"]] == ["# One\nTwo", "x = '\u00e9'\nx"]
    write_notebook(notebook, tmp_path / "two.ipynb")
    assert nbformat.read(tmp_path / "two.ipynb", as_version=4) == nbformat.read(tmp_path / "one.ipynb", as_version=4)  # fmt: skip
    for text in ("[1]", "{", '{"nbformat": 3}', "\xff"):
        (tmp_path / "none.ipynb").write_text(text, "latin-1")
        with pytest.raises(InputError, match=r"none\.ipynb is not a notebook"):
            read_notebook(tmp_path / "none.ipynb")
