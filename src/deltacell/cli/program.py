"""What all commands have in common when they are typed."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

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
