"""The command line: one file a command."""

from deltacell.cli.app import main

__all__ = ["main"]
