"""What the README shows of the recorded studies: a table of effects and one figure. `make readme` writes them."""

import re
import sys
from pathlib import Path

from benchlib.report.answers import answers
from benchlib.report.figures.changes import forest
from benchlib.report.figures.frames import DAGGER
from benchlib.report.figures.style import LIGHT

from benchlib.study.experiment import Experiment, shown
from benchlib.study.store import StudyFolder

ROOT = Path(__file__).parent.parent
RECORDED = "-recorded"
SHOWN = "configuration-recorded"
FIGURE = ROOT / "data" / SHOWN / "forest.svg"
_PART = re.compile(r"(<!-- effects -->\n).*?(<!-- /effects -->\n)", re.DOTALL)


def recorded() -> list[Experiment]:
    """The studies that are kept with the project, whatever else lies in data/."""
    names = sorted(path.name for path in (ROOT / "data").glob(f"*{RECORDED}"))
    return [shown(StudyFolder(name)) for name in names]


def table(experiments: list[Experiment]) -> str:
    """A row per answer of each study."""
    lines = ["| factor | what was compared | change | 95 % interval | verdict |", "|---|---|---|---|---|"]
    for experiment in experiments:
        for answer in answers(experiment):
            words = (
                answer.words if "instead of" in answer.words else f"{answer.words} against {answer.against}"
            )
            change, interval = answer.cells()
            metric, dagger = experiment.analysis.metric.title, DAGGER if answer.gives_up else ""
            figures = [f"{change} {metric}", interval] if change else ["–", "–"]
            cells = [experiment.study.title, words + dagger, *figures, answer.said]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def figure(experiment: Experiment) -> str:
    """The forest plot of one study as a file that stands alone."""
    drawn = forest(experiment.analysis, durability=experiment.durability()).svg
    drawn = re.sub(r"var\(--bl-\w+,(#\w+)\)", r"\1", drawn)  # a file has no page to ask for colours
    ground = f'<rect width="100%" height="100%" fill="{LIGHT["paper"]}"/>'
    return re.sub(r"(<svg[^>]*>)", rf"\1{ground}", drawn, count=1) + "\n"


def main() -> None:
    """Write both into the project."""
    readme = ROOT / "README.md"
    text = readme.read_text()
    readme.write_text(_PART.sub(lambda found: found[1] + table(recorded()) + found[2], text))
    FIGURE.write_text(figure(shown(StudyFolder(SHOWN))))


if __name__ == "__main__":
    sys.exit(main())
