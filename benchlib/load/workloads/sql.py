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
_COMMANDS = {
    *("set", "gset", "aset", "sleep", "if", "elif", "else", "endif", "setshell", "shell"),
    *("startpipeline", "syncpipeline", "endpipeline"),
}
"""Commands of pgbench's, which takes them in any case."""
_CONTINUED = re.compile(r"\\[ \t]*\r?\n")
"""How a command goes on in the next line."""
_TOGETHER = "\\;"
"""What is between statements that go to the server together, which pgbench and psql read alike."""
_ONE = re.compile(r"(?im)^[ \t]*--[ \t]*transaction[ \t]*[:=][ \t]*one\b")
_COPY = re.compile(r"(?is)\bcopy\b[^;]*\bfrom\s+stdin\b")
_OWN = {"scale", "client_id", "random_seed", "default_seed"}
"""Variables that pgbench always has."""
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
    """Return a file's SQL as the script that ``pgbench -f`` runs of it: each statement commits by itself, unless it says otherwise.

    With a line ``-- transaction: one`` several statements are put between BEGIN and END. ``:name`` is a variable, of
    pgbench's commands or of a level's ``load.variables``; where there are no commands it is none in texts, comments and
    brackets, as a server reads them.

    Raises:
        InputError: there is nothing in it, or what is neither SQL nor pgbench's.

    """
    joined = _CONTINUED.sub(" ", sql).replace(_TOGETHER, ";")
    words = spoken(joined)
    commands = [text for kind, text in words if kind == "refused" and text.startswith("\\")]
    if not words:
        raise InputError("there is no statement in it")
    if _COPY.search("".join(text for kind, text in tokens(joined) if kind not in ("comment", "text"))):
        raise InputError("COPY FROM STDIN needs rows from a client, which pgbench does not send: use INSERT")
    if strange := [text for text in commands if text[1:].lower() not in _COMMANDS]:
        raise InputError(
            f"{strange[0]} is no command of pgbench's (psql has others): leave it out, or write it in SQL"
        )
    if not commands and _TOGETHER not in sql:
        sql = _variables_kept(sql)
    plain = spoken(re.sub(r"^\s*\\.*$", "", joined, flags=re.MULTILINE))  # without pgbench's own commands
    several = any(text == ";" for _, text in plain[:-1])
    begins = {text.upper() for _, text in plain} & {"BEGIN", "START"}
    if _ONE.search(sql) and several and not begins:
        return f"BEGIN;\n{sql.strip()}\n;\nEND;\n"
    return f"{sql.strip()}\n"


def variables_of(script: str) -> list[str]:
    """Return the variables that a script names and does not set itself, in their order; those that pgbench always has aside."""
    named = [text[1:] for text in re.findall(r"(?<!:):[^\W\d]\w*", _bare(script))]
    made = {name.lower() for name in re.findall(r"(?im)^\s*\\(?:set|setshell)\s+(\w+)", script)}
    gathered = re.search(r"(?i)\\[ga]set\b", script)  # whose names are those of a query's columns
    return [] if gathered else list(dict.fromkeys(name for name in named if name.lower() not in made | _OWN))


def _bare(script: str) -> str:
    """A script without texts and comments."""
    return "".join(text for kind, text in tokens(script) if kind not in ("text", "quoted", "comment"))


def _variables_kept(sql: str) -> str:
    """SQL as :func:`for_pgbench` writes it, but that a bare ``:name`` outside of brackets stays a variable."""
    parts, depth = [], 0
    for kind, text in tokens(sql):
        depth += text.count("[") - text.count("]") if kind == "other" else 0
        parts.append(
            text if kind == "colon" and depth <= 0 else for_pgbench(text) if kind != "colon" else ": "
        )
    return "".join(parts)
