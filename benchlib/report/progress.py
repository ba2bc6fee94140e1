"""How far something is, in one line of a notebook that is updated, or told to whoever executes the notebook."""

from collections.abc import Callable

from IPython.display import display

HEARERS: list[Callable[[str], None]] = []
"""Who is told instead, the last of them: nobody looks at a notebook that is executed for its page."""


def progress_line(text: str = "starting") -> Callable[[object], None]:
    """A line of its own, which each report replaces."""
    if HEARERS:
        HEARERS[-1](text)
        return lambda report: HEARERS[-1](str(report))
    handle = display({"text/plain": text}, raw=True, display_id=True)  # type: ignore[no-untyped-call]
    return lambda report: handle.update({"text/plain": str(report)}, raw=True)
