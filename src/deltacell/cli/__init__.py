"""The command line: one file per group of commands."""

from deltacell.cli.app import main

__all__ = ["main"]
