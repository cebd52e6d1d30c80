"""Errors that say what was wrong, where, and what to do."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterable
from os import PathLike
from typing import Any


def check_type(value: object, kind: type | tuple[type, ...], name: str, accepted: str) -> None:
    """Raise unless a value of a public function is of a kind; `accepted` says of which."""
    if not isinstance(value, kind):
        what = f"{name} is a {type(value).__name__}; expected {accepted}"
        raise InputError(what, code="wrong-type")


def did_you_mean(written: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'delta'?)" if a known name is close, ignoring case; otherwise ""."""
    by_letters = {name.casefold(): name for name in reversed(list(known))}
    letters = written.strip().casefold()
    near = difflib.get_close_matches(letters, by_letters, n=1, cutoff=0.7)
    return f" (did you mean '{by_letters[near[0]]}'?)" if near else ""


class DeltacellError(Exception):
    """Base class of errors that are shown to the user without a stack trace."""


class InputError(DeltacellError):
    """An invalid input.

    Args:
        message: What was wrong, in one sentence.
        code: The kind of error, for programs and tests.
        where: The file.
        line: Its line, counted from 1.
        fix: What to do about it.
        fields: The values in the sentence, such as ``key="lr"``.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "invalid-input",
        where: str | PathLike[str] | None = None,
        line: int | None = None,
        fix: str | None = None,
        **fields: Any,
    ) -> None:
        self.message = message
        self.code = code
        self.where = where
        self.line = line
        self.fix = fix
        self.fields = fields
        super().__init__(f"{self._place()}{message}" + ("" if fix is None else f"\n  {fix}"))

    def _place(self) -> str:
        """Return the file and the line with a colon; empty without a file."""
        if self.where is None:
            return ""
        return f"{self.where}: " if self.line is None else f"{self.where}, line {self.line}: "


class GeneNameError(InputError):
    """An unknown or ambiguous gene name."""


class PhenotypeError(InputError):
    """A requested phenotype that a file does not have; ``phenotypes`` are those that it has."""

    def __init__(self, message: str, phenotypes: Iterable[str], **options: Any) -> None:
        self.phenotypes = tuple(phenotypes)
        super().__init__(message, code="missing-phenotype", phenotypes=self.phenotypes, **options)


class StoreError(InputError):
    """A directory that is damaged, of another kind, or cannot be written."""


class MissingExtraError(DeltacellError):
    """A required optional dependency is not installed."""


def need(module: str, purpose: str, extra: str) -> None:
    """Raise a `MissingExtraError` unless a module of an optional dependency is installed.

    Args:
        module: The name under which it is imported.
        purpose: What needs it, which begins the message: ``Reading xlsx``.
        extra: The extra of this package that installs it.
    """
    # A folder with that name, such as the one W&B creates, is not a package: it has no file.
    if getattr(importlib.util.find_spec(module), "origin", None) is None:
        install = f"Install it with: pip install 'deltacell[{extra}]'"
        raise MissingExtraError(f"{purpose} needs the extra '{extra}'\n  {install}")
