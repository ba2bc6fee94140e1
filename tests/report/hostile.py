"""A kept study as somebody might make it who wants something of its reader: each of its strings is an attack.

The strings are found by walking the study's files, so a new field is attacked as well as an old one.
"""

import contextlib
import gzip
import json
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fakes import seal

from benchlib.errors import BenchlibError
from benchlib.plan.model import Measurement, Study
from benchlib.study import records
from benchlib.study.archive import ARCHIVE
from benchlib.study.crashed import Crash
from benchlib.study.experiment import shown
from benchlib.study.records import Record
from benchlib.study.store import MEASUREMENT, StudyFolder

HOST = "evil.example"
WORD = "zapped"
LONG = f"""=cmd|' /C {WORD}'!A1\x1b]0;{WORD}\x07\x9b31m\u202e\x00</p></pre></style></title></textarea>-->
<!--/site--><!--site--><script>{WORD}(1)</script>"' onmouseover={WORD}(2) x="<svg onload={WORD}(3)><style>@import '//{HOST}'</style></svg>
<img src=https://{HOST}/a.png onerror={WORD}(4)><a href="javascript:{WORD}(5)">a</a>[b](javascript:{WORD}(6)) ![c](https://{HOST}/b.png)

```
<iframe src=https://{HOST}></iframe><svg onload={WORD}(7)>
```

    <object data=//{HOST}></object>{{{{ 7777 * 7777 }}}}{{% raw %}}$x$"""
SHORT = f"@<svg onload={WORD}()>\"' onclick={WORD}() <img src=//{HOST}>"
"""Where little or nothing unprintable is taken, as of a level's name."""

KINDS = {
    kind.FILE: kind
    for kind in vars(records).values()
    if isinstance(kind, type) and issubclass(kind, Record) and kind is not Record
}
Documents = dict[Any, Any]
_EXACT = re.compile(r"|tps|[0-9A-F]+/[0-9A-F]+")
"""What is read as what it is, a metric or a place in the WAL, and will have to stay: tried one by one."""


def recorded(study: Path, *names: str) -> Documents:
    """Files of one of the trials that are kept with this repository, by name."""
    with tarfile.open(study / ARCHIVE) as archive:
        members = {Path(member.name).name: member for member in reversed(archive.getmembers())}
        return {name: json.load(archive.extractfile(members[name])) for name in names}


def plant(folder: StudyFolder, *, keys: bool = False) -> tuple[int, list[str]]:
    """Put an attack in place of each string in the study's files; how many, and those that had to stay.

    With ``keys`` also in place of those of the study and its measurements, such as names of settings.

    A string stays where a study with another one is refused.
    """
    documents = {path: _read(path) for path in _files(folder.path)}
    named = ("study.json", MEASUREMENT)
    strings = dict.fromkeys(
        s for path, document in documents.items() for s in _strings(document, keys and path.name in named)
    )
    attacks: dict[str, str] = {}
    kinds = _kinds(documents)
    for number, text in enumerate(strings):
        for attack in (f"{LONG} {number}", f"{SHORT} {number}"):
            old, new = json.dumps(text), json.dumps(attack)
            if all(_valid(name, document.replace(old, new)) for name, document in kinds[text].items()):
                attacks[text] = attack
                break
    before = _facts(folder)
    places = {path.parent: path.parent for path in documents if path.name == MEASUREMENT}

    def works(chosen: dict[str, str]) -> bool:
        for path, document in documents.items():
            if path.name == MEASUREMENT:  # a trial's folder is named after its level
                trial = Measurement.model_validate(_replaced(document, chosen)).trial
                places[path.parent] = places[path.parent].rename(path.parent.with_name(trial.id))
        for path, document in documents.items():
            _write(places.get(path.parent, path.parent) / path.name, _replaced(document, chosen))
        with contextlib.suppress(BenchlibError, KeyError):
            seal(folder)
            return _facts(folder) == before
        return False

    taken = _largest(attacks, works)
    assert works(taken)
    return len(taken), [text for text in strings if text not in taken]


def _largest(attacks: dict[str, str], works: Callable[[dict[str, str]], bool]) -> dict[str, str]:
    """Those that work together: all, or what is left of both halves."""

    def add(taken: dict[str, str], more: list[str]) -> dict[str, str]:
        both = taken | {text: attacks[text] for text in more}
        if works(both):
            return both
        if len(more) == 1:
            return taken
        half = len(more) // 2
        return add(add(taken, more[:half]), more[half:])

    taken = add({}, [text for text in attacks if not _EXACT.fullmatch(text)])
    for text in filter(_EXACT.fullmatch, attacks):
        taken = add(taken, [text])
    return taken


def _facts(folder: StudyFolder) -> tuple[int, ...]:
    """What attacks must leave: how many trials are good, and how many levels are judged."""
    experiment = shown(folder)
    for trial in folder.kept():
        for kind in KINDS.values():
            kind.read(folder, trial)
    good = int(experiment.trials["error"].isna().sum())
    return good, len(experiment.analysis.against), len(experiment.facts())


def _files(folder: Path) -> Iterator[Path]:
    yield from (path for path in sorted(folder.rglob("*.json*")) if path.is_file())


def _read(path: Path) -> Any:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def _write(path: Path, document: Any) -> None:
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)


def _strings(value: Any, keys: bool) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        if isinstance(value, dict) and keys:
            yield from value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner, keys)


def _replaced(value: Any, attacks: dict[str, str]) -> Any:
    if isinstance(value, str):
        return attacks.get(value, value)
    if isinstance(value, dict):
        return {attacks.get(key, key): _replaced(inner, attacks) for key, inner in value.items()}
    return [_replaced(inner, attacks) for inner in value] if isinstance(value, list) else value


def _kinds(documents: Documents) -> dict[str, dict[str, str]]:
    """For each string the first file of each kind that has it: the file's name, and its JSON."""
    files: dict[str, dict[str, str]] = {}
    for path, document in documents.items():
        dumped = json.dumps(document)
        for text in set(_strings(document, keys=True)):
            files.setdefault(text, {}).setdefault(path.name, dumped)
    return files


def _valid(name: str, document: str) -> bool:
    """Whether the file's model takes this JSON."""
    model: Any = {"study.json": Study, "measurement.json": Measurement, **KINDS}.get(name, Crash)
    try:
        model.model_validate_json(document)
    except ValueError:
        return False
    return True
