"""The experiment's design: which level runs when. A design is an ordered tuple of trials.

Randomised complete blocks (every level once per block, in random order), with positions
balanced over the blocks. Orders come in groups of as many blocks as there are levels; each
group is a Williams Latin square (E. J. Williams, 1949), its levels and its rows shuffled: over
a group each level visits each position once, and neighbours change as evenly as they can.
The groups are drawn independently of each other, so a longer design starts with the shorter one.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from benchlib.errors import InputError

# R. L. Plackett and J. P. Burman (1946): the generating row for 12 runs, shifted eleven times.
_GENERATOR = (1, 1, -1, 1, 1, 1, -1, -1, -1, 1, -1)
_SCREENED = range(6, 12)
"""How many dimensions a screening takes: of fewer, all combinations are hardly more than its 24."""
SCREENING_RUNS = 24

LOOKS = (3, 5, 7, 9)
"""After how many blocks a study that may stop early is judged."""

_MAX_SEED = 2**31 - 1  # pgbench --random-seed is kept inside a positive 32-bit integer


@dataclass(frozen=True)
class Trial:
    """One level in one block at one position (both counted from 1), with its own seed."""

    block: int
    position: int
    level: str
    seed: int

    @property
    def id(self) -> str:
        """A name for files: unique inside a design by its block and position."""
        slug = re.sub(r"[^A-Za-z0-9._]+", "-", self.level).strip("-._")[:40].rstrip("-._")
        return f"b{self.block:02d}-p{self.position}-{slug or 'level'}"

    @property
    def warm_up_seed(self) -> int:
        """The warm-up's seed: after one that made the load's own choices, the load would find all its rows in memory."""
        return self.seed + 1

    @property
    def beside_seed(self) -> int:
        """The seed of what runs beside the load, for the same reason."""
        return _MAX_SEED - self.seed


def randomised_blocks(levels: Sequence[str], blocks: int, seed: int) -> tuple[Trial, ...]:
    """Return ``blocks * len(levels)`` trials in the order in which they are to run.

    The first blocks of a longer design equal the shorter design of the same seed, and every
    trial has a seed of its own (1 to 2**31 - 1, for ``pgbench --random-seed``). Python's own
    generator is used because its sequences stay the same from version to version.
    """
    trials: list[Trial] = []
    seen: set[int] = set()
    orders: list[list[str]] = []
    for block in range(blocks):
        group, row = divmod(block, len(levels))
        if row == 0:
            orders = _square(levels, Random(f"benchlib/order/{seed}/{group}"), mirrored=group % 2 == 1)
        rng = Random(f"benchlib/seeds/{seed}/{block}")
        for position, level in enumerate(orders[row], start=1):
            while (own := rng.randrange(1, _MAX_SEED)) in seen:
                pass
            seen.add(own)
            trials.append(Trial(block + 1, position, level, own))
    return tuple(trials)


def screening(grid: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the 24 combinations that screen six to eleven dimensions, of two values each; the first has all first values.

    They are Plackett and Burman's (1946) twelve runs and their fold-over (every value turned), which frees
    the effects of single dimensions from those of pairs. Their order is that of ``itertools.product``.

    Raises InputError for another number of dimensions or of values.
    """
    if len(grid) not in _SCREENED or any(len(values) != 2 for values in grid.values()):
        shape = " × ".join(str(len(values)) for values in grid.values())
        raise InputError(f"a screening takes 6 to 11 dimensions of two values each, not {shape or 'none'}")
    twelve = [_GENERATOR[-shift:] + _GENERATOR[:-shift] for shift in range(11)] + [(-1,) * 11]
    signs = {tuple(fold * sign for sign in row[: len(grid)]) for row in twelve for fold in (1, -1)}
    two = list(grid.values())
    return [tuple(ends[sign > 0] for ends, sign in zip(two, row, strict=True)) for row in sorted(signs)]


def _square(names: Sequence[str], rng: Random, *, mirrored: bool) -> list[list[str]]:
    """Return one order per block: a Williams square with shuffled levels and rows.

    For an odd number of levels only a square and its mirror together balance the neighbours,
    hence every other group is mirrored.
    """
    k = len(names)
    first = [(step + 1) // 2 % k if step % 2 else -step // 2 % k for step in range(k)]
    shuffled = rng.sample(names, k)
    rows = [[shuffled[(shift + index) % k] for index in first] for shift in rng.sample(range(k), k)]
    return [row[::-1] for row in rows] if mirrored else rows
