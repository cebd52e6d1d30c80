"""What a ranking keeps of the sets it goes through, in memory and on the disk."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from deltacell.arrays import Bools, Ints
from deltacell.errors import InputError, StoreError
from deltacell.files import new_file, seal_of
from deltacell.predict.ranking import HIGHEST
from deltacell.predict.scorers import Floats, Scored

_KEY = b"deltacell"


def write_scored(
    path: str | os.PathLike[str],
    found: Scored,
    about: Mapping[str, Any] | None = None,
    *,
    rows_a_batch: int = 4096,
) -> None:
    """Write sets to a file, whole or not at all.

    Parameters
    ----------
    path
        The file.
    found
        The sets, in the order in which they are to be read.
    about
        What else the file is to hold, as JSON.
    rows_a_batch
        How many are read at a time.
    """
    width = found.sets.shape[1]
    rows = [
        taken(found, np.arange(first, min(first + rows_a_batch, len(found.score))))
        for first in range(0, len(found.score), rows_a_batch)
    ]
    held: dict[str, Any] = {"about": about, "crc32": [_crc32(one) for one in rows]}
    held["seal"] = seal_of(held)
    flat = pa.array(np.ascontiguousarray(found.sets, dtype=np.int32).reshape(-1))
    table = pa.table(
        {
            "genes": pa.FixedSizeListArray.from_arrays(flat, width),
            "score": pa.array(found.score),
            "spread": pa.array(found.spread, from_pandas=False),
        },
        metadata={_KEY: json.dumps(held, ensure_ascii=False, sort_keys=True).encode()},
    )
    try:
        with new_file(path) as temporary, pa.ipc.new_file(str(temporary), table.schema) as writer:
            writer.write_table(table, max_chunksize=rows_a_batch)
    except OSError as error:
        raise StoreError(
            f"the work so far could not be saved: {error.strerror or error}",
            where=path,
            fix="Free some space; the same command goes on from what was saved last.",
        ) from error


def read_scored(path: str | os.PathLike[str]) -> tuple[Scored, Any]:
    """Return all sets of a file, and what else it holds.

    Parameters
    ----------
    path
        A file of `write_scored`.
    """
    held = _Sealed(path)
    found = [held.batch(number) for number in range(held.n_batches)]
    return joined(found) if found else no_sets(held.width), held.about


def read_about(path: str | os.PathLike[str]) -> Any:
    """Return what else a file of `write_scored` holds."""
    return _Sealed(path).about


def batches(path: str | os.PathLike[str]) -> Iterator[Scored]:
    """Return the sets of a file a few thousand at a time; it stays open no longer than needed.

    Parameters
    ----------
    path
        A file of `write_scored`.
    """
    number, total = 0, 1
    while number < total:
        held = _Sealed(path)
        total = held.n_batches
        if number < total:
            yield held.batch(number)
        number += 1


class _Sealed:
    """A file of `write_scored`; what is not as it was written is an error."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        with self._read() as reader:
            held = json.loads(reader.schema.metadata[_KEY])
            if held["seal"] != seal_of(held) or reader.num_record_batches != len(held["crc32"]):
                raise ValueError("its seal is broken")
            self.about, self._crc32 = held["about"], held["crc32"]
            self.width = reader.schema.field("genes").type.list_size

    @property
    def n_batches(self) -> int:
        return len(self._crc32)

    def batch(self, number: int) -> Scored:
        with self._read() as reader:
            found = _scored(pa.Table.from_batches([reader.get_batch(number)]))
            if _crc32(found) != self._crc32[number]:
                raise ValueError("its checksum does not match")
        return found

    @contextmanager
    def _read(self) -> Iterator[Any]:
        try:
            with pa.OSFile(str(self._path)) as file, pa.ipc.open_file(file) as reader:
                yield reader
        except (OSError, pa.ArrowException, *_DAMAGE) as error:
            raise StoreError(
                f"the work that was saved here is damaged ({error})",
                where=self._path,
                fix=f"Remove the folder {self._path.parent} and give the command again.",
            ) from error


_DAMAGE = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, MemoryError)


def _crc32(found: Scored) -> int:
    crc = zlib.crc32(np.ascontiguousarray(found.sets, dtype=np.int32).data)
    for values in (found.score, found.spread):
        crc = zlib.crc32(np.ascontiguousarray(values, dtype=np.float32).data, crc)
    return crc


def _scored(table: pa.Table) -> Scored:
    whole = table.combine_chunks()
    width = table.schema.field("genes").type.list_size
    flat = whole["genes"].chunk(0).flatten().to_numpy().astype(np.int64)
    return Scored(
        flat.reshape(-1, width),
        whole["score"].to_numpy().astype(np.float32),
        whole["spread"].to_numpy().astype(np.float32),
    )


