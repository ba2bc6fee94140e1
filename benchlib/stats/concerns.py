"""What a reader must know beside a number. Concerns are data and travel with the verdict."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Concern:
    """One warning: a stable ``code``, a sentence, and whether it is grave.

    A grave concern makes the verdict ``invalid``: that of its ``level``, or every verdict where
    ``level`` is None or names the baseline or a control.
    """

    code: str
    message: str
    grave: bool = False
    level: str | None = None
