"""The strategy `delta`: every mutant as an exact difference from the wild type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import numpy as np
import torch

from deltacell.arrays import Bools, Ints, offsets_of
from deltacell.propagate.hop import GENE, Aggregate, Hop, Message, sizes_of
from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.shared import (
    ChangedHop,
    ChangedMessage,
    Places,
    Shared,
    Tile,
    entries_of,
    everywhere,
)

COVERED = 8
"""So many times more entries than rows that have one, and they are taken to reach every row."""


@dataclass(frozen=True)
class Delta(Shared):
    """The wild type once, and of every mutant only what is different.

    A mutant's vectors are ``X = X_wt + D``, and D is 0 but on changed rows. A hop's sums are
    ``A X = A X_wt + A D``: in the first hop D is the deleted genes, and a few rows change; from hop
    to hop there are more, over each relation those alone that hear from a changed one. Where that
    is nearly all, a whole product takes its place, as in `Shared`. Rows that do not change are the
    wild type's, in value and in gradient: what comes back to them is added up over the batch and
    goes through the wild type's products once.

    Costs decide which of two exact ways is taken. To gather a row of a list and add to it takes as
    long as to multiply it with `moved` further columns of weights, and to find an entry of a
    difference on the host as long as to multiply `found` numbers by it.
    """

    moved: float = 22.6
    found: float = 600.0
    name: ClassVar[str] = "delta"

    def _tile(self, hops: Sequence[Hop], lost: Mapping[str, Ints], t: int) -> Tile:
        """Find what is different in t mutants, and the cheapest way to compute it.

        A node's new vector is the wild type's unless its own vector or one that it hears from is
        changed. More than that is found where computing it costs less than leaving it out.
        """
        sizes = sizes_of(hops)
        # What is changed or deleted; None is everything.
        now: dict[str, Bools | None] = {k: _mask(lost[k], n * t) for k, n in sizes.items()}
        found = []
        for hop in hops:
            finder = _Finder(self, hop, lost[hop.target], now, t)
            found.append(finder.found())
            now[hop.target] = finder.changed
        changed, gone, read = now[GENE], lost[GENE], None
        # The pool of no genes at all is nothing that could be written as a difference.
        if changed is not None and (np.bincount(gone % t, minlength=t) < sizes[GENE]).all():
            of = np.flatnonzero(changed)
            living = ~np.isin(of, gone, assume_unique=True)
            read = Places.of(of, t), torch.from_numpy(of % t), torch.from_numpy(living)
        return replace(super()._tile(hops, lost, t), hops=tuple(found), read=read)


class _Finder:
    """Finds what one hop changes, and in `changed` where what is changed or deleted then is."""

    def __init__(
        self, costs: Delta, hop: Hop, gone: Ints, now: Mapping[str, Bools | None], t: int
    ) -> None:
        self.costs, self.hop, self.gone, self.t = costs, hop, gone, t
        self.own = now[hop.target]
        kinds = dict.fromkeys(a.source for a in hop.aggregates)
        self.sources = {k: None if (m := now[k]) is None else np.flatnonzero(m) for k in kinds}
        self.changed: Bools | None = None

    def found(self) -> ChangedHop:
        computed = list(map(self._computed, self.hop.messages))
        if all(c is not None for c in computed):
            self.changed = np.logical_or.reduce(cast(list[Bools], computed))
        messages = tuple(map(self._message, self.hop.messages, computed))
        sources = {k: _places(at, self.t) for k, at in self.sources.items()}
        changed = None if self.changed is None else np.flatnonzero(self.changed)
        found = ChangedHop(messages, _places(changed, self.t), sources)
        if self.changed is not None:
            self.changed[self.gone] = True
        return found

    def _computed(self, message: Message) -> Bools | None:
        """Return where a message has to be computed; None is everywhere."""
        if self.own is None:
            return None
        mask = np.logical_or.reduce([self.own, *map(self._reached, message.aggregates)])
        mask[self.gone] = False
        columns = sum(p.numel() for p in message.parameters) / self.hop.width
        listed = columns + self.costs.moved * len(message.aggregates)
        return mask if np.count_nonzero(mask) * listed < len(mask) * columns else None

    def _reached(self, a: Aggregate) -> Bools:
        """Return which targets hear from a changed or deleted source."""
        t, sources, hearing = self.t, self.sources[a.source], np.diff(a.matrix.indptr) > 0
        if sources is None or self._entries_from(a, sources) > COVERED * t * hearing.sum():
            return np.repeat(hearing, t)
        source, target, _ = entries_of(a.matrix, sources // t)
        return _mask(target * t + (sources % t)[source], len(hearing) * t)

    def _entries_from(self, a: Aggregate, sources: Ints) -> int:
        return int(np.diff(a.matrix.transpose.indptr)[sources // self.t].sum())

    def _message(self, message: Message, computed: Bools | None) -> ChangedMessage:
        if computed is None:
            return everywhere(message)
        t, changed, taken = self.t, self.changed, None
        into = at = np.flatnonzero(computed)
        rest = ~computed if changed is None else changed & ~computed
        rest[self.gone] = False
        others = new_rows = np.flatnonzero(rest)
        if changed is not None:
            number = np.cumsum(changed) - 1
            into, new_rows = number[into], number[others]
        if len(others):
            taken = torch.from_numpy(new_rows), torch.from_numpy(others // t)
        differences = tuple(self._difference(a, computed) for a in message.aggregates)
        return ChangedMessage(Places.of(at, t), differences, torch.from_numpy(into), taken)

    def _difference(self, a: Aggregate, computed: Bools) -> SparseMatrix | None:
        """Return the difference of the sums at the computed places, where that costs less."""
        t, matrix, sources = self.t, a.matrix, self.sources[a.source]
        if sources is None:
            return None
        n_entries = self._entries_from(a, sources)
        saved = self.hop.width * (matrix.n_entries * t - n_entries)
        if n_entries * self.costs.found >= saved:
            return None
        source, node, value = entries_of(matrix, sources // t)
        target = node * t + (sources % t)[source]
        # Deleted targets are not computed; nothing goes to them.
        kept = computed[target]
        number = np.cumsum(computed) - 1
        values = matrix.transpose.values
        by_source = SparseMatrix(
            offsets_of(np.bincount(source[kept], minlength=len(sources))),
            number[target[kept]].astype(np.int32),
            None if values is None else values[value[kept]],
            n_columns=int(np.count_nonzero(computed)),
        )
        return by_source.transpose


def _places(at: Ints | None, t: int) -> Places | None:
    return None if at is None else Places.of(at, t)


def _mask(at: Ints, size: int) -> Bools:
    mask = np.zeros(size, dtype=bool)
    mask[at] = True
    return mask
