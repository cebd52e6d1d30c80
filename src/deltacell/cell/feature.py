"""A named matrix with one row per gene."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    values
        One row per gene of the cell, [genes, width]. A missing value is NaN, never a zero.
    columns
        The name of each column; ``1``, ``2``, … where not given.
    """

    name: str
    values: Floats
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        values = np.ascontiguousarray(self.values, dtype=np.float32)
        if values.ndim != 2 or values.shape[1] == 0:
            what = f"has the shape {values.shape}, and (genes, width) was expected"
            raise self._error("bad-shape", what)
        columns = self.columns if len(self.columns) else range(1, values.shape[1] + 1)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "columns", tuple(map(str, columns)))
        if len(self.columns) != self.width:
            what = f"has the shape {values.shape} and {len(self.columns)} column names"
            raise self._error("bad-shape", what)
        if len(set(self.columns)) != self.width:
            twice = next(c for i, c in enumerate(self.columns) if c in self.columns[:i])
            raise self._error("duplicate-column", f"has two columns called '{twice}'")
        infinite = np.isinf(values).any(axis=1)
        if infinite.any():
            what = f"has an infinite number in row {int(np.argmax(infinite))}"
            raise self._error("not-finite", what, "Use NaN for a missing value.")

    def _error(self, code: str, what: str, fix: str | None = None) -> InputError:
        return InputError(f"feature '{self.name}' {what}", code=code, fix=fix)

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
        known: Bools = np.any(~np.isnan(self.values), axis=1)
        return known

    @property
    def missing(self) -> float:
        """The share of values that the known genes lack; 0 where no gene is known."""
        n = int(self.known.sum()) * self.width
        return 1 - int((~np.isnan(self.values)).sum()) / n if n else 0.0

    def take(self, genes: Ints) -> Feature:
        """Return the feature of the given genes, in their order."""
        return replace(self, values=self.values[genes])

    def renamed(self, name: str) -> Feature:
        """Return the same feature under another name."""
        return replace(self, name=name)

    def equals(self, other: Feature) -> bool:
        """Whether both have the same name, columns and values, missing ones included."""
        named = (self.name, self.columns) == (other.name, other.columns)
        return named and np.array_equal(self.values, other.values, equal_nan=True)

    def __repr__(self) -> str:
        return f"Feature({self.name!r}, width {self.width}, known for {int(self.known.sum()):,})"

    def to_arrow(self) -> dict[str, pa.Table]:
        """Return its tables: ``values``, one row per gene, and ``columns``."""
        flat = pa.array(self.values.ravel(), pa.float32())
        return {
            "values": pa.table({"values": pa.FixedSizeListArray.from_arrays(flat, self.width)}),
            "columns": pa.table({"column": pa.array(self.columns, pa.string())}),
        }

    @classmethod
    def from_arrow(cls, tables: Mapping[str, pa.Table], name: str, width: int) -> Feature:
        """Inverse of `to_arrow`; the values stay memory-mapped.

        Earlier versions wrote zeros with a column ``known`` beside them, and no column names.
        """
        table = tables["values"]
        flat = pa.chunked_array([c.flatten() for c in table["values"].chunks], pa.float32())
        values = column_of(pa.table({"values": flat}), "values").reshape(-1, width)
        if "known" in table.column_names:
            values = np.where(column_of(table, "known")[:, None], values, np.float32(np.nan))
        columns = tables["columns"]["column"].to_pylist() if "columns" in tables else ()
        return cls(name, values, tuple(columns))
