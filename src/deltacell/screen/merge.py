"""One row for each set of genes and phenotype, out of all that measured it."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pyarrow as pa

from deltacell.arrays import AnyArray, Ints
from deltacell.errors import InputError
from deltacell.screen.screen import Merge, Screen, score_signs


def merged(screen: Screen, how: Merge) -> Screen:
    """Return one row for each set of genes and phenotype, in order of first appearance.

    With ``mean`` or ``median`` over the n rows that have a score, the standard deviation is that
    of their mean, sqrt(sum of sd^2) / n, and missing where one of them is; the p-value is missing.
    With ``best-p`` the row with the smallest p-value is kept, a missing one counting as the
    largest and the earlier row winning a tie. Replicates are added up. The sign is that of the
    score; without a score it is the one that all rows share, or none.

    Parameters
    ----------
    screen
        With repeated genotypes or without.
    how
        ``mean``, ``median`` or ``best-p``.
    """
    if how not in get_args(Merge):
        raise InputError(f"cannot merge by '{how}'; by {', '.join(get_args(Merge))}")
    first, group = _groups(screen)
    n = len(first)
    if how == "best-p":
        chosen = _smallest_p(screen, group)
        columns: dict[str, AnyArray] = {}
    else:
        chosen = first
        columns = _averaged(screen, group, n, how)
    columns["replicates"] = np.bincount(group, screen.column("replicates"), n).astype(np.int32)
    return _replaced(screen.take(chosen), columns)


def _groups(screen: Screen) -> tuple[Ints, Ints]:
    """Return the first row of each set and phenotype, ascending, and the group of every row."""
    _, key = np.unique(screen.keys, return_inverse=True)
    phenotype = screen.codes("phenotype")
    _, first, group = np.unique(
        key * (phenotype.max() + 1) + phenotype, return_index=True, return_inverse=True
    )
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[group]


def _smallest_p(screen: Screen, group: Ints) -> Ints:
    p = screen.column("p_value")
    order = np.lexsort((np.where(np.isnan(p), np.inf, p), group))
    return order[np.flatnonzero(np.diff(group[order], prepend=-1))]


def _averaged(screen: Screen, group: Ints, n: int, how: Merge) -> dict[str, Any]:
    score = screen.column("score").astype(np.float64)
    known = np.isfinite(score)
    size = np.bincount(group[known], minlength=n)
    if how == "mean":
        total = np.bincount(group[known], score[known], n)
        centre = np.divide(total, size, out=np.full(n, np.nan), where=size > 0)
    else:
        centre = _medians(score[known], group[known], size)
    deviation = screen.column("standard_deviation").astype(np.float64)[known]
    # A missing deviation makes the sum missing, as it should.
    squares = np.bincount(group[known], deviation**2, n)
    of_mean = np.divide(np.sqrt(squares), size, out=np.full(n, np.nan), where=size > 0)
    first = np.unique(group, return_index=True)[1]
    signs = np.where(
        size > 0,
        score_signs(centre, screen.column("phenotype")[first]),
        _shared_sign(screen, group, n),
    )
    return {
        "score": centre.astype(np.float32),
        "standard_deviation": of_mean.astype(np.float32),
        "p_value": np.full(n, np.nan),
        "sign": signs.astype(np.int8),
    }


def _medians(score: AnyArray, group: Ints, size: Ints) -> AnyArray:
    ordered = score[np.lexsort((score, group))]
    start = np.cumsum(size) - size
    centre = np.full(len(size), np.nan)
    there = size > 0
    low = ordered[(start + (size - 1) // 2)[there]]
    high = ordered[(start + size // 2)[there]]
    centre[there] = low + (high - low) / 2
    return centre


def _shared_sign(screen: Screen, group: Ints, n: int) -> AnyArray:
    sign = screen.column("sign")
    low, high = np.full(n, 1, dtype=np.int8), np.full(n, -1, dtype=np.int8)
    np.minimum.at(low, group, sign)
    np.maximum.at(high, group, sign)
    return np.where(low == high, low, 0)


def _replaced(screen: Screen, columns: dict[str, AnyArray]) -> Screen:
    rows = screen.rows
    for name, values in columns.items():
        at = rows.column_names.index(name)
        rows = rows.set_column(at, name, pa.array(values, rows.schema.field(name).type))
    return Screen(
        screen.genes,
        rows,
        screen.deleted,
        screen.coverage,
        sources=screen.sources,
        synthetic=screen.synthetic_recipe,
    )
