"""Errors a person can act on: what was wrong, where, and what to do."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterable
from os import PathLike
from typing import Any


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'delta'?)" if a known name is close, ignoring case; otherwise ""."""
    by_letters = {name.casefold(): name for name in reversed(list(known))}
    near = difflib.get_close_matches(given.strip().casefold(), by_letters, n=1, cutoff=0.7)
    return f" (did you mean '{by_letters[near[0]]}'?)" if near else ""


class DeltacellError(Exception):
    """Base of every error that is shown to a user as a sentence, without a stack trace."""


class InputError(DeltacellError):
    """Something given to the program is wrong."""

    def __init__(
        self,
        what: str,  # was found and was expected, in one sentence
        *,
        code: str = "invalid-input",  # the kind of error, which programs and tests compare
        where: str | PathLike[str] | None = None,  # the file
        line: int | None = None,  # from 1
        fix: str | None = None,  # what to do about it
        **fields: Any,  # the values behind the sentence, such as key="lr"
    ) -> None:
        self.what, self.code, self.where, self.line, self.fix = what, code, where, line, fix
        self.fields = fields
        place = "" if where is None else f"{where}{'' if line is None else f', line {line}'}: "
        super().__init__(f"{place}{what}" + ("" if fix is None else f"\n  {fix}"))


class GeneNameError(InputError):
    """A gene name that the cell does not know, or that names several genes."""


class PhenotypeError(InputError):
    """A phenotype that was asked for and that a file does not have."""


class StoreError(InputError):
    """A directory on disk that is damaged, of another kind, or cannot be written."""


class MissingExtraError(DeltacellError):
    """An optional dependency is needed and not installed."""

    def __init__(self, purpose: str, extra: str) -> None:
        install = f"Install it with: pip install 'deltacell[{extra}]'"
        super().__init__(f"{purpose} needs the extra '{extra}'\n  {install}")


def need(module: str, purpose: str, extra: str) -> None:
    # A folder of that name, such as W&B leaves behind, is not a package: it has no file.
    if getattr(importlib.util.find_spec(module), "origin", None) is None:
        raise MissingExtraError(purpose, extra)
