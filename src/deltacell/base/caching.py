"""Results of functions, kept as long as the object that they are about."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

Function = TypeVar("Function", bound=Callable[..., Any])


def kept_with(function: Function) -> Function:
    """Cache the results of a function for as long as its first argument, the owner, is alive."""
    results: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()

    @wraps(function)
    def call(owner: Any, *others: Any) -> Any:
        of_owner = results.setdefault(owner, {})
        if others not in of_owner:
            of_owner[others] = function(owner, *others)
        return of_owner[others]

    return cast(Function, call)
