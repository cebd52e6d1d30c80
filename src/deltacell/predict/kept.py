"""What a ranking keeps of the sets it scores: in memory, on the disk, and by several processes."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from deltacell.arrays import Floats, Ints
from deltacell.errors import InputError, StoreError
from deltacell.files import TEMPORARY, seal_of
from deltacell.predict.gene_sets import Scored
from deltacell.predict.ranking_file import DAMAGE, HIGHEST, KEY, differences, written

HELD = 1_000_000  # rows that an end holds in memory before they become a part
STATE = ".state"


def write_scored(
    path: str | os.PathLike[str],
    found: Scored,
    about: Mapping[str, Any] | None = None,
    *,
    rows_per_batch: int = 4096,
) -> None:
    """Write sets, in the order in which they will be read, to a sealed file."""
    n = len(found.score)
    starts = range(0, n, rows_per_batch)
    crc32 = [_crc32(found.take(slice(start, start + rows_per_batch))) for start in starts]
    held: dict[str, Any] = {"about": about, "crc32": crc32}
    held["seal"] = seal_of(held)
    flat = pa.array(np.ascontiguousarray(found.sets, dtype=np.int32).reshape(-1))
    table = pa.table(
        {
            "genes": pa.FixedSizeListArray.from_arrays(flat, found.sets.shape[1]),
            "score": pa.array(found.score),
            "spread": pa.array(found.spread, from_pandas=False),
        },
        metadata={KEY: json.dumps(held, ensure_ascii=False, sort_keys=True).encode()},
    )
    with (
        written(path, "the work so far") as temporary,
        pa.ipc.new_file(str(temporary), table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=rows_per_batch)


def read_scored(path: str | os.PathLike[str]) -> tuple[Scored, Any]:
    """Return all sets of a file, and what else it holds."""
    with _opened(path) as (reader, held):
        found = [_batch(reader, held, number) for number in range(len(held["crc32"]))]
        width = reader.schema.field("genes").type.list_size
    return Scored.join([Scored.none(width), *found]), held["about"]


def read_scored_about(path: str | os.PathLike[str]) -> Any:
    """Return what else a file of sets holds."""
    with _opened(path) as (_, held):
        return held["about"]


def read_batches(path: str | os.PathLike[str]) -> Iterator[Scored]:
    """Yield the sets of a file, a few thousand at a time; in between it is closed."""
    number, total = 0, 1
    while number < total:
        with _opened(path) as (reader, held):
            total = len(held["crc32"])
            found = _batch(reader, held, number) if number < total else None
        if found is not None:
            yield found
        number += 1


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[tuple[Any, dict[str, Any]]]:
    try:
        with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
            held = json.loads(reader.schema.metadata[KEY])
            if held["seal"] != seal_of(held) or reader.num_record_batches != len(held["crc32"]):
                raise ValueError("its seal is broken")
            yield reader, held
    except DAMAGE as error:
        raise StoreError(
            f"the saved work is damaged ({error})",
            code="damaged-work",
            where=path,
            fix=f"Remove the folder {Path(path).parent} and rerun the command.",
        ) from error


def _batch(reader: Any, held: Mapping[str, Any], number: int) -> Scored:
    batch = reader.get_batch(number)
    genes = batch["genes"]
    found = Scored(
        genes.flatten().to_numpy().astype(np.int64).reshape(-1, genes.type.list_size),
        batch["score"].to_numpy(zero_copy_only=False).astype(np.float32),
        batch["spread"].to_numpy(zero_copy_only=False).astype(np.float32),
    )
    if _crc32(found) != held["crc32"][number]:
        raise ValueError("its checksum does not match")
    return found


def _crc32(found: Scored) -> int:
    crc = zlib.crc32(np.ascontiguousarray(found.sets, dtype=np.int32).data)
    for values in (found.score, found.spread):
        crc = zlib.crc32(np.ascontiguousarray(values, dtype=np.float32).data, crc)
    return crc


class End:
    """One end of a ranking: ``lowest``, ``highest``, or None for all sets from the lowest up.

    It keeps the first ``top`` sets, or without that all that reach the ``limit``, in files where
    memory does not hold them. With ``cautious``, sets are ordered by the score less extreme by its
    spread, which is never nearer to its end than the score: what a score does not reach, it does
    not reach either.
    """

    def __init__(
        self,
        name: str | None,
        width: int,
        *,
        top: int | None = None,
        limit: float | None = None,
        cautious: bool = False,
        folder: Path = Path(),
        prefix: str = "",
        most: int | None = None,
    ) -> None:
        self.name, self.top, self._cautious = name, top, cautious
        self._sign = -1 if name == HIGHEST else 1
        self._limit = self._sign * np.inf if limit is None else limit
        self._folder, self._prefix = folder, prefix
        self._most = HELD if most is None else most
        self._nothing = Scored.none(width)
        self._pieces: list[Scored] = []
        self._n_held = 0
        self.parts: list[str] = []  # names of the files that it has put rows into

    @property
    def bound(self) -> float:
        """The key of the last set where the end is full; the limit otherwise."""
        if self.top is None or self._n_held < self.top:
            return self._limit
        return float(self._keys(self._pieces[0].take(slice(-1, None)))[0])

    def offer(self, found: Scored) -> None:
        """Keep those of some sets that reach the bound; without ``top``, each is offered once."""
        wanted = self._sign * self._keys(found) <= self._sign * self.bound
        if not wanted.any():
            return
        self._pieces.append(found.take(wanted))
        self._n_held += int(wanted.sum())
        if self.top is not None:
            self.restore(self._sort(self.held()).take(slice(self.top)), [])
        elif self._n_held >= self._most:
            part = f"{self._prefix}-{len(self.parts):05d}.arrow"
            write_scored(self._folder / part, self._sort(self.held()))
            self.parts.append(part)
            self._pieces, self._n_held = [], 0

    def held(self) -> Scored:
        """Return the rows that are in memory."""
        return Scored.join([self._nothing, *self._pieces])

    def restore(self, held: Scored, parts: Sequence[str]) -> None:
        """Restore the state of an end that held these."""
        self._pieces, self._n_held, self.parts = [held], len(held.score), list(parts)

    def rows(self) -> Iterator[Scored]:
        """Yield all rows in order; of every file no more is read than is needed."""
        sources = [read_batches(self._folder / part) for part in self.parts]
        yield from self.merge([*sources, iter([self._sort(self.held())])])

    def merge(self, sources: Sequence[Iterator[Scored]]) -> Iterator[Scored]:
        """Yield rows in the order of this end, out of sources that are each in that order."""
        heads = [(source, piece) for source in sources if (piece := _next(source)) is not None]
        while heads:
            # No row still to be read comes before the earliest of the last ones that were.
            last = self._sort(Scored.join([piece.take(slice(-1, None)) for _, piece in heads]))
            ready, rest = [], []
            for source, piece in heads:
                n = self._up_to(piece, last)
                ready.append(piece.take(slice(n)))
                left = piece.take(slice(n, None)) if n < len(piece.score) else _next(source)
                if left is not None:
                    rest.append((source, left))
            yield self._sort(Scored.join(ready))
            heads = rest

    def _keys(self, found: Scored) -> Floats:
        return found.score + self._sign * found.spread if self._cautious else found.score

    def _sort(self, found: Scored) -> Scored:
        """Return the distinct sets in the order of this end; ties by their genes."""
        order: Ints = np.lexsort((*found.sets.T[::-1], self._sign * self._keys(found)))
        ordered = found.sets[order]
        new = np.ones(len(order), dtype=bool)
        new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        return found.take(order[new])

    def _up_to(self, piece: Scored, last: Scored) -> int:
        """Return how many rows of a piece in order come before the first of some, or are it."""
        key, bound = self._sign * self._keys(piece), self._sign * self._keys(last)[0]
        before, ties = np.searchsorted(key, bound, "left"), np.searchsorted(key, bound, "right")
        row: list[int] = last.sets[0].tolist()
        tied: list[list[int]] = piece.sets[before:ties].tolist()
        return int(before) + sum(genes <= row for genes in tied)


def _next(source: Iterator[Scored]) -> Scored | None:
    return next((piece for piece in source if len(piece.score)), None)


class Kept:
    """The ends of a ranking together."""

    def __init__(self, ends: Sequence[End]) -> None:
        self.ends = tuple(ends)

    @property
    def above(self) -> float:
        """The least score wanted at the upper end; inf where none is."""
        return max((end.bound for end in self.ends if end.name == HIGHEST), default=np.inf)

    @property
    def below(self) -> float:
        """The highest score wanted at the lower end; -inf where none is."""
        return min((end.bound for end in self.ends if end.name != HIGHEST), default=-np.inf)

    def offer(self, found: Scored) -> None:
        """Keep those of some sets that reach a bound; a score that is not finite is an error."""
        finite = np.isfinite(found.score)
        if not finite.all():
            raise InputError(
                f"the score of {int((~finite).sum()):,} of {len(finite):,} gene sets is not finite",
                code="score-not-finite",
                fix="The weights of a run are damaged or its training diverged: see its "
                "metrics.csv, and try --weights last or another run.",
            )
        for end in self.ends:
            end.offer(found)


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this is; they share a folder and need no connection."""

    rank: int = 0
    world: int = 1

    @classmethod
    def of_environment(cls) -> Ranks:
        """Return what torchrun, or whoever sets RANK and WORLD_SIZE, says."""
        given = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE")]
        if given == [None, None]:
            return cls()
        try:
            found = cls(*(int(value or "") for value in given))
        except ValueError:
            found = cls(-1, 0)
        if not 0 <= found.rank < found.world:
            raise InputError(
                f"RANK is {given[0]} and WORLD_SIZE is {given[1]}; expected both, as torchrun sets "
                "them",
                code="invalid-rank",
                fix="Start it with torchrun, or unset both.",
            )
        return found

    @property
    def is_first(self) -> bool:
        """Whether this process writes the ranking."""
        return self.rank == 0

    def name(self, rank: int | None = None) -> str:
        """Return the name of the files of a process, by default this one."""
        return f"rank-{self.rank if rank is None else rank}-of-{self.world}"


