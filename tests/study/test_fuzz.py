"""A million broken texts and two thousand damaged studies: figures or one of our errors, never another one.

Each test prints its seed. ``BENCHLIB_FUZZ`` scales the numbers (0.1 is a tenth), ``BENCHLIB_FUZZ_SEED`` gives a seed back.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pytest
from fakes import FakeBench, pgbench_output, seal

from benchlib.errors import BenchlibError
from benchlib.load.parse import KINDS, parse_text
from benchlib.study.experiment import Experiment, shown
from benchlib.study.loop import run_study
from benchlib.study.results import tunables
from benchlib.study.store import CHECKSUMS, StudyFolder
from benchlib.study.trim import trim

pytestmark = pytest.mark.long
SCALE = float(os.environ.get("BENCHLIB_FUZZ", "0.01"))
CORPUS = sorted((Path(__file__).parents[1] / "load" / "parse" / "corpus").rglob("*.*"))
ODD: tuple[Any, ...] = (
    *(
        None,
        "",
        "x",
        0,
        -1,
        1e308,
        10**30,
        [],
        {},
        [None],
        {"a": []},
        True,
        "\x1b[31m",
        "9" * 5000,
        "../../x",
        "=1+1",
    ),
    *(["a", 1], "1_7", "nan", [[[]]], {"host": 1}),
)


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
    """The same with a few bytes changed, cut, doubled or moved."""
    for _ in range(random.randint(1, 4)):
        at, to = sorted(random.randint(0, len(data)) for _ in range(2))
        match random.randrange(6):
            case 0:
                data = data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]
            case 1:
                data = data[:at]
            case 2:
                data = data[:at] + data[to:]
            case 3:
                data = data[:to] + data[at:to] + data[to:]
            case 4:
                lines = data.splitlines(keepends=True)
                random.shuffle(lines)
                data = b"".join(lines)
            case 5:
                data = (
                    data[:at]
                    + random.choice([b"9" * 30, b"nan", b"-", b".", b" ", b"\n", b"\0", b"\x1b["])
                    + data[at:]
                )
    return data


def test_broken_texts_are_read_or_refused(random: Random) -> None:
    texts = [path.read_bytes()[:20_000] for path in CORPUS if path.is_file()]
    texts += ["".join(pgbench_output(tps=1000)).encode()]
    for _ in range(int(1_000_000 * SCALE)):
        text = broken(random.choice(texts), random).decode(errors="replace")
        with refused_in_a_line():
            json.dumps(parse_text(text, kind=random.choice([None, *KINDS])), allow_nan=False)


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value in JSON is."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(deeper for key, one in inner for deeper in paths_in(one, (*path, key)))]


def damage(path: Path, random: Random) -> None:
    """Exchange or remove a value in a file of JSON, or break its bytes."""
    data = path.read_bytes()
    if path.suffix != ".json" or random.random() < 0.2:
        path.write_bytes(broken(data, random))
        return
    value = json.loads(data)
    *way, last = random.choice(paths_in(value)[1:])
    holder = value
    for key in way:
        holder = holder[key]
    if random.random() < 0.3:
        del holder[last]
    else:
        holder[last] = random.choice(ODD)
    path.write_text(json.dumps(value))


def read(folder: StudyFolder) -> None:
    """All that is derived of a study."""
    experiment: Experiment = shown(folder)
    for ask in (
        lambda: experiment.trials,
        lambda: experiment.progress,
        lambda: experiment.recorded,
        lambda: experiment.measured,
        lambda: tunables(experiment.plan, experiment.kept),
        experiment.facts,
        experiment.durability,
    ):
        with refused_in_a_line():
            ask()


def test_damaged_studies_are_read_or_refused(
    random: Random, folder_of: Callable[..., StudyFolder], tmp_path: Path
) -> None:
    sound = folder_of(3, name="sound")
    run_study(sound, FakeBench(sound.read().plan, tmp_path, instruments=True).open)
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
            if (folder.path / "trials").is_dir():
                seal(folder)
            else:
                (folder.path / CHECKSUMS).unlink(missing_ok=True)
        with refused_in_a_line():
            read(folder)
            trim(folder)
