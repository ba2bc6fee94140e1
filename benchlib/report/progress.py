"""How far something is, in one line of a notebook that is updated, or told to whoever executes the notebook."""

from collections.abc import Callable

from IPython.display import display

from benchlib.study.experiment import SO_FAR

HEARERS: list[Callable[[str], None]] = []
"""Who is told instead, the last of them: nobody looks at a notebook that is executed for its page."""


def progress_line(text: str = "starting") -> Callable[[object], None]:
    """Show a line that each report replaces; the effects so far stay below it."""
    if HEARERS:
        HEARERS[-1](text)
        return lambda report: HEARERS[-1](str(report))
    handle = display({"text/plain": text}, raw=True, display_id=True)  # type: ignore[no-untyped-call]
    lines = dict[bool, str]()

    def show(report: object) -> None:
        lines[str(report).startswith(SO_FAR)] = str(report)
        handle.update({"text/plain": "\n".join(lines[key] for key in sorted(lines))}, raw=True)

    return show
