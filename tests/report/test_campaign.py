"""A campaign runs many studies in turn: checked before, the most valuable first, and a failure stops no other."""

import re
import shlex
from pathlib import Path

import pytest
from fakes import FakeBench
from pages import PARAMETERS

from benchlib.errors import HostBusyError, InputError, Interrupted, StudyError
from benchlib.report import campaign, runs
from benchlib.report.campaign import run_campaign
from benchlib.study.loop import keep_study, run_study
from benchlib.study.runs import Runner, plan_study
from benchlib.study.store import StudyFolder

THREE = "- {notebook: template, name: a}\n- {notebook: template, name: b, priority: 2}\n- {notebook: template, name: c}\n"


class Campaign:
    """A campaign whose notebooks run fake benches; ``failing`` has the errors of a study's next runs."""

    def __init__(self, folder: Path) -> None:
        self.file, self.folder = folder / "campaign.yaml", folder
        self.ran: list[str] = []
        self.heard: list[str] = []
        self.failing: dict[str, list[BaseException]] = {}
        self.bench: dict[str, dict[int, str]] = {}

    def run_notebook(self, path, given, listen):
        name = given["study"]
        self.ran.append(name)
        listen(f"{name}: starting")
        if self.failing.get(name):
            raise self.failing[name].pop(0)
        study = plan_study(runs.values_of(path, given)[1])
        keep_study(StudyFolder(name), study)
        run_study(StudyFolder(name), FakeBench(study.plan, self.folder, **self.bench).open, listen)
        (self.folder / "reports" / f"{name}.html").write_text("page")
        return [f"{name} is faster.", f"page: {name}", "index: index"]

    def run(self, text: str) -> list[str]:
        self.file.write_text(text)
        self.ran.clear()
        return [*run_campaign(self.file, lambda file: {"clients": len(file.name)}, self.heard.append)]

    def rows(self) -> list[str]:
        """The cells of the page of progress, without the last line of a study."""
        page = (self.folder / "reports/campaign.html").read_text()
        rows = re.findall(r"<tr><th scope=\"row\">(.*?)</tr>", page)
        cells = [re.sub("<.*?>", "|", row).split("|") for row in rows]
        return [" ".join(filter(None, row[:-2])) for row in cells]


@pytest.fixture
def made(notebook_of, data_root, tmp_path, monkeypatch):
    notebook_of("pass")
    made = Campaign(tmp_path)
    monkeypatch.setattr(runs, "run_notebook", made.run_notebook)
    monkeypatch.setattr(Runner, "preflight", lambda runner: [])
    monkeypatch.setattr(campaign, "disk_mib", lambda plan: (100, 0))
    monkeypatch.setattr(campaign, "_BUSY_S", 0)
    return made


def test_studies_run_by_priority_after_an_estimate_and_run_once(made):
    lines = made.run(THREE)
    assert made.ran == ["b", "a", "c"]
    assert lines[0].startswith("3 studies, 27 missing trials, about 10 min; at most 100 MiB at a time of ")
    assert [line for line in lines if "faster" in line] == ["b is faster.", "a is faster.", "c is faster."]
    assert lines[-1] == "done: 3 studies"
    assert made.rows() == [f"{name} done 9 of 9" for name in "bac"]
    assert made.run(THREE)[0].startswith("3 studies, 0 missing trials")
    assert made.ran == []
    assert made.rows() == [f"{name} done 9 of 9" for name in "bac"]


def test_a_study_that_fails_is_left_out_told_to_the_user_and_tried_again(made):
    no_space, busy, fault = StudyError("no space"), HostBusyError("another run"), KeyError("a fault")
    made.failing = {"b": [no_space], "a": [busy], "c": [fault]}
    command = shlex.quote('echo "$BENCHLIB_OUTCOME $BENCHLIB_STUDY" >>told')
    text = f"notify: {command}\nstudies:\n{THREE}"
    with pytest.raises(StudyError, match=r"2 of 3 studies failed: b, c: see .*campaign\.html") as failed:
        made.run(text)
    assert failed.value.exit_code == 1
    assert made.ran == ["b", "a", "a", "c"], "a busy host is waited for"
    assert (made.folder / "told").read_text() == "failed b\nfailed c\nincomplete b,c\n"
    assert [row.split(" ")[:2] for row in made.rows()] == [["b", "failed"], ["a", "done"], ["c", "failed"]]
    assert made.run(text)[-1] == "done: 3 studies"
    assert made.ran == ["b", "c"]


def test_an_interrupted_campaign_goes_on_where_it_was(made):
    made.failing = {"a": [Interrupted("stopped: 2 of 9 trials are saved")]}
    with pytest.raises(Interrupted, match="2 of 9"):
        made.run(THREE)
    assert [row.split(" ")[1] for row in made.rows()] == ["done", "stopped", "waiting"]
    made.run(THREE)
    assert made.ran == ["a", "c"]


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        ("- {notebook: nope}\n- {notebook: template, parameters: {cleints: 2}}", ["entry 1 .nope.: no notebook 'nope'", "entry 2 .template.: unknown parameter cleints: did you mean clients"]),
        ("- {notebook: template, parameters: {levels: {a: {setings: {}}, b: {}}, question: 'b?'}}", ["entry 1 .template.: level “a”: setings"]),
        (THREE.replace("name: c", "name: a"), ["entry 3 .template.: a second study 'a'"]),
        ("- {notebook: template, parameters: {run: false}}", ["entry 1 .template.: it runs no trials"]),
        ("- {notbook: template}", ["campaign.yaml: studies.0.notebook: Field required"]),
        ("[]", ["studies: "]),
        ("x", ["campaign.yaml: "]),
    ],
    ids=["names", "level", "twice", "shown", "key", "empty", "text"],
)  # fmt: skip
def test_a_wrong_entry_is_named_before_anything_runs(text, reasons, made):
    with pytest.raises(InputError, match=".*".join(reasons)) as refused:
        made.run(text)
    assert refused.value.exit_code == 2
    assert made.ran == []
    assert not (made.folder / "reports").exists()


def test_an_entry_takes_a_file_and_a_saved_study_with_another_plan_is_refused(made):
    made.run("- {notebook: template, name: a, file: four}")
    assert StudyFolder("a").read().plan.load.clients == 4
    with pytest.raises(
        InputError, match=r"1 .template.: study 'a' exists with another plan \(load.clients\)"
    ):
        made.run("- {notebook: template, name: a, file: four, parameters: {clients: 5}}")


def test_a_command_that_fails_is_told_and_stops_nothing(made):
    lines = made.run(f"notify: exit 3\nstudies:\n{THREE}")
    assert lines[-2].startswith("the command of 'notify' failed: ")
    assert lines[-1] == "done: 3 studies"


def test_failed_trials_run_again_if_that_is_asked_for(made, notebook_of):
    notebook_of("pass", parameters=f"{PARAMETERS}retry_failed: bool = False  # again\n")
    made.bench = {"failing": {2: "server went away"}}
    made.run("- {notebook: template, name: a}")
    made.run("- {notebook: template, name: a}")
    assert made.ran == [], "it has its page"
    made.run("- {notebook: template, name: a, parameters: {retry_failed: true}}")
    assert made.ran == ["a"]
