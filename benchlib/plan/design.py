"""The order of trials: randomised complete blocks in groups.

A group is a Williams Latin square (E. J. Williams, 1949) with shuffled levels and rows. A longer design begins
with the shorter one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from benchlib.errors import InputError

# R. L. Plackett and J. P. Burman (1946): the generating row for 12 runs, shifted eleven times.
_GENERATOR = (1, 1, -1, 1, 1, 1, -1, -1, -1, 1, -1)

LOOKS = (3, 5, 7, 9)
"""Numbers of blocks after which a study with ``blocks: auto`` is judged."""

_MAX_SEED = 2**31 - 1  # pgbench --random-seed: a positive 32-bit integer


@dataclass(frozen=True)
class Trial:
    """A level in a block at a position (both from 1)."""

    block: int
    position: int
    level: str
    seed: int

    @property
    def id(self) -> str:
        """Return a file name, unique inside a design."""
        slug = re.sub(r"[^A-Za-z0-9._]+", "-", self.level).strip("-._")[:40].rstrip("-._")
        return f"b{self.block:02d}-p{self.position}-{slug or 'level'}"

    @property
    def warm_up_seed(self) -> int:
        """Return another seed: the warm-up must not cache these rows."""
        return self.seed + 1

    @property
    def beside_seed(self) -> int:
        """Return the background load's seed."""
        return _MAX_SEED - self.seed


def randomised_blocks(levels: Sequence[str], blocks: int, seed: int) -> tuple[Trial, ...]:
    """Return the trials in their order."""
    trials: list[Trial] = []
    seen: set[int] = set()
    orders: list[list[str]] = []
    for block in range(blocks):
        group, row = divmod(block, len(levels))
        if row == 0:
            orders = _square(levels, Random(f"benchlib/order/{seed}/{group}"), mirrored=group % 2 == 1)
        rng = Random(f"benchlib/seeds/{seed}/{block}")
        for position, level in enumerate(orders[row], start=1):
            while (trial_seed := rng.randrange(1, _MAX_SEED)) in seen:
                pass
            seen.add(trial_seed)
            trials.append(Trial(block + 1, position, level, trial_seed))
    return tuple(trials)


def references(levels: Iterable[str], arms: Sequence[str], against: Mapping[str, str]) -> dict[str, str]:
    """Return each compared level's reference, controls first; ``arms`` are the baseline and its controls."""
    only_references = {*against.values()} - {*against}
    compared = [name for name in levels if name not in arms and name not in only_references]
    return dict.fromkeys(arms[1:], arms[0]) | {name: against.get(name, arms[0]) for name in compared}


def screening(grid: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the 24 combinations that screen 6 to 11 two-valued dimensions.

    Source: Plackett and Burman (1946), 12 runs and their fold-over.

    Raises:
        InputError: another number of dimensions or of values.
    """
    # fewer than 6 need no more than 24 combinations anyway
    if len(grid) not in range(6, 12) or any(len(values) != 2 for values in grid.values()):
        shape = " × ".join(str(len(values)) for values in grid.values())
        raise InputError(
            f"parameter screen: needs 6 to 11 dimensions of two values each, not {shape or 'none'}"
        )
    twelve = [_GENERATOR[-shift:] + _GENERATOR[:-shift] for shift in range(11)] + [(-1,) * 11]
    signs = {tuple(fold * sign for sign in row[: len(grid)]) for row in twelve for fold in (1, -1)}
    pairs = list(grid.values())
    return [tuple(pair[sign > 0] for pair, sign in zip(pairs, row, strict=True)) for row in sorted(signs)]


def _square(names: Sequence[str], rng: Random, *, mirrored: bool) -> list[list[str]]:
    """Return one order per block; an odd number of levels also needs the mirror."""
    k = len(names)
    first = [(step + 1) // 2 % k if step % 2 else -step // 2 % k for step in range(k)]
    shuffled = rng.sample(names, k)
    rows = [[shuffled[(shift + index) % k] for index in first] for shift in rng.sample(range(k), k)]
    return [row[::-1] for row in rows] if mirrored else rows
