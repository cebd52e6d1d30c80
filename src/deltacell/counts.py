"""Where data came from and what became of every row of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

UNKNOWN_GENE = "unknown gene"
AMBIGUOUS_NAME = "ambiguous gene name"


@dataclass(frozen=True)
class Counts:
    """What became of the rows of a source. Always ``read == kept + sum(dropped.values())``.

    Parameters
    ----------
    read
        Rows in the source.
    kept
        Rows that are in the result.
    dropped
        Rows that are not, by reason.
    """

    read: int
    kept: int
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dropped", {k: int(n) for k, n in self.dropped.items() if n})
        if self.kept < 0 or any(n < 0 for n in self.dropped.values()):
            raise ValueError(f"rows cannot be fewer than none: {self}")
        if self.read != self.kept + sum(self.dropped.values()):
            raise ValueError(f"rows do not add up: {self}")

    @property
    def resolved(self) -> int:
        """Rows whose gene names were all found."""
        return self.read - self.dropped.get(UNKNOWN_GENE, 0) - self.dropped.get(AMBIGUOUS_NAME, 0)

    def then(self, later: Counts) -> Counts:
        """Chain with a later stage that read what this one kept."""
        if later.read != self.kept:
            raise ValueError(f"the later stage read {later.read} rows, this one kept {self.kept}")
        dropped = dict(self.dropped)
        for reason, n in later.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + n
        return Counts(self.read, later.kept, dropped)

    def to_json(self) -> dict[str, Any]:
        """Return plain data, with ``resolved`` written out for readers."""
        return {
            "read": self.read,
            "resolved": self.resolved,
            "kept": self.kept,
            "dropped": dict(self.dropped),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Counts:
        """Inverse of `to_json`."""
        return cls(data["read"], data["kept"], data["dropped"])


@dataclass(frozen=True)
class Source:
    """One file that went into a cell or a screen.

    Parameters
    ----------
    file
        Its name, without the folders of the machine it was read on.
    sha256
        Checksum of the file as it was read (compressed, where it was).
    reader
        Name of the reader that understood it.
    counts
        What became of its rows.
    into
        What it became: a relation's name, ``genes``, ``metabolism``, a feature's or study's name.
    notes
        Further counts worth knowing, such as distinct pairs before and after aliases.
    """

    file: str
    sha256: str
    reader: str
    counts: Counts
    into: str = ""
    notes: Mapping[str, int | str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "file": self.file,
            "sha256": self.sha256,
            "reader": self.reader,
            "into": self.into,
            "counts": self.counts.to_json(),
            "notes": dict(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Source:
        """Inverse of `to_json`."""
        return cls(
            data["file"],
            data["sha256"],
            data["reader"],
            Counts.from_json(data["counts"]),
            data["into"],
            data["notes"],
        )
