"""Names that have moved to another module, which still work for one release."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

#: The last release in which the former names work.
LAST_RELEASE = "0.2"


def moved(
    former: str,
    present: str,
    renamed: Mapping[str, str] | None = None,
) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a former module, which finds its names in the present one.

    Every use gives a DeprecationWarning with the present name. ``renamed`` are the full present
    names of what is elsewhere or named otherwise. The present module is imported by its name, so a
    former module adds no import.
    """
    new_names = dict(renamed or {})

    def getattr_of_module(name: str) -> Any:
        place, _, new_name = new_names.get(name, f"{present}.{name}").rpartition(".")
        module = import_module(place)
        if name.startswith("__") or not hasattr(module, new_name):
            raise AttributeError(f"module '{former}' has no attribute '{name}'")
        text = f"{former}.{name} is now {place}.{new_name}"
        warnings.warn(f"{text}; the old name goes after {LAST_RELEASE}", DeprecationWarning, 2)
        return getattr(module, new_name)

    return getattr_of_module
