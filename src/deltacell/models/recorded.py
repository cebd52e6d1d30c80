"""Models that remember the settings they were made with, so that a run can be made of one."""

from __future__ import annotations

import inspect
from typing import Any, Self


class Recorded:
    """A base class that keeps the arguments of the constructor, without the cell.

    Attributes
    ----------
    made_with
        The arguments that were given, by name.
    """

    made_with: dict[str, Any]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Make an object and keep what it is made with."""
        made = super().__new__(cls)
        # A copy is made without arguments, and gets those of the original with its other state.
        try:
            bound = inspect.signature(cls.__init__).bind(made, *args, **options).arguments
        except TypeError:
            bound = {}
        bound = {name: value for name, value in bound.items() if name not in ("self", "cell")}
        bound |= bound.pop("options", {})
        # A module takes no attribute before its own constructor ran.
        made.__dict__["made_with"] = bound
        return made
