"""Progress bars with an honest estimate; silent where no one watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from deltacell.report.terminal import console

Report = Callable[[str, int, int], None]


@contextmanager
def progress_bar() -> Iterator[Report]:
    """Give a function to call with a label, what is done and what there is in all."""
    to = console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=to,
        transient=True,
        disable=not to.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=None)

        def report(label: str, done: int, total: int) -> None:
            bar.update(task, description=label[:48], completed=done, total=total or None)

        yield report
