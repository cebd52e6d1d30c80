"""What all commands share: how arguments, settings and errors are taken, and results written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from deltacell.errors import InputError
from deltacell.files import write_text as write_whole

STOPPED = 130
"""The exit code of a command that Ctrl-C stopped, as shells have it."""


class Program(TyperGroup):
    """The commands: `--debug` may stand anywhere, and Ctrl-C ends with a word, not with a trace."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the arguments, with `--debug` put before the command wherever it stands."""
        options = args[: args.index("--")] if "--" in args else args
        if "--debug" in options:
            rest = args[len(options) :]
            args = ["--debug", *(word for word in options if word != "--debug"), *rest]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.secho("stopped", err=True)
            raise typer.Exit(STOPPED) from None


GROUPS = ("experiment", "model", "loss", "schedule", "ablation")
"""Groups of the configs that ship, of which one is chosen by its name."""


class WithSettings(TyperCommand):
    """A command that shows how a setting is written if it was typed as an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments."""
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # The parser's errors have no name that typer promises to keep.
            option = str(getattr(error, "option_name", ""))
            others = getattr(error, "possibilities", None)
            meant = _setting(option, only_exact=bool(others)) if option else None
            if meant is None:
                raise
            raise InputError(
                f"there is no option {option}; settings are written as key=value",
                code="setting-as-option",
                fix=f"Such as: {ctx.command_path} {meant}={_value(option, typed)}",
            ) from None


def _setting(option: str, *, only_exact: bool) -> str | None:
    from deltacell.train.check import ANY_KEYS, nearest

    name = option.lstrip("-").replace("-", "_")
    if only_exact and name not in {key.rpartition(".")[2] for key in ANY_KEYS}:
        return None
    return nearest(name, list(ANY_KEYS))


def _value(option: str, typed: list[str]) -> str:
    for word, after in zip(typed, [*typed[1:], "..."], strict=True):
        if word == option:
            return after if not after.startswith("-") and "=" not in after else "..."
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return "..."


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the words that a begun override may become.

    Bash takes ``experiment=de`` for three words, the last of them ``de``.
    """
    before = list(ctx.params.get("overrides") or [])
    if before and before[-1] in GROUPS:
        # The begun word is the sign alone, which click takes for nothing.
        before.append("=")
    if len(before) > 1 and before[-1] == "=":
        return [name for name in _names(before[-2]) if name.startswith(incomplete)]
    words = [f"{group}={name}" for group in GROUPS for name in _names(group)]
    if incomplete:
        words += _defaults()
    return [word for word in words if word.startswith(incomplete)]


def _names(group: str) -> Iterable[str]:
    if group not in GROUPS:
        return []
    names = (entry.name for entry in (files("deltacell.conf") / group).iterdir())
    # A loss "of" a model is the model's default.
    return sorted(
        name.removesuffix(".yaml")
        for name in names
        if name.endswith(".yaml") and not name.startswith("of_")
    )


def _defaults() -> Iterable[str]:
    from deltacell.train.check import ANY_KEYS

    for name, key in ANY_KEYS.items():
        value = key.default.value if isinstance(key.default, Enum) else key.default
        if value is None or isinstance(value, bool):
            yield f"{name}={'null' if value is None else str(value).lower()}"
        elif isinstance(value, int | float | str):
            yield f"{name}={value}"


def write_json(path: Path | None, data: Mapping[str, Any]) -> None:
    """Write a result as JSON if a path is given."""
    if path is not None:
        write_text(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n", what="the result")


def write_text(path: Path, text: str, *, what: str) -> None:
    """Write a text file and create its folder; ``what`` names it in errors."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{what} could not be written: its folder cannot be created: {error.strerror}",
            code="not-written",
            where=path,
        ) from error
    write_whole(path, text, what=what)
