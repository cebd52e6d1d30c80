"""The functions whose lines are profiled, by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import isfunction, unwrap
from typing import Any

from deltacell.base.errors import InputError


def function_named(name: str) -> Callable[..., Any]:
    """Return a function or method by its name, such as ``package.module:Class.method``."""
    module, _, path = name.partition(":")
    target: Any
    try:
        target = import_module(module)
        for part in path.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise _unknown(name, str(error)) from error
    if not isfunction(unwrap(target)):
        raise _unknown(name, f"it is a {type(target).__name__}")
    function: Callable[..., Any] = target
    return function


def _unknown(name: str, why: str) -> InputError:
    return InputError(
        f"profiler.functions has '{name}', which is not a function: {why}",
        code="unknown-function",
        key="profiler.functions",
        fix="Write it as module:function or module:Class.method, of code in Python.",
    )
