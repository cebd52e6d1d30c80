"""Write docs/reference/commands.md anew: ``python -m deltacell_dev.command_reference``."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

from typer.main import get_command

from deltacell.cli.app import app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "commands.md"


def reference() -> str:
    """Return the page: every command with its arguments, options and an example."""
    leaves = [(path, one) for path, one in commands() if not hasattr(one, "commands")]
    return "\n\n".join([_HEAD, *(_section(path, command) for path, command in leaves)]) + "\n"


def commands(
    path: tuple[str, ...] = (), command: Any = None
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Give every command and group of commands with the words that lead to it."""
    command = get_command(app) if command is None else command
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands((*path, name), inner)


_HEAD = """\
# The commands

`deltacell COMMAND --help` prints the same as this page, and `deltacell --version` the version. With
`--debug`, anywhere in a command, an error is printed with its stack trace. The exit code is 0 on
success, 2 for invalid input, 1 for any other error, and 128 plus the number of the signal if a
signal stopped the command.

`deltacell --install-completion` enables completion of commands, options and config keys in the
shell. If the output is not a terminal, there are no colours and no progress bars; `NO_COLOR` also
turns colours off.

`python -m deltacell_dev.command_reference` generates this page, and a test compares it with the
code."""


def _section(path: tuple[str, ...], command: Any) -> str:
    paragraphs = [" ".join(part.split()) for part in command.help.split("\n\n")]
    example = command.epilog.replace("\\[", "[").removeprefix("Example: ")
    rows = [("argument or option", "takes", "default", "meaning"), ("---",) * 4]
    kinds = get_type_hints(command.callback)
    for given in command.params:
        if given.name in kinds:
            names = ", ".join(f"`{word}`" for word in (*given.opts, *given.secondary_opts))
            if given.param_type_name == "argument":
                names = f"`{given.name.upper()}`"
            rows.append((names, _takes(kinds[given.name]), _default(given), given.help))
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows)
    table = "\n".join(f"| {' | '.join(row)} |" for row in cells)
    title = f"## deltacell {' '.join(path)}"
    return "\n\n".join([title, *paragraphs, f"Example: `{example}`", table])


_WORDS: dict[Any, str] = {
    **{Path: "a path", str: "text", int: "a whole number", float: "a number", bool: ""},
    **{list[Path]: "paths", list[str]: "words"},
}


def _takes(kind: Any) -> str:
    # Of `X | None` it is X.
    for one in (kind, *get_args(kind)):
        if isinstance(one, type) and issubclass(one, Enum):
            return ", ".join(f"`{member.value}`" for member in one)
        if one in _WORDS:
            return _WORDS[one]
    raise TypeError(kind)


def _default(given: Any) -> str:
    if given.required:
        return "required"
    if isinstance(given.show_default, str):
        return given.show_default
    value = getattr(given.default, "value", given.default)
    return "" if value is None or isinstance(value, bool) else f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
