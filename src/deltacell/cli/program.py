"""What all commands share: how arguments, settings and errors are taken, and results written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from deltacell.errors import InputError
from deltacell.files import write_text as write_whole

STOPPED = 130
"""The exit code of a command that Ctrl-C stopped, as shells have it."""


class Program(TyperGroup):
    """The commands: `--debug` may stand anywhere, and Ctrl-C ends with a word, not with a trace."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = args[: args.index("--")] if "--" in args else args
        if "--debug" in options:
            rest = args[len(options) :]
            args = ["--debug", *(word for word in options if word != "--debug"), *rest]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.secho("stopped", err=True)
            raise typer.Exit(STOPPED) from None


class WithSettings(TyperCommand):
    """A command that shows how a setting is written if it was typed as an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            from deltacell.train.config import ANY_KEYS, nearest

            # The parser's errors have no name that typer promises to keep.
            option = str(getattr(error, "option_name", ""))
            name = option.lstrip("-").replace("-", "_")
            is_key = name in {key.rpartition(".")[2] for key in ANY_KEYS}
            is_near_option = bool(getattr(error, "possibilities", None)) and not is_key
            meant = None if not name or is_near_option else nearest(name, list(ANY_KEYS))
            if meant is None:
                raise
            what = f"there is no option {option}; settings are written as key=value"
            fix = f"Such as: {ctx.command_path} {meant}=..."
            raise InputError(what, code="setting-as-option", fix=fix) from None


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the words that a begun override may become.

    Bash takes ``experiment=de`` for three words, the last of them ``de``.
    """
    from deltacell.train.config import ANY_KEYS, GROUPS, choices

    before = list(ctx.params.get("overrides") or [])
    if before and before[-1] in GROUPS:
        # The begun word is the sign alone, which click takes for nothing.
        before.append("=")
    if len(before) > 1 and before[-1] == "=":
        words = choices(before[-2]) if before[-2] in GROUPS else []
    else:
        words = [f"{group}={name}" for group in GROUPS for name in choices(group)]
        words += [f"{key}=" for key in ANY_KEYS if incomplete]
    return [word for word in words if word.startswith(incomplete)]


def option(about: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=about, **settings)


Json = Annotated[Path | None, option("Also write the result as JSON.")]
Markdown = Annotated[Path | None, option("Also write the tables as Markdown.")]
Html = Annotated[Path | None, option("Also write a page: self-contained HTML.")]
Seed = Annotated[int, option("Random seed.")]
Weights = Annotated[str, option("best, chosen by validation, or last.")]
ConfigDir = Annotated[Path | None, option("Your own configs, such as DIR/experiment/mine.yaml.")]
Overwrite = Annotated[bool, option("Replace what an earlier command made.", "--overwrite")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="A config: experiment=demo model=hetero_cell trainer.devices=2.",
        autocompletion=complete_override,
    ),
]


def split_names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def write_json(path: Path | None, data: Mapping[str, Any]) -> None:
    if path is not None:
        write_text(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n", what="the result")


def write_text(path: Path, text: str, *, what: str) -> None:
    """Write a text file and create its folder; ``what`` names it in errors."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"{what} could not be written: its folder cannot be created: {error.strerror}"
        raise InputError(what, code="not-written", where=path) from error
    write_whole(path, text, what=what)


def tell(sentence: str) -> None:
    """Say something beside the output, in characters that are safe on a terminal."""
    from deltacell.report.terminal import printable

    typer.secho(printable(sentence), err=True)
