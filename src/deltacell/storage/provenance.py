"""The provenance of data, and the number of rows that were read, kept and dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deltacell.base.files import JsonObject

UNKNOWN_GENE = "unknown gene"
AMBIGUOUS_NAME = "ambiguous gene name"


@dataclass(frozen=True)
class Counts:
    """Rows of a source by what happened to them: ``read == kept + sum(dropped.values())``."""

    read: int
    kept: int
    dropped: Mapping[str, int] = field(default_factory=dict)  # by reason

    def __post_init__(self) -> None:
        dropped = {reason: int(n) for reason, n in self.dropped.items() if n}
        object.__setattr__(self, "dropped", dropped)
        is_negative = min(self.kept, *self.dropped.values(), 0) < 0
        if is_negative or self.read != self.kept + sum(self.dropped.values()):
            raise ValueError(f"rows do not add up: {self}")

    @property
    def resolved(self) -> int:
        """Rows whose gene names were all found."""
        return self.read - self.dropped.get(UNKNOWN_GENE, 0) - self.dropped.get(AMBIGUOUS_NAME, 0)

    def to_json(self) -> JsonObject:
        """Return a JSON-serialisable dict."""
        numbers = {"read": self.read, "resolved": self.resolved, "kept": self.kept}
        return {**numbers, "dropped": dict(self.dropped)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Counts:
        """Return the counts that `to_json` wrote."""
        return cls(data["read"], data["kept"], data["dropped"])


@dataclass(frozen=True)
class Source:
    """One source file of a cell or a screen."""

    file: str  # without its folders
    sha256: str  # of the file on disk, compressed or not
    reader: str
    counts: Counts
    into: str = ""  # a relation's name, "genes", "metabolism", a feature's or a study's name
    notes: Mapping[str, int | str] = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        """Return a JSON-serialisable dict."""
        return {**vars(self), "counts": self.counts.to_json(), "notes": dict(self.notes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Source:
        """Return the source that `to_json` wrote."""
        return cls(**{**data, "counts": Counts.from_json(data["counts"])})
