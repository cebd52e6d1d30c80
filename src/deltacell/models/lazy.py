"""Packages that import their modules when a name is used, so that a config needs no PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exports(package: str, home: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package; `home` has the module of each exported name."""

    def export(name: str) -> Any:
        """Import and return what the package exports by a name."""
        if name not in home:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(import_module(f"deltacell.models.{home[name]}"), name)

    return export
