"""Ranks of rows that are counted more or less often, for many such counts at once."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from deltacell.arrays import Ints

Doubles = npt.NDArray[np.float64]

_KEPT = 3


class Column:
    """One number a row, and what follows from the numbers alone: their order and their ties.

    Parameters
    ----------
    values
        [n].
    """

    def __init__(self, values: npt.ArrayLike) -> None:
        self.values: Doubles = np.asarray(values, dtype=np.float64)

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def standard(self) -> Doubles:
        """The values less their mean and in units of their spread, which saves digits; [n]."""
        centred = self.values - self.values.mean()
        spread = float(np.sqrt(np.mean(centred**2)))
        standard: Doubles = centred / spread if spread > 0 else centred
        return standard

    @cached_property
    def order(self) -> Ints:
        """The rows by ascending value, [n]."""
        return np.argsort(self.values, kind="stable")

    @cached_property
    def starts(self) -> Ints:
        """Where in `order` each distinct value begins, [k]."""
        ordered = self.values[self.order]
        return np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))

    @cached_property
    def group(self) -> Ints:
        """The distinct value that each row has, counted from the smallest, [n]."""
        group = np.empty(len(self), dtype=np.int64)
        sizes = np.diff(self.starts, append=len(self))
        group[self.order] = np.repeat(np.arange(len(self.starts)), sizes)
        return group

    def sums(self, ordered: Doubles) -> Doubles:
        """Return the sums over rows with the same value, [b, k].

        Parameters
        ----------
        ordered
            Numbers of the rows in `order`, [b, n].
        """
        if len(self.starts) == len(self):
            return ordered
        sums: Doubles = np.add.reduceat(ordered, self.starts, axis=1)
        return sums


class Weights:
    """How often each row counts, in each of b resamples.

    Parameters
    ----------
    array
        [b, n], in whole numbers.
    """

    def __init__(self, array: Doubles) -> None:
        self.array = array
        self.total: Doubles = array.sum(axis=1)
        self._rankings: dict[int, Ranking] = {}

    def mean(self, values: Doubles) -> Doubles:
        """Return the mean over rows in each resample, [b] or [b, columns]; NaN without any row.

        Parameters
        ----------
        values
            [n] or [n, columns].
        """
        total = self.total if values.ndim == 1 else self.total[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            mean: Doubles = self.array @ values / total
        return mean

    def ranking(self, column: Column) -> Ranking:
        """Return the ranks of a column; those that were asked for last are kept.

        Parameters
        ----------
        column
            Of the same rows.
        """
        # A ranking holds its column, so that no other column can have the same id meanwhile.
        found = self._rankings.pop(id(column), None)
        if found is None:
            found = Ranking(column, self)
        self._rankings[id(column)] = found
        while len(self._rankings) > _KEPT:
            del self._rankings[next(iter(self._rankings))]
        return found


class Ranking:
    """Ranks among the rows written out as often as the weights say.

    Ranks begin at 1, and equal values share the mean of theirs.

    Parameters
    ----------
    column
        One number a row.
    weights
        How often each row counts.
    """

    def __init__(self, column: Column, weights: Weights) -> None:
        self.column = column
        self._array = weights.array
        size = column.sums(weights.array.take(column.order, axis=1))
        self.cubes: Doubles = np.einsum("bn,bn->b", size * size, size)
        """The sum over distinct values of the cube of how often each is there, [b]."""
        self.below: Doubles = np.cumsum(size, axis=1)
        """How many rows have a smaller value than each distinct one, [b, k]."""
        self.below -= size
        size += 1
        size /= 2
        size += self.below
        self.rank: Doubles = size
        """The rank of each distinct value, [b, k]."""

    @cached_property
    def weighted(self) -> Doubles:
        """The rank of each row times its weight, [b, n]."""
        weighted: Doubles = self.rank.take(self.column.group, axis=1)
        weighted *= self._array
        return weighted
