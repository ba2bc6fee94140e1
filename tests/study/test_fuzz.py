"""A million broken texts and two thousand damaged studies: figures or one of our errors, never another one.

Each test prints its seed. ``BENCHLIB_FUZZ`` scales the numbers (0.1 is a tenth), ``BENCHLIB_FUZZ_SEED`` gives a seed back.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pytest
from fakes import pgbench_output, seal
from kept import ran
from trim import trim

from benchlib.errors import BenchlibError
from benchlib.load.parse import KINDS, parse_text
from benchlib.study.experiment import Experiment, shown
from benchlib.study.store import CHECKSUMS, StudyFolder

pytestmark = pytest.mark.long
SCALE = float(os.environ.get("BENCHLIB_FUZZ", "0.01"))
CORPUS = sorted((Path(__file__).parents[1] / "load" / "parse" / "corpus").rglob("*.*"))
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1e308, 10**30, "", "x", "nan", "1_7", "=1+1", "../../x", "\x1b[31m", "9" * 5000,
    [], {}, [None], [[[]]], ["a", 1], {"a": []}, {"host": 1},
)  # fmt: skip
NOISE = (b"9" * 30, b"nan", b"-", b".", b" ", b"\n", b"\0", b"\x1b[")


@pytest.fixture
def random(capsys: pytest.CaptureFixture[str]) -> Random:
    seed = int(os.environ.get("BENCHLIB_FUZZ_SEED", SystemRandom().randrange(1 << 32)))
    with capsys.disabled():
        print(f"\nBENCHLIB_FUZZ_SEED={seed} BENCHLIB_FUZZ={SCALE:g}")
    return Random(seed)


@contextlib.contextmanager
def refused_in_a_line() -> Iterator[None]:
    """One of our errors is an answer, if it is a line."""
    refusal = ""
    try:
        yield
    except BenchlibError as reason:
        refusal = str(reason)
    assert "\n" not in refusal


def broken(data: bytes, random: Random) -> bytes:
    """The same with a few bytes changed, cut, doubled, moved or put between."""
    for _ in range(random.randint(1, 4)):
        at, to = sorted(random.randint(0, len(data)) for _ in range(2))
        lines = data[at:to].splitlines(keepends=True)
        moved = b"".join(random.sample(lines, len(lines)))
        between = random.choice([b"", data[:at], data[at:to] * 2, moved, random.choice(NOISE) + data[at:to]])
        data = data[:at] + between + random.choice([data[to:], data[to + 1 :], b""])
    return data


def test_broken_texts_are_read_or_refused(random: Random) -> None:
    texts = [path.read_bytes()[:20_000] for path in CORPUS if path.is_file()]
    texts += ["".join(pgbench_output(tps=1000)).encode()]
    for _ in range(int(1_000_000 * SCALE)):
        text = broken(random.choice(texts), random).decode(errors="replace")
        with refused_in_a_line():
            json.dumps(parse_text(text, kind=random.choice([None, *KINDS])), allow_nan=False)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every holder in JSON with the keys, or indices, that it has."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, one in inner for place in ((value, key), *places(one))]


def damage(path: Path, random: Random) -> None:
    """Exchange or remove a value in a file of JSON, or break its bytes."""
    if path.suffix != ".json" or random.random() < 0.2:
        path.write_bytes(broken(path.read_bytes(), random))
        return
    value = json.loads(path.read_bytes())
    holder, key = random.choice(places(value))
    holder[key] = random.choice(ODD)
    if random.random() < 0.3:
        del holder[key]
    path.write_text(json.dumps(value))


def asked(of: Experiment) -> list[Callable[[], object]]:
    """All that is derived of a study."""
    names = ("trials", "recorded", "measured", "figures", "bottlenecks", "concerns")
    return [partial(getattr, of, name) for name in names]


def test_damaged_studies_are_read_or_refused(random: Random, folder_of, tmp_path: Path) -> None:
    sound = ran(folder_of(3, name="sound"), tmp_path, instruments=True)
    for number in range(int(2_000 * SCALE)):
        folder = StudyFolder("hurt")
        shutil.rmtree(folder.path, ignore_errors=True)
        shutil.copytree(sound.path, folder.path)
        if number % 4 == 0:
            trim(folder)
        files = [path for path in folder.path.rglob("*") if path.is_file()]
        for path in random.sample(files, min(len(files), random.randint(1, 3))):
            damage(path, random)
        if random.random() < 0.8:  # so that what is inside is read
            (folder.path / CHECKSUMS).unlink(missing_ok=True)
            if (folder.path / "trials").is_dir():
                seal(folder)
        with refused_in_a_line():
            for ask in asked(shown(folder)):
                with refused_in_a_line():
                    ask()
        with refused_in_a_line():
            trim(folder)
