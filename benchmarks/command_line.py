"""Write the page of the command line from click's own help: ``make docs`` does."""

from collections.abc import Iterator
from pathlib import Path

import click

from benchlib.cli import cli

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "command-line.md"
_WIDTH = 100
_HEAD = """# Command line

All commands, as `benchlib COMMAND --help` shows them. Do not edit this page: `make docs` writes it.
`--debug` anywhere shows the traceback of an error. [Exit codes](exit-codes.md) and [environment variables](files.md#environment-variables)
have pages of their own.

**Shell completion.** Put `eval "$(_BENCHLIB_COMPLETE=bash_source benchlib)"` into `~/.bashrc`. For zsh, put the line with `zsh_source`
into `~/.zshrc`. For fish, run `_BENCHLIB_COMPLETE=fish_source benchlib > ~/.config/fish/completions/benchlib.fish`.
"""


def helps(command: click.Command, parent: click.Context | None = None) -> Iterator[tuple[str, str]]:
    """Return the name and the help of a command and of all commands below it, in alphabetical order."""
    context = click.Context(command, parent, command.name, max_content_width=_WIDTH, terminal_width=_WIDTH,
                            help_option_names=["-h", "--help"])  # fmt: skip
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from helps(command.commands[name], context)


def page() -> str:
    """Return the page as Markdown."""
    root = click.Context(cli, info_name="benchlib")
    below = (each for name in sorted(cli.commands) for each in helps(cli.commands[name], root))
    return "\n".join([_HEAD, *(f"## {name}\n\n```text\n{text}\n```\n" for name, text in below)])


def main() -> None:
    """Write the page."""
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
