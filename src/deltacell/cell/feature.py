"""A named matrix with one row per gene."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from deltacell.arrays import Bools, Floats, Ints, column_of
from deltacell.errors import InputError


@dataclass(frozen=True, eq=False)
class Feature:
    """Numbers that are known of each gene under one name, such as a phenotype profile.

    Parameters
    ----------
    name
        What it is called.
    values
        One row per gene of the cell, [genes, width]. A missing value is NaN, never a zero.
    columns
        The name of each column; ``1``, ``2``, … where not given.
    """

    name: str
    values: Floats
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", np.ascontiguousarray(self.values, dtype=np.float32))
        shape = self.values.shape
        if len(shape) != 2 or shape[1] == 0:
            raise InputError(
                f"feature '{self.name}' has the shape {shape}; expected (genes, width) with a "
                "width of at least 1"
            )
        names = self.columns if len(self.columns) else _numbered(shape[1])
        object.__setattr__(self, "columns", tuple(str(name) for name in names))
        if len(self.columns) != shape[1]:
            raise InputError(
                f"feature '{self.name}' has the shape {shape} and {len(self.columns)} column names"
            )
        if len(set(self.columns)) != len(self.columns):
            twice = next(c for i, c in enumerate(self.columns) if c in self.columns[:i])
            raise InputError(f"feature '{self.name}' has two columns called '{twice}'")
        infinite = np.isinf(self.values).any(axis=1)
        if infinite.any():
            raise InputError(
                f"feature '{self.name}': row {int(np.argmax(infinite))} holds an infinite number",
                fix="Write NaN where a value is missing.",
            )

    @classmethod
    def of_all(cls, name: str, values: Any, columns: Sequence[str] = ()) -> Feature:
        """Make a feature of anything that NumPy takes for a matrix."""
        return cls(name, np.atleast_1d(np.asarray(values, dtype=np.float32)), tuple(columns))

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self.values.shape[1])

    @cached_property
    def known(self) -> Bools:
        """Which genes have at least one value."""
        present = ~np.isnan(self.values)
        known: Bools = np.any(present, axis=1)
        return known

    @property
    def missing(self) -> float:
        """The share of values that the known genes lack; 0 where no gene is known."""
        n = int(self.known.sum()) * self.width
        return 1 - int((~np.isnan(self.values)).sum()) / n if n else 0.0

    def take(self, genes: Ints) -> Feature:
        """Return the feature of the given genes, in their order."""
        return Feature(self.name, self.values[genes], self.columns)

    def renamed(self, name: str) -> Feature:
        """Return the same feature under another name."""
        return Feature(name, self.values, self.columns)

    def equals(self, other: Feature) -> bool:
        """Whether both have the same name, columns and values, missing ones included."""
        return (
            self.name == other.name
            and self.columns == other.columns
            and np.array_equal(self.values, other.values, equal_nan=True)
        )

    def __repr__(self) -> str:
        return f"Feature({self.name!r}, width {self.width}, known for {int(self.known.sum()):,})"

    def to_arrow(self) -> dict[str, pa.Table]:
        """Return its tables: ``values``, one row per gene, and ``columns``."""
        flat = pa.array(np.ascontiguousarray(self.values).ravel(), pa.float32())
        return {
            "values": pa.table({"values": pa.FixedSizeListArray.from_arrays(flat, self.width)}),
            "columns": pa.table({"column": pa.array(self.columns, pa.string())}),
        }

    @classmethod
    def from_arrow(cls, tables: Mapping[str, pa.Table], described: Mapping[str, Any]) -> Feature:
        """Inverse of `to_arrow`; the values stay memory-mapped.

        An earlier form is read too: zeros with a column ``known`` beside them, and no
        column names.
        """
        table = tables["values"]
        flat = pa.chunked_array([c.flatten() for c in table["values"].chunks], pa.float32())
        values = column_of(pa.table({"values": flat}), "values").reshape(-1, described["width"])
        if "known" in table.column_names:
            values = np.where(column_of(table, "known")[:, None], values, np.float32(np.nan))
        columns = tables["columns"]["column"].to_pylist() if "columns" in tables else ()
        return cls(described["name"], values, tuple(columns))

    def describe(self) -> dict[str, Any]:
        """Return what is not in its tables."""
        return {"name": self.name, "width": self.width}


def _numbered(width: int) -> tuple[str, ...]:
    return tuple(str(i) for i in range(1, width + 1))
