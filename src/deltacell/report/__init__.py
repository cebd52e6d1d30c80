"""Renderings of results for the terminal, as Markdown and as pages; computes nothing."""

from deltacell.report.terminal import console, print_facts, print_table

__all__ = ["console", "print_facts", "print_table"]
