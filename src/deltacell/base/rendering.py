"""How results find what shows them: functions of `deltacell.report`, by name.

Modules that compute do not import `deltacell.report`. A result names the function that prints it,
which is imported when a user looks at the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar

from deltacell.base.text import Progress

Values = Mapping[str, Any]
"""The values of a result by their names, as its `to_json` returns them: an object of JSON."""


def report_function(place: str) -> Callable[..., Any]:
    """Return a function of `deltacell.report` by its place, such as ``evaluate:print_evaluation``.

    The first part is the module and the second one the name of the function.
    """
    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(report_module(module), name)
    return function


def report_module(name: str) -> ModuleType:
    """Return a module of `deltacell.report` by its name."""
    return import_module(f"deltacell.report.{name}")


def as_text(printer: str, values: Values) -> str:
    """Return what a function of `deltacell.report` prints of some values."""
    text: str = report_function("terminal:as_text")(partial(report_function(printer), values))
    return text


def as_html(printer: str, values: Values) -> str:
    """Return what a function of `deltacell.report` prints of some values, as HTML."""
    html: str = report_function("terminal:as_html")(partial(report_function(printer), values))
    return html


def progress_bar() -> AbstractContextManager[Progress]:
    """Return the context of a progress bar, which is a function to be called with the progress."""
    bar: AbstractContextManager[Progress] = report_function("progress:progress_bar")()
    return bar


class Shown:
    """A result whose text and notebook representations are what ``printed_by`` prints of it."""

    printed_by: ClassVar[str]
    """The place of a function of `deltacell.report`, which takes the result of `to_json`."""

    def to_json(self) -> dict[str, Any]:
        """Return the values to show, as a JSON-serialisable dict."""
        raise NotImplementedError

    def __str__(self) -> str:
        return as_text(self.printed_by, self.to_json())

    def _repr_html_(self) -> str:
        return as_html(self.printed_by, self.to_json())