class End(Protocol):
    """One end of a ranking.

    Parameters
    ----------
    name
        ``lowest``, ``highest``, or None where all sets are listed from the lowest score up.
    parts
        Names of the files that it has put rows into.
    """

    name: str | None
    parts: list[str]

    @property
    def bound(self) -> float:
        """The score that a set must have at least, at this end, to be kept still."""

    def offer(self, found: Scored) -> None:
        """Keep what is to be kept of some sets."""

    def held(self) -> Scored:
        """Return the rows that are in memory."""

    def restore(self, held: Scored, parts: Sequence[str]) -> None:
        """Be as one was that held these."""

    def rows(self) -> Iterator[Scored]:
        """Return all rows in order, in pieces."""


class Kept:
    """The ends of a ranking together.

    Parameters
    ----------
    ends
        One of each name, at most.
    """

    def __init__(self, ends: Sequence[End]) -> None:
        self.ends = tuple(ends)

    @property
    def above(self) -> float:
        """The least score that is wanted at the upper end; inf where none is."""
        return max((end.bound for end in self.ends if end.name == HIGHEST), default=np.inf)

    @property
    def below(self) -> float:
        """The highest score that is wanted at the lower end; -inf where none is."""
        return min((end.bound for end in self.ends if end.name != HIGHEST), default=-np.inf)

    def offer(self, found: Scored) -> None:
        """Keep what is to be kept of some sets; a score that is not finite is an error."""
        finite = np.isfinite(found.score)
        if not finite.all():
            raise InputError(
                f"the score of {int((~finite).sum()):,} of {len(finite):,} gene sets is not a "
                "finite number",
                fix="The weights of a run are damaged or its training went astray: see its "
                "metrics.csv, and try --weights last or another run.",
            )
        for end in self.ends:
            end.offer(found)


class Top:
    """The first so many sets of one end.

    Parameters
    ----------
    name
        ``lowest`` or ``highest``.
    most
        How many.
    limit
        The score that they must reach; none where not given.
    width
        Genes of the largest set.
    cautious
        As in `keys`.
    """

    def __init__(
        self,
        name: str | None,
        most: int,
        width: int,
        *,
        limit: float | None = None,
        cautious: bool = False,
    ) -> None:
        self.name = name
        self._cautious = cautious
        self.parts: list[str] = []
        self._most = most
        self._limit = no_limit(name) if limit is None else limit
        self._held = no_sets(width)

    @property
    def bound(self) -> float:
        """The key of the last that is kept where there are as many as wanted; the limit else."""
        if len(self._held.score) < self._most:
            return self._limit
        # It came through the limit, so it is nearer to the end.
        return float(keys(self.name, self._held, cautious=self._cautious)[-1])

    def offer(self, found: Scored) -> None:
        """Keep what is to be kept of some sets."""
        key = keys(self.name, found, cautious=self._cautious)
        wanted = within(self.name, key, self.bound)
        if wanted.any():
            both = joined([self._held, taken(found, wanted)])
            order = in_order(self.name, both, cautious=self._cautious)
            self._held = taken(both, order[: self._most])

    def held(self) -> Scored:
        """Return all rows."""
        return self._held

    def restore(self, held: Scored, parts: Sequence[str]) -> None:
        """Be as one was that held these."""
        self._held, self.parts = held, list(parts)

    def rows(self) -> Iterator[Scored]:
        """Return all rows in order."""
        yield self._held


def no_limit(name: str | None) -> float:
    """Return the score that every set reaches at an end."""
    return -np.inf if name == HIGHEST else np.inf


def keys(name: str | None, found: Scored, *, cautious: bool) -> Floats:
    """Return what sets are put in order by: their scores, or less extreme ones.

    The cautious key is never nearer to its end than the score, so a set whose score does not reach
    a bound does not reach it by its key either.

    Parameters
    ----------
    name
        Of the end.
    found
        Sets with a spread, where one is cautious.
    cautious
        Whether to take the score less the spread at the upper end, and plus it at the lower one.
    """
    if not cautious:
        return found.score
    return found.score - found.spread if name == HIGHEST else found.score + found.spread


def within(name: str | None, key: Floats, bound: float) -> Bools:
    """Return which keys reach a bound at an end."""
    return key >= bound if name == HIGHEST else key <= bound