class Work:
    """The folder ``OUT.partial`` of a ranking, as one of its processes sees it.

    Each process has its own state there: the request, the number of pieces done, and what was kept
    of them. It is written whole or not at all, and never counts a piece as done before what was
    kept of it is there.
    """

    def __init__(
        self,
        out: Path,
        request: Mapping[str, Any],
        ranks: Ranks | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        self._out, self._request, self._overwrite = out, dict(request), overwrite
        self.folder = out.with_name(f"{out.name}.partial")
        self.ranks = ranks or Ranks()

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = self.folder / f"{self.ranks.name()}.lock"
            self._lock = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(
                f"the folder for work in progress cannot be made: {error.strerror or error}",
                code="cannot-write",
                where=self.folder,
                fix="Choose another place with --out.",
            ) from error
        try:
            self._take_lock()
            self._check()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "another process is working on this ranking",
                code="locked",
                where=self.folder,
                fix="Wait for it, or choose another file with --out.",
            ) from None
        except OSError:
            # Some network file systems have no locks, and ranking must still be possible there.
            pass

    def load(self, kept: Kept, rank: int | None = None) -> int:
        """Restore what a process kept, by default this one; return the number of pieces done."""
        state = self._state(rank)
        done = 0
        if state.exists():
            found, about = read_scored(state)
            starts = np.cumsum([0, *about["held"]])
            for i, (end, parts) in enumerate(zip(kept.ends, about["parts"], strict=True)):
                end.restore(found.take(slice(starts[i], starts[i + 1])), parts)
            done = int(about["done"])
        if rank is None:
            self._remove_leftovers({part for end in kept.ends for part in end.parts})
        return done

    def save(self, done: int, kept: Kept, *, finished: bool = False) -> None:
        """Save what is kept after so many pieces of this process."""
        held = [end.held() for end in kept.ends]
        about = {
            "request": self._request,
            "done": done,
            "finished": finished,
            "held": [len(one.score) for one in held],
            "parts": [end.parts for end in kept.ends],
        }
        write_scored(self._state(), Scored.join(held), about)

    def unfinished(self) -> list[int]:
        """Return the processes that have not saved that they are done with this request."""

        def finished(rank: int) -> bool:
            if not self._state(rank).exists():
                return False
            about = read_scored_about(self._state(rank))
            # What another request left there is about to be replaced by the process of that rank.
            return about["request"] == self._request and bool(about["finished"])

        return [rank for rank in range(self.ranks.world) if not finished(rank)]

    def remove(self) -> None:
        """Remove the folder: the ranking is written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _state(self, rank: int | None = None) -> Path:
        return self.folder / f"{self.ranks.name(rank)}{STATE}"

    def _check(self) -> None:
        """Raise where the folder holds work on something else, or with overwrite remove it."""
        for state in sorted(self.folder.glob(f"*{STATE}")):
            world = int(state.name.removesuffix(STATE).rpartition("-")[2])
            try:
                changed = differences(read_scored_about(state)["request"], self._request)
            except StoreError:
                if not self._overwrite:
                    raise
                changed = ["it is damaged"]
            if not changed and world == self.ranks.world:
                continue
            if self._overwrite:
                # Each process removes its own; the first those of processes that no longer exist.
                if state == self._state() or (self.ranks.is_first and world != self.ranks.world):
                    state.unlink(missing_ok=True)
            elif changed:
                raise InputError(
                    f"this is work on another request: {'; '.join(changed[:4])}",
                    code="other-request",
                    where=self.folder,
                    fix="Rerun the earlier command to resume it, choose another file with --out, "
                    "or discard that work with --overwrite.",
                )
            else:
                raise InputError(
                    f"this was started with {world} processes, and now there are "
                    f"{self.ranks.world}",
                    code="other-world",
                    where=self.folder,
                    fix=f"Resume it with {world}, or start anew with --overwrite.",
                )

    def _remove_leftovers(self, parts: set[str]) -> None:
        """Remove what a kill left behind: parts of this process that no state names."""
        mine = self.ranks.name()
        left = [file for file in self.folder.glob(f"{mine}.*.arrow") if file.name not in parts]
        left += self.folder.glob(f".{mine}.*")
        if self.ranks.is_first:
            left += self._out.parent.glob(f".{escape(self._out.name)}.*{TEMPORARY}")
        for file in left:
            file.unlink(missing_ok=True)
