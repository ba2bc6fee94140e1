"""SQL that others wrote, as scripts of pgbench: what in it are variables, parameters and commands. Pure.

pgbench replaces ``:name`` wherever it stands, in texts and comments too, and takes a backslash outside of them for a
command. Sources: the documentation's "Lexical Structure" and "pgbench", and ``parseVariable`` of pgbench.c.
"""

import re
from collections.abc import Mapping

from benchlib.errors import InputError

_TOKEN = re.compile(
    r"""(?P<space>\s+)
  | (?P<comment>--[^\n]*|/\*(?:[^*/]|\*(?!/)|/(?!\*)|/\*(?:[^*/]|\*(?!/)|/(?!\*))*\*/)*\*/)
  | (?P<text>'(?:[^']|'')*')
  | (?P<quoted>[eE]'(?:[^'\\]|\\.|'')*'|"(?:[^"]|"")*"|\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$)
  | (?P<parameter>\$\d+)
  | (?P<word>[^\W\d][\w$]*|:(?:scale|client_id|random_seed|default_seed)\b)
  | (?P<colon>:(?=[^\W\d]|[^\x00-\x7f]))
  | (?P<refused>\\\w*|['"]|/\*)
  | (?P<other>\d[\w.]*|::|:=|(?:(?!--|/\*)[-+*/<>=~!@\#%^&|`?])+|.)""",
    re.VERBOSE | re.DOTALL,
)
_VARIABLE = re.compile(r"(?<!:):(?=[^\W\d]|[^\x00-\x7f])")
_COMMANDS = {"\\set", "\\gset", "\\aset", "\\sleep", "\\if", "\\elif", "\\else", "\\endif"}
_ESCAPES = {"\\": r"\\", "'": "''", ":": r"\x3a", "\n": r"\n", "\r": r"\r"}


def tokens(sql: str) -> list[tuple[str, str]]:
    """The tokens of SQL: what each is, by the names of the groups above, and its text. Joined, they are the SQL again."""
    return [(match.lastgroup or "", match[0]) for match in _TOKEN.finditer(sql)]


def spoken(sql: str) -> list[tuple[str, str]]:
    """The tokens of SQL but for space and comments."""
    return [token for token in tokens(sql) if token[0] not in ("space", "comment")]


def literal(value: str) -> str:
    """A value as SQL text, in one line, in which neither the server nor pgbench finds anything else."""
    text = "".join(_ESCAPES.get(character, character) for character in value)
    return f"E'{text}'" if "\\" in text else f"'{text}'"


def for_pgbench(sql: str, values: Mapping[str, str] | None = None) -> str:
    """The same SQL, in which pgbench finds no variables but its own, such as ``:scale``; ``values`` stand for parameters (``$1``).

    Raises:
        InputError: what pgbench would read otherwise than the server cannot be written so that it does not.

    """
    parts = []
    for kind, text in tokens(sql):
        if kind == "refused" or (kind == "quoted" and _VARIABLE.search(text)):
            raise InputError(f"pgbench reads {text} otherwise than a server: write it as a plain text, '…'")
        if kind == "text" and _VARIABLE.search(text):
            text = " " + literal(text[1:-1].replace("''", "'"))  # which begins with a letter
        elif kind in ("colon", "comment"):
            text = _VARIABLE.sub(": ", text) if kind == "comment" else ": "
        parts.append((values or {}).get(text, text) if kind == "parameter" else text)
    return "".join(parts)


def script_of(sql: str) -> str:
    """A file's SQL as a script that is one transaction: several statements between BEGIN and END.

    One with commands of pgbench's, such as ``\\set``, is a script already, and what looks like a variable is one.

    Raises:
        InputError: there is nothing in it, or what is neither SQL nor pgbench's.

    """
    words = spoken(sql)
    commands = {text for kind, text in words if kind == "refused"}
    if not words:
        raise InputError("there is no statement in it")
    if not commands or commands - _COMMANDS:
        sql = for_pgbench(sql)
    plain = spoken(re.sub(r"^\s*\\.*$", "", sql, flags=re.MULTILINE))  # without pgbench's own commands
    several = any(text == ";" for _, text in plain[:-1])
    if several and plain[0][1].upper() not in ("BEGIN", "START"):
        return f"BEGIN;\n{sql.strip()}\n;\nEND;\n"
    return f"{sql.strip()}\n"
