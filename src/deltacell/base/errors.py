"""Errors that say what was wrong, where, and what to do."""

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
    """Base class of errors that are shown to the user without a stack trace."""


class InputError(DeltacellError):
    """An invalid input."""

    def __init__(
        self,
        what: str,  # one sentence
        *,
        code: str = "invalid-input",  # the kind of error, for programs and tests
        where: str | PathLike[str] | None = None,  # the file
        line: int | None = None,  # from 1
        fix: str | None = None,  # what to do about it
        **fields: Any,  # the values in the sentence, such as key="lr"
    ) -> None:
        self.what, self.code, self.where, self.line, self.fix = what, code, where, line, fix
        self.fields = fields
        place = "" if where is None else f"{where}{'' if line is None else f', line {line}'}: "
        super().__init__(f"{place}{what}" + ("" if fix is None else f"\n  {fix}"))


class GeneNameError(InputError):
    """An unknown or ambiguous gene name."""


class PhenotypeError(InputError):
    """A requested phenotype that a file does not have; ``phenotypes`` are those that it has."""

    def __init__(self, what: str, phenotypes: Iterable[str], **more: Any) -> None:
        self.phenotypes = tuple(phenotypes)
        super().__init__(what, code="missing-phenotype", phenotypes=self.phenotypes, **more)


class StoreError(InputError):
    """A directory that is damaged, of another kind, or cannot be written."""


class MissingExtraError(DeltacellError):
    """A required optional dependency is not installed."""


def need(module: str, purpose: str, extra: str) -> None:
    # A folder with that name, such as the one W&B creates, is not a package: it has no file.
    if getattr(importlib.util.find_spec(module), "origin", None) is None:
        install = f"Install it with: pip install 'deltacell[{extra}]'"
        raise MissingExtraError(f"{purpose} needs the extra '{extra}'\n  {install}")
