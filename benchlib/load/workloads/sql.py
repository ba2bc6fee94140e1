"""SQL as pgbench scripts. Pure.

Sources: PostgreSQL documentation, "Lexical Structure", "pgbench"; ``parseVariable`` in pgbench.c.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from benchlib.errors import InputError

_TOKEN = re.compile(
    r"""(?P<space>\s+)
  | (?P<comment>--[^\n\r]*|/\*(?:[^*/]|\*(?!/)|/(?!\*)|/\*(?:[^*/]|\*(?!/)|/(?!\*))*\*/)*\*/)
  | (?P<text>'(?:[^']|'')*')
  | (?P<quoted>[eE]'(?:[^'\\]|\\.|'(?:\s|--[^\n\r]*[\n\r])*')*'|(?:[uU]&)?"(?:[^"]|"")*"|\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$)
  | (?P<parameter>\$\d+)
  | (?P<word>[^\W\d][\w$]*|:(?:scale|client_id|random_seed|default_seed)\b)
  | (?P<colon>:(?=[^\W\d]|[^\x00-\x7f]))
  | (?P<refused>\\\w*|['"]|/\*)
  | (?P<other>\d[\w.]*|::|:=|(?:(?!--|/\*)[-+*/<>=~!@\#%^&|`?])+|.)""",
    re.VERBOSE | re.DOTALL,
)
_VARIABLE = re.compile(r"(?<!:):(?=[^\W\d]|[^\x00-\x7f])")
_COMMANDS = {
    *("set", "gset", "aset", "sleep", "if", "elif", "else", "endif", "setshell", "shell"),
    *("startpipeline", "syncpipeline", "endpipeline"),
}
"""pgbench's commands, in any case."""
_COMMAND = re.compile(r"\\(?:\\\r?\n|[^\S\n])*(\S*)(?:\\\r?\n|[^\n])*")
"""A command of pgbench: its name, and the rest of its lines, which are no SQL."""
_TOGETHER = "\\;"
"""The separator of statements that go to the server together."""
_ONE = re.compile(r"(?im)^[ \t]*--[ \t]*transaction[ \t]*[:=][ \t]*one\b")
_COPY = re.compile(r"(?is)\bcopy\b[^;]*\bfrom\s+stdin\b")
_ENDS = {"BEGIN", "START", "COMMIT", "END", "ABORT", "ROLLBACK"}
"""First words of statements that begin or end a transaction."""
_OWN = {"scale", "client_id", "random_seed", "default_seed"}
"""Variables that pgbench always has."""
_ESCAPES = {"\\": r"\\", "'": "''", ":": r"\x3a", "\n": r"\n", "\r": r"\r"}
_QUERIES = {"SELECT", "WITH", "VALUES", "TABLE", "EXPLAIN", "DECLARE"}
_CONTROLS = {
    *("BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE"),
    *("FETCH", "MOVE", "CLOSE", "SHOW", "SET", "RESET"),
}
"""First words of statements that do not write."""
_WRITE = {"INSERT", "UPDATE", "DELETE", "MERGE", "INTO", "CREATE"}
"""Words of a query that writes or locks rows."""
_LEAVES = {
    "WRITE",
    "ROLE",
    "AUTHORIZATION",
    "PREPARED",
    "TRANSACTION_READ_ONLY",
    "DEFAULT_TRANSACTION_READ_ONLY",
    "STANDARD_CONFORMING_STRINGS",
}
"""Words of other statements that leave the read-only mode, or change how SQL is read."""
_ACTS = re.compile(
    r"nextval|setval|set_config|lo_\w+|lowrite|dblink\w*|pg_(try_)?advisory_\w+|pg_(terminate|cancel)_backend"
    r"|pg_(notify|reload_conf|rotate_logfile|switch_\w+|promote|prewarm|export_snapshot|logical_\w+|replication_\w+)"
    r"|pg_(create|drop|log|start|stop|backup|clear|restore|set|copy|sync|file|import|truncate)_\w+|pg_nextoid"
    r"|pg_wal_replay_\w+|pg_stat_\w*reset\w*|pg_buffercache_(evict|mark)\w*|autoprewarm_\w+|heap_force_\w+"
    r"|brin_(de)?summarize_\w+|gin_clean_\w+|binary_upgrade_\w+|query_to_xml\w*|ts_stat",
    re.IGNORECASE,
)
"""Functions that write, lock, or act on other sessions or the server."""


def tokens(sql: str) -> list[tuple[str, str]]:
    """Split SQL into (kind, text)."""
    return [(match.lastgroup or "", match[0]) for match in _TOKEN.finditer(sql)]


def spoken(sql: str) -> list[tuple[str, str]]:
    """Return the tokens except space and comments."""
    return [token for token in tokens(sql) if token[0] not in ("space", "comment")]


def _pieces(script: str) -> Iterator[tuple[str, str]]:
    r"""Split a script into tokens and pgbench's commands, each whole and of the kind ``\name``."""
    at = 0
    while match := _TOKEN.match(script, at):
        kind, text, at = match.lastgroup or "", match[0], match.end()
        if text.startswith("\\") and not script.startswith((";", ":"), at):
            command = _COMMAND.match(script, match.start())
            assert command
            kind, text, at = f"\\{command[1]}", command[0], command.end()
        yield kind, text


def literal(value: str) -> str:
    """Quote a value, safe for server and pgbench."""
    text = "".join(_ESCAPES.get(character, character) for character in value)
    return f"E'{text}'" if "\\" in text else f"'{text}'"


def for_pgbench(sql: str, values: Mapping[str, str] | None = None, *, with_variables: bool = False) -> str:
    """Return SQL in which pgbench finds only its own variables.

    ``values`` replace ``$1`` and so on. ``with_variables``: keeps ``:name`` outside brackets.

    Raises:
        InputError: pgbench would read a part differently.
    """
    parts, depth = list[str](), 0
    for kind, text in tokens(sql):
        depth += text.count("[") - text.count("]") if kind == "other" else 0
        if kind == "refused" or (kind == "quoted" and _VARIABLE.search(text)):
            raise InputError(
                f"pgbench reads {text} differently from a server: write it as a plain string, '…'"
            )
        if kind == "text" and _VARIABLE.search(text):
            text = " " + literal(text[1:-1].replace("''", "'"))  # which begins with a letter
        elif kind == "comment":
            text = _VARIABLE.sub(": ", text)
        elif kind == "colon" and not (with_variables and depth <= 0):
            text = ": "
        parts.append((values or {}).get(text, text) if kind == "parameter" else text)
    return "".join(parts)


def one_of(runs: Iterable[str]) -> str:
    """Return a script that runs one of several, equally often."""
    counted = Counter(runs)
    if len(counted) == 1:
        return next(iter(counted))
    parts, upto = [f"\\set execution random(1, {counted.total()})\n"], 0
    for run, times in counted.items():
        parts.append(f"\\{'elif' if upto else 'if'} :execution <= {(upto := upto + times)}\n{run}")
    return "".join([*parts, "\\endif\n"])


def script_of(sql: str) -> str:
    """Return SQL as a script for ``pgbench -f``; by default each statement commits.

    ``-- transaction: one`` makes one transaction.

    Raises:
        InputError: it is empty, or neither SQL nor pgbench's.
    """
    pieces = [(kind, text) for kind, text in _pieces(sql) if kind not in ("space", "comment")]
    commands = [kind for kind, _ in pieces if kind.startswith("\\")]
    ended = (";" if kind.lower() in ("\\gset", "\\aset") else text for kind, text in pieces)
    words = [text.upper() for text in ended if not text.startswith("\\")]
    if not pieces:
        raise InputError("there is no statement in it")
    if _COPY.search(" ".join(text for kind, text in pieces if kind != "text")):
        raise InputError("COPY FROM STDIN does not work in pgbench, which sends no rows: use INSERT")
    if strange := [name for name in commands if name[1:].lower() not in _COMMANDS]:
        raise InputError(
            f"{strange[0]} is no command of pgbench (psql has others): leave it out, or write it in SQL"
        )
    if not commands and _TOGETHER not in sql:
        sql = for_pgbench(sql, with_variables=True)
    # a command of pgbench ends the statement before it
    starts = [";", *(";" if text.startswith("\\") else text.upper() for _, text in pieces)]
    begins = any(before == ";" and word in ("BEGIN", "START") for before, word in pairwise(starts))
    if _ONE.search(sql) and ";" in words[:-1] and not begins:
        return f"BEGIN;\n{sql.strip()}\n;\nEND;\n"
    return f"{sql.strip()}\n"


def rolled_back(script: str) -> str:
    """Return a script as one transaction that is rolled back."""
    parts, start, skips = ["BEGIN;\n"], True, False
    for kind, text in _pieces(script):
        if kind.startswith("\\"):
            start, skips = True, False
        elif start and kind not in ("space", "comment"):
            start, skips = False, text.upper() in _ENDS
        parts.append("" if skips else text)
        if text == ";":
            start, skips = True, False
    return "".join([*parts, "\n;\nROLLBACK;\n"])


def variables_of(script: str) -> list[str]:
    """Return a script's variables that it does not set."""
    bare = "".join(text for kind, text in tokens(script) if kind not in ("text", "quoted", "comment"))
    named = [text[1:] for text in re.findall(r"(?<!:):[^\W\d]\w*", bare)]
    made = {name.lower() for name in re.findall(r"(?im)^\s*\\(?:set|setshell)\s+(\w+)", script)}
    gathered = re.search(r"(?i)\\[ga]set\b", script)  # whose names are those of a query's columns
    return [] if gathered else list(dict.fromkeys(name for name in named if name.lower() not in made | _OWN))


def unsafe_part(script: str) -> str | None:
    """Return the first part of a script that may write, lock or act on others.

    A guard against mistakes: functions and rights are not known here.
    """
    words = list[tuple[str, str]]()
    for kind, text in _pieces(script):
        if kind.startswith("\\"):
            if kind[1:].lower() not in _COMMANDS - {"setshell", "shell"}:
                return kind
            kind, text = "other", ";"  # it ends the statement before it
        if text[:2].lower() == "u&" or (kind == "refused" and text != "\\"):
            return text
        if kind not in ("space", "comment"):
            words.append((kind, text))
    head = before = ""
    for (kind, text), (_, following) in pairwise([*words, ("other", "")]):
        word = text.upper()
        if text == ";":
            head = ""
        elif not head and text != "(":
            head = word
            if head not in _QUERIES | _CONTROLS:
                return text
        elif head in _QUERIES and kind == "word":
            if word in _WRITE:
                return text
            if word == "SHARE" and before in ("FOR", "KEY"):
                return f"{before} {word}"
        elif head in _CONTROLS and word.strip('"') in _LEAVES:
            return text
        if following == "(" and _ACTS.fullmatch(text.strip('"')):
            return text
        before = word
    return None
