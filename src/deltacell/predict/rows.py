"""The rows of a ranking: scored sets with their names, their status and the evidence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from deltacell.arrays import Ints, offsets_of
from deltacell.predict.evidence import COLUMNS, Evidence
from deltacell.predict.gene_names import gene_texts
from deltacell.predict.kept import taken
from deltacell.predict.linkage import LINKED, UNKNOWN
from deltacell.predict.ranking_file import SCHEMA
from deltacell.predict.scorer import Scored
from deltacell.predict.status import STATUSES
from deltacell.predict.subject import Subject

_AT_ONCE = 20_000


class Rows:
    """Makes tables with the columns of a ranking.

    Parameters
    ----------
    subject
        What was ranked.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._evidence = Evidence.of(subject.cell)
        genes = subject.cell.genes
        self._systematic = pa.array(genes.systematic, pa.string())
        self._names = pa.array(gene_texts(genes), pa.string())

    def tables(self, end: str | None, pieces: Iterator[Scored]) -> Iterator[pa.Table]:
        """Return the rows of an end.

        Parameters
        ----------
        end
            Its name.
        pieces
            The sets in order; those of several sizes are padded in front with -1.
        """
        rank = 1
        for piece in pieces:
            for at in range(0, len(piece.score), _AT_ONCE):
                some = taken(piece, np.arange(at, min(at + _AT_ONCE, len(piece.score))))
                yield self._table(end, rank, some)
                rank += len(some.score)

    def _table(self, end: str | None, rank: int, found: Scored) -> pa.Table:
        n = len(found.score)
        here = found.sets >= 0
        flat, offsets = found.sets[here], pa.array(offsets_of(here.sum(axis=1)), pa.int32())
        columns: dict[str, Any] = {
            "end": pa.array([end] * n, pa.string()),
            "rank": pa.array(np.arange(rank, rank + n, dtype=np.int32)),
            "genes": pa.ListArray.from_arrays(offsets, self._systematic.take(pa.array(flat))),
            "names": pa.ListArray.from_arrays(offsets, self._names.take(pa.array(flat))),
            "score": pa.array(found.score),
            "spread": pa.array(found.spread, from_pandas=True),
            **self._known(found.sets),
        }
        return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)

    def _known(self, sets: Ints) -> dict[str, pa.Array]:
        """Return the columns of what is known of sets, whatever their scores."""
        status = np.zeros(len(sets), dtype=np.int8)
        linked = np.zeros(len(sets), dtype=np.int8)
        measured = np.zeros(len(sets), dtype=np.float32)
        evidence: dict[str, list[Any]] = {name: [None] * len(sets) for name in COLUMNS}
        sizes = (sets >= 0).sum(axis=1)
        for size in np.unique(sizes).tolist():
            rows = np.flatnonzero(sizes == size)
            some = sets[rows, sets.shape[1] - size :]
            status[rows] = self._subject.statuses.of(some)
            measured[rows] = self._subject.statuses.measured(some)
            linked[rows] = self._subject.linkage.of(some)
            for name, values in self._evidence.columns(some).items():
                for row, value in zip(rows.tolist(), values, strict=True):
                    evidence[name][row] = value
        return {
            "status": pa.array(STATUSES, pa.string()).take(pa.array(status)),
            "measured": pa.array(measured, from_pandas=True),
            "linked": pa.array(linked == LINKED, pa.bool_(), mask=linked == UNKNOWN),
            **{
                name: pa.array(values, SCHEMA.field(name).type) for name, values in evidence.items()
            },
        }
