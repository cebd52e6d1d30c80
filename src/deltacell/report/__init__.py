"""Terminal renderings of results; computes nothing."""

from deltacell.report.terminal import console, print_facts, print_table

__all__ = ["console", "print_facts", "print_table"]
