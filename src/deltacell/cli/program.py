"""Shared by all commands: options, completion and writing results."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from deltacell.base.files import write_text


class Program(TyperGroup):
    """Accepts `--debug` anywhere, and says that Ctrl-C stopped it."""

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
            raise typer.Exit(130) from None


def complete_override(incomplete: str) -> list[str]:
    from deltacell.train.config.keys import GROUPS, choices, keys_for

    words = [f"{key}=" for key in keys_for(incomplete)]
    words += [f"{group}={name}" for group in GROUPS for name in choices(group)]
    return [word for word in words if word.startswith(incomplete)]


def option(about: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=about, **settings)


Json = Annotated[Path | None, option("Also write the result as JSON.")]
Markdown = Annotated[Path | None, option("Also write the tables as Markdown.")]
Html = Annotated[Path | None, option("Also write a self-contained HTML page.")]
Seed = Annotated[int, option("Random seed.")]
Device = Annotated[str, option("Where networks compute: auto (a GPU if there is one), cpu, cuda.")]
Weights = Annotated[str, option("Checkpoint to use: best (by validation) or last.")]
ConfigDir = Annotated[Path | None, option("Your configs: DIR/experiment/mine.yaml.")]
Overwrite = Annotated[bool, option("Replace existing output.", "--overwrite")]
Columns = Annotated[
    list[str] | None,
    option(
        "Columns of tables with other headers: gene1=…,gene2=…,score=… for a screen, "
        "score1=…,score2=… for several conditions, weight=… for a network; numbers for tables "
        "without a header. Applies to all tables that have these columns; may be repeated.",
        metavar="KEY=COLUMN,…",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Config overrides: experiment=demo model=dango trainer.devices=2.",
        autocompletion=complete_override,
    ),
]


def split_names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def write_json(path: Path | None, data: Any) -> None:
    write_rendered(path, lambda one: json.dumps(one, indent=1, ensure_ascii=False) + "\n", data)


def write_rendered(path: Path | None, render: Callable[[Any], str], data: Any) -> None:
    if path is not None:
        write_text(path, render(data), what="the result")


def show_warnings_in_a_line() -> None:
    """Show each warning of this package once and without the place in its source.

    Warnings of other packages are shown as usual. Which warnings are shown does not change.
    """
    usual = warnings.showwarning
    package = str(Path(__file__).parents[1])
    shown: set[str] = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = str(message)
        is_ours = filename.startswith(package) and issubclass(category, UserWarning)
        if not is_ours:
            usual(message, category, filename, lineno, file, line)
        elif text not in shown:
            shown.add(text)
            tell(f"warning: {text}")

    warnings.showwarning = show


def tell(sentence: str) -> None:
    """Print to stderr, without control characters."""
    from deltacell.base.text import printable

    typer.secho(printable(sentence), err=True)
