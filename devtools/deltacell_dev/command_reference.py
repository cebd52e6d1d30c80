"""Write docs/reference/commands.md anew: ``python -m deltacell_dev.command_reference``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

from typer.main import get_command

from deltacell.cli.app import app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "commands.md"


def reference() -> str:
    """Return the page: every command with its arguments, options and an example."""
    leaves = [(path, command) for path, command in commands() if not hasattr(command, "commands")]
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
    for parameter in command.params:
        if parameter.name in kinds:
            names = ", ".join(f"`{word}`" for word in (*parameter.opts, *parameter.secondary_opts))
            if parameter.param_type_name == "argument":
                names = f"`{parameter.name.upper()}`"
            takes = _takes(kinds[parameter.name])
            rows.append((names, takes, _default(parameter), parameter.help))
    table = "\n".join(_row(row) for row in rows)
    title = f"## deltacell {' '.join(path)}"
    return "\n\n".join([title, *paragraphs, f"Example: `{example}`", table])


_WORDS: dict[Any, str] = {
    **{Path: "a path", str: "text", int: "a whole number", float: "a number", bool: ""},
    **{list[Path]: "paths", list[str]: "words"},
}


def _row(cells: Iterable[str]) -> str:
    """Return a line of a table in Markdown."""
    escaped = [" ".join(cell.split()).replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def _takes(kind: Any) -> str:
    """Return the words for a type; of ``X | None`` those for X."""
    for part in (kind, *get_args(kind)):
        if isinstance(part, type) and issubclass(part, Enum):
            return ", ".join(f"`{member.value}`" for member in part)
        if part in _WORDS:
            return _WORDS[part]
    raise TypeError(kind)


def _default(parameter: Any) -> str:
    """Return what a parameter is if it is not given, empty for a flag."""
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    value = getattr(parameter.default, "value", parameter.default)
    return "" if value is None or isinstance(value, bool) else f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