def in_order(name: str | None, found: Scored, *, cautious: bool) -> Ints:
    """Return the rows of distinct sets in the order of an end; see `keys`."""
    key = keys(name, found, cautious=cautious)
    order = np.lexsort((*found.sets.T[::-1], -key if name == HIGHEST else key))
    ordered = found.sets[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    rows: Ints = order[new]
    return rows


def no_sets(width: int) -> Scored:
    """Return no sets."""
    nothing = np.zeros(0, dtype=np.float32)
    return Scored(np.zeros((0, width), dtype=np.int64), nothing, nothing)


def joined(pieces: Sequence[Scored]) -> Scored:
    """Return several pieces as one."""
    sets, score, spread = zip(*pieces, strict=True)
    return Scored(np.concatenate(sets), np.concatenate(score), np.concatenate(spread))


def taken(found: Scored, rows: np.ndarray) -> Scored:
    """Return some rows, by place or by mask."""
    return Scored(found.sets[rows], found.score[rows], found.spread[rows])


def padded(found: Scored, width: int) -> Scored:
    """Return sets with their genes ascending and padded in front with -1."""
    sets = np.full((len(found.sets), width), -1, dtype=np.int64)
    sets[:, width - found.sets.shape[1] :] = np.sort(found.sets, axis=1)
    return Scored(sets, found.score, found.spread)


HELD = 1_000_000
"""Rows that are held in memory before they become a part."""


class Beyond:
    """All sets of one end whose score reaches a limit.

    Parameters
    ----------
    name
        ``lowest``, ``highest``, or None for all sets from the lowest score up.
    limit
        The score that they must reach; none where not given.
    width
        Genes of the largest set.
    folder
        Where parts are put.
    prefix
        How their names begin.
    most
        Rows to hold before they become a part.
    cautious
        As in `kept.keys`.
    """

    def __init__(
        self,
        name: str | None,
        width: int,
        folder: Path,
        prefix: str,
        *,
        limit: float | None = None,
        most: int = HELD,
        cautious: bool = False,
    ) -> None:
        self.name = name
        self._cautious = cautious
        self.parts: list[str] = []
        self._limit = no_limit(name) if limit is None else limit
        self._folder, self._prefix, self._most = folder, prefix, most
        self._width = width
        self._pieces: list[Scored] = []
        self._n_held = 0

    @property
    def bound(self) -> float:
        """The limit."""
        return self._limit

    def offer(self, found: Scored) -> None:
        """Keep what reaches the limit; every set is offered once."""
        key = keys(self.name, found, cautious=self._cautious)
        wanted = within(self.name, key, self._limit)
        if not wanted.any():
            return
        self._pieces.append(taken(found, wanted))
        self._n_held += len(self._pieces[-1].score)
        if self._n_held >= self._most:
            part = f"{self._prefix}-{len(self.parts):05d}.arrow"
            write_scored(self._folder / part, self._sorted())
            self.parts.append(part)
            self._pieces, self._n_held = [], 0

    def held(self) -> Scored:
        """Return the rows that are in no part yet."""
        return joined([no_sets(self._width), *self._pieces])

    def restore(self, held: Scored, parts: Sequence[str]) -> None:
        """Be as one was that held these."""
        self._pieces, self._n_held, self.parts = [held], len(held.score), list(parts)

    def rows(self) -> Iterator[Scored]:
        """Return all rows in order, in pieces; of every part no more is read than is needed."""
        sources = [batches(self._folder / part) for part in self.parts]
        sources.append(iter([self._sorted()]))
        yield from merged(self.name, sources, cautious=self._cautious)

    def _sorted(self) -> Scored:
        held = self.held()
        return taken(held, in_order(self.name, held, cautious=self._cautious))


def merged(
    name: str | None, sources: Sequence[Iterator[Scored]], *, cautious: bool
) -> Iterator[Scored]:
    """Return rows in the order of an end, out of several sources that are each in that order.

    Parameters
    ----------
    name
        Of the end.
    sources
        Pieces in order. A set that several have is given once.
    cautious
        As in `kept.keys`.
    """
    heads = [(source, piece) for source in sources if (piece := _next(source)) is not None]
    while heads:
        ends = joined([taken(piece, np.array([-1])) for _, piece in heads])
        # No row that is still to be read comes before the earliest of the last ones that were.
        last = taken(ends, in_order(name, ends, cautious=cautious)[:1])
        ready, rest = [], []
        for source, piece in heads:
            n = _up_to(name, piece, last, cautious=cautious)
            ready.append(taken(piece, np.arange(n)))
            left = taken(piece, np.arange(n, len(piece.score))) if n < len(piece.score) else None
            left = _next(source) if left is None else left
            if left is not None:
                rest.append((source, left))
        first = joined(ready)
        yield taken(first, in_order(name, first, cautious=cautious))
        heads = rest


def _next(source: Iterator[Scored]) -> Scored | None:
    """Return the next piece that is not empty."""
    return next((piece for piece in source if len(piece.score)), None)


def _up_to(name: str | None, piece: Scored, last: Scored, *, cautious: bool) -> int:
    """Return how many rows of a piece in order come before a row, or are that row."""
    sign = -1 if name == HIGHEST else 1
    key = sign * keys(name, piece, cautious=cautious)
    bound = sign * keys(name, last, cautious=cautious)[0]
    before, ties = np.searchsorted(key, bound, "left"), np.searchsorted(key, bound, "right")
    equal = piece.sets[before:ties].tolist()
    row = last.sets[0].tolist()
    return int(before) + sum(1 for genes in equal if genes <= row)
