"""A named matrix with one row a gene."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from deltacell.arrays import Bools, Floats, Ints, column_of
from deltacell.errors import InputError


@dataclass(frozen=True, eq=False)
class Feature:
    """What is known of every gene under one name: an embedding, expression, a user's own.

    Parameters
    ----------
    name
        What it is called.
    values
        One row a gene of the cell, zero where nothing is known.
    known
        Which genes have a row of their own.
    """

    name: str
    values: Floats
    known: Bools

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", np.ascontiguousarray(self.values, dtype=np.float32))
        object.__setattr__(self, "known", np.asarray(self.known, dtype=bool))
        shape = self.values.shape
        if len(shape) != 2 or shape[1] == 0 or shape[0] != len(self.known):
            raise InputError(
                f"feature '{self.name}' has the shape {shape}, and "
                f"({len(self.known)}, width) with a width of at least 1 was expected"
            )
        if not np.isfinite(self.values).all():
            row = int(np.argmax(~np.isfinite(self.values).all(axis=1)))
            raise InputError(f"feature '{self.name}': row {row} holds a number that is not finite")

    @classmethod
    def of_all(cls, name: str, values: Any) -> Feature:
        """Make a feature that is known for every gene."""
        matrix = np.atleast_1d(np.asarray(values, dtype=np.float32))
        return cls(name, matrix, np.ones(matrix.shape[:1], dtype=bool))

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self.values.shape[1])

    def take(self, genes: Ints) -> Feature:
        """Return the feature of the given genes, in their order."""
        return Feature(self.name, self.values[genes], self.known[genes])

    def renamed(self, name: str) -> Feature:
        """Return the same feature under another name."""
        return Feature(name, self.values, self.known)

    def equals(self, other: Feature) -> bool:
        """Whether both have the same name and values."""
        return (
            self.name == other.name
            and np.array_equal(self.values, other.values)
            and np.array_equal(self.known, other.known)
        )

    def __repr__(self) -> str:
        return f"Feature({self.name!r}, width {self.width}, known for {int(self.known.sum()):,})"

    def to_arrow(self) -> pa.Table:
        """Return one row a gene."""
        flat = pa.array(np.ascontiguousarray(self.values).ravel(), pa.float32())
        return pa.table(
            {
                "values": pa.FixedSizeListArray.from_arrays(flat, self.width),
                "known": pa.array(self.known, pa.bool_()),
            }
        )

    @classmethod
    def from_arrow(cls, table: pa.Table, described: Mapping[str, Any]) -> Feature:
        """Inverse of `to_arrow`; the values stay memory-mapped."""
        flat = pa.chunked_array([c.flatten() for c in table["values"].chunks], pa.float32())
        values = column_of(pa.table({"values": flat}), "values")
        known = column_of(table, "known")
        return cls(described["name"], values.reshape(len(known), described["width"]), known)

    def describe(self) -> dict[str, Any]:
        """Return what is not in its table."""
        return {"name": self.name, "width": self.width}
