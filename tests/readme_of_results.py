"""What the README shows of the recorded studies: a table of effects and one figure. `make readme` writes them."""

import re
import sys
from pathlib import Path

from benchlib.report import plot
from benchlib.report.display import figure_output
from benchlib.report.model import PageData
from benchlib.report.site import judged
from benchlib.report.style import LIGHT
from benchlib.stats.effects import compare
from benchlib.study.experiment import Experiment, shown
from benchlib.study.frames import OpenStudy
from benchlib.study.store import StudyFolder

ROOT = Path(__file__).parent.parent
RECORDED = "-recorded"
SHOWN = "configuration-recorded"
FIGURE = ROOT / "data" / SHOWN / "forest.svg"
DAGGER = "†"
_PART = re.compile(r"(<!-- effects -->\n).*?(<!-- /effects -->\n)", re.DOTALL)


def recorded() -> list[PageData]:
    """What is said of the studies that are kept with the project, whatever else lies in data/."""
    return [judged(path.name) for path in sorted((ROOT / "data").glob(f"*{RECORDED}"))]


def table(pages: list[PageData]) -> str:
    """A row per answer of each study."""
    lines = ["| factor | what was compared | change | 95 % interval | verdict |", "|---|---|---|---|---|"]
    for page in pages:
        costs = StudyFolder(page.name).read().crash_costs
        for answer in page.answers:
            words = f"{answer.words} against {answer.reference}" if answer.reference else answer.words
            cost = costs.get(answer.level, ())
            dagger = DAGGER if cost and cost != costs.get(answer.against, ()) else ""
            change, interval = answer.change
            unit = change.rpartition("\u00a0")[2]
            figures = [f"{change} {page.metric_title}", f"{interval}\u00a0{unit}"] if change else ["–", "–"]
            lines.append(
                "| " + " | ".join([page.title, words + dagger, *figures, str(answer.verdict)]) + " |"
            )
    return "\n".join(lines) + "\n"


def figure(experiment: Experiment) -> str:
    """The changes of one study as a file that stands alone."""
    study = OpenStudy(experiment)
    drawn = figure_output(plot.effects(compare(study.trials, **study.comparison)))["data"]["image/svg+xml"]
    ground = f'<rect width="100%" height="100%" fill="{LIGHT["paper"]}"/>'
    drawn = re.sub(r"@media \(prefers-color-scheme:dark\)\{:root\{[^}]*\}\}", "", drawn)  # on white paper
    return re.sub(r"(<svg[^>]*>)", rf"\1{ground}", drawn, count=1)


def main() -> None:
    """Write both into the project."""
    readme = ROOT / "README.md"
    text = readme.read_text()
    readme.write_text(_PART.sub(lambda found: found[1] + table(recorded()) + found[2], text))
    FIGURE.write_text(figure(shown(StudyFolder(SHOWN))))


if __name__ == "__main__":
    sys.exit(main())
