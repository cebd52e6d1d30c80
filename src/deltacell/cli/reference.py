"""The reference page of the commands, written from the commands themselves."""

from __future__ import annotations

import os
import types
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from typer.main import get_command

from deltacell.cli.app import app

PAGE = "docs/reference/commands.md"
"""Where the page is in the repository."""


def reference() -> str:
    """Return the page: every command with its arguments, options and an example."""
    parts = [_HEAD]
    for path, command in commands():
        if getattr(command, "commands", None) is None:
            parts.append(_section(path, command))
    return "\n\n".join(parts) + "\n"


def write_reference(path: str | os.PathLike[str] = PAGE) -> None:
    """Write the page anew, after a change of a command."""
    Path(path).write_text(reference(), encoding="utf-8")


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Give every command and group of commands with the words that lead to it."""
    yield from _within((), get_command(app))


_HEAD = """\
# The commands

`deltacell COMMAND --help` says what this page says; `deltacell --version` says which version it is.
With `--debug`, anywhere in a command, an error comes with its stack trace. The exit code is 0 where
all went well, 2 where what was given is wrong, 1 where something else is, and 128 and the number of
the signal where one stopped it.

`deltacell --install-completion` has the shell complete commands, options and the keys of a config.
Colours are left out where `NO_COLOR` is set and where no one watches, and so are progress bars.

This page is written by `deltacell.cli.reference.write_reference`; a test holds it to the code."""


def _within(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _within((*path, name), inner)


def _section(path: tuple[str, ...], command: Any) -> str:
    paragraphs = [" ".join(part.split()) for part in command.help.split("\n\n")]
    example = command.epilog.replace("\\[", "[").removeprefix("Example: ")
    kinds = get_type_hints(command.callback)
    rows = [("argument or option", "takes", "default", "meaning"), ("---",) * 4]
    for given in command.params:
        if given.name in kinds:
            kind = _plain(kinds[given.name])
            name = ", ".join(f"`{word}`" for word in (*given.opts, *given.secondary_opts))
            if given.param_type_name == "argument":
                name = f"`{(given.metavar or given.name).rstrip('.').upper()}`"
            rows.append((name, _takes(kind), _default(given), given.help))
    table = "\n".join(f"| {' | '.join(_escaped(cell) for cell in row)} |" for row in rows)
    title = f"## deltacell {' '.join(path)}"
    return "\n\n".join([title, *paragraphs, f"Example: `{example}`", table])


def _plain(kind: Any) -> Any:
    """Return a type without the None that it may be."""
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (one for one in get_args(kind) if one is not type(None))
    return kind


_WORDS = {Path: "a path", str: "text", int: "a whole number", float: "a number", bool: ""}


def _takes(kind: Any) -> str:
    if get_origin(kind) is list:
        return {Path: "paths", str: "words"}[get_args(kind)[0]]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{member.value}`" for member in kind)
    return _WORDS[kind]


def _default(given: Any) -> str:
    if given.required:
        return "required"
    if isinstance(given.show_default, str):
        return given.show_default
    value = given.default
    if value is None or isinstance(value, bool):
        return ""
    return f"`{value.value if isinstance(value, Enum) else value}`"


def _escaped(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|")
