"""The strategy `late`: deletions that a single hop sees, at the price of the rows they touch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch.utils.checkpoint import checkpoint

from deltacell.errors import InputError
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.epistasis import interaction_of_quotient
from deltacell.propagate.hop import ALL, GENE, Hop, Message, State, gradients_of, slices
from deltacell.propagate.pool import Readout, Terms
from deltacell.propagate.protocol import Mutants, WildType
from deltacell.propagate.shared import autocast_here
from deltacell.propagate.touched import (
    Interactions,
    Removed,
    Shares,
    Touched,
    Units,
    signs,
    touched_by,
)
from deltacell.propagate.wild import WildTypeInParts, wild_type_in_parts
from deltacell.propagate.workers import in_workers, one_core, workers_for

ROWS_AT_A_TIME = 2208
"""So many rows of 64 numbers, and what is computed from them, stay in a core's cache."""


def is_late(hops: Sequence[Hop]) -> bool:
    """Whether mutants see a single hop, in which genes hear from genes over plain relations."""
    return len(hops) == 1 and all(
        a.source == GENE == hops[0].target and a.matrix.values is None for a in hops[0].aggregates
    )


@dataclass(frozen=True)
class Late:
    r"""The units of `touched_by` and nothing else.

    The pool of a cell is ``p = sum_i w_i v_i`` with weights that add up to 1 in the wild type. With
    ``w'_i, v'_i`` for a mutant's, scaled alike, ``z = N / D`` with
    ``N = sum_i (w_i (v_i - p) - w'_i (v'_i - p))`` and ``D = 1 + sum_i (w'_i - w_i)``. Rows that a
    deletion does not touch add nothing to either sum, and what a row adds depends on the deletions
    that touch it alone. So both sums are found once for each gene of the batch; a set adds those of
    its genes, and corrects them on the rows that two or more of them touch.

    There the interactions of both sums are formed row by row in float64, which gives `epistasis`,
    see `interaction_of_quotient`.

    Parameters
    ----------
    workers
        Threads. Where not given, on a CPU as many as PyTorch may use; elsewhere one.
    rows_at_a_time
        How many rows go through a row-wise function together.
    """

    workers: int | None = None
    rows_at_a_time: int = ROWS_AT_A_TIME

    def __post_init__(self) -> None:
        for what, given in (("workers", self.workers), ("rows_at_a_time", self.rows_at_a_time)):
            if given is not None and given < 1:
                raise InputError(f"{what} is {given}; expected 1 or more")

    @property
    def name(self) -> str:
        """What it is called in configurations."""
        return "late"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Touched:
        """Find on the host which rows each deletion touches."""
        if not is_late(hops):
            raise InputError(
                "the propagation 'late' is for mutants that see one layer over the relations",
                fix="Set model.mutant_layers=1 and model.metabolism=false, or propagation=auto.",
            )
        return touched_by(hops[0], deleted.to("cpu"))

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildTypeInParts:
        """Propagate the wild type, and keep what lies between its vectors."""
        most = max((len(hop.aggregates) for hop in hops), default=1)
        workers = self._workers(state[GENE].device, most)
        return wild_type_in_parts(hops, state, self.rows_at_a_time, workers)

    def mutants(
        self,
        hops: Sequence[Hop],
        wild_type: WildType,
        deleted: Deleted,
        readout: Readout,
        *,
        vectors: bool = False,
    ) -> Mutants:
        """Propagate what the deletions touch."""
        if not isinstance(deleted, Touched):
            deleted = self.prepare(hops, deleted).to(wild_type.last[GENE].device)
        if not isinstance(wild_type, WildTypeInParts):
            wild_type = self.wild_type(hops, wild_type.first)
        parts = _Parts.of(wild_type)
        workers = self._workers(parts.x.device, 1 << 20)
        rows = _Rows(hops[0], readout, self.rows_at_a_time, workers)
        wild = _WildPool.of(readout.terms(parts.last, ALL))
        moved = rows.moved(parts, deleted.units)
        n, d = rows.pooled(parts.last, moved, deleted.units, wild)
        by_gene = _Sums.of(n, d, deleted)
        epistasis = None
        if deleted.shares is not None:
            epistasis = rows.epistasis(parts, deleted.shares, by_gene, wild, len(deleted))
        z = by_gene.quotient(deleted, wild.pooled)
        made = _vectors(parts.last, moved, deleted) if vectors else None
        return Mutants(z, wild.pooled, made, epistasis)

    def _workers(self, device: torch.device, items: int) -> int:
        return workers_for(device, items) if self.workers is None else min(self.workers, items)


class _Parts(NamedTuple):
    """The wild type before, in and after the hop, [n, hidden]; sums and messages by relation."""

    x: torch.Tensor
    sums: tuple[torch.Tensor, ...]
    messages: tuple[torch.Tensor, ...] | None
    last: torch.Tensor

    @classmethod
    def of(cls, wild_type: WildTypeInParts) -> _Parts:
        """Take them from the wild type."""
        messages = wild_type.messages[0]
        return cls(
            wild_type.first[GENE],
            # At once: the gradient of a part would be as large as the whole.
            wild_type.sums[0].unbind(),
            None if messages is None else messages.unbind(),
            wild_type.last[GENE],
        )


class _WildPool(NamedTuple):
    """The wild type's gates and weights, float64 [n], its values [n, hidden] and pool [hidden]."""

    total: torch.Tensor
    weight: torch.Tensor
    value: torch.Tensor
    pooled: torch.Tensor

    @classmethod
    def of(cls, terms: Terms) -> _WildPool:
        """Pool the terms of all genes."""
        gate = terms.gate.double()
        weight = gate.softmax(0)
        with torch.autocast(gate.device.type, enabled=False):
            pooled = weight.to(terms.value.dtype) @ terms.value
        return cls(gate.logsumexp(0), weight, terms.value, pooled)


class _Sums(NamedTuple):
    """N and D of single genes, and those of genotypes: [g, hidden], [g], [b, hidden], [b]."""

    gene_n: torch.Tensor
    gene_d: torch.Tensor
    n: torch.Tensor
    d: torch.Tensor

    @classmethod
    def of(cls, n: torch.Tensor, d: torch.Tensor, touched: Touched) -> _Sums:
        """Add up what units add."""
        singles, batch = len(touched.of_gene), len(touched)

        def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            of_gene = x.new_zeros(len(touched.genes), *x.shape[1:])
            of_gene = of_gene.index_add(0, touched.of_gene, x[:singles])
            whole = x.new_zeros(batch, *x.shape[1:])
            whole = whole.index_add(0, touched.owner, of_gene.index_select(0, touched.members))
            whole = whole.index_add(0, touched.joint_owner, x[singles:])
            instead = x.index_select(0, touched.instead)
            return of_gene, whole.index_add(0, touched.instead_owner, instead, alpha=-1)

        gene_n, whole_n = both(n)
        gene_d, whole_d = both(d)
        return cls(gene_n, gene_d, whole_n, whole_d)

    def quotient(self, touched: Touched, pooled: torch.Tensor) -> torch.Tensor:
        """Return z; a mutant without a living gene has an empty pool."""
        total = 1 + self.d
        if touched.whole is None:
            return self.n / total.to(self.n.dtype).unsqueeze(1)
        z = self.n / total.masked_fill(touched.whole, 1).to(self.n.dtype).unsqueeze(1)
        return torch.where(touched.whole.unsqueeze(1), pooled, z)


@dataclass(frozen=True, eq=False)
class _Rows:
    """What row-wise functions make of units."""

    hop: Hop
    readout: Readout
    rows_at_a_time: int
    workers: int

    def moved(self, parts: _Parts, units: Units) -> torch.Tensor:
        """Return how far the new vectors are from the wild type's, [u, hidden]."""
        if self.hop.messages is None or parts.messages is None:
            new = self._updated(self.hop, parts, units)
            return new - parts.last.index_select(0, units.rows)
        moved = parts.last.new_zeros(len(units.rows), parts.last.shape[1])
        for k, (message, removed) in enumerate(zip(self.hop.messages, units.removed, strict=True)):
            new = self._messages(k, message, parts, removed)
            old = parts.messages[k].index_select(0, removed.rows)
            moved = moved.index_add(0, removed.units, (new - old).to(moved.dtype))
        return moved

    def pooled(
        self, last: torch.Tensor, moved: torch.Tensor, units: Units, wild: _WildPool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what each unit adds to N [u, hidden] and D [u]."""
        job = _PoolJob(self.readout, units, self.rows_at_a_time, self.workers)
        parameters = tuple(self.readout.parameters())
        made = _Pooled.apply(job, moved, last, *wild, *parameters)  # type: ignore[no-untyped-call]
        return cast(tuple[torch.Tensor, torch.Tensor], made)

    def epistasis(
        self, parts: _Parts, shares: Shares, by_gene: _Sums, wild: _WildPool, batch: int
    ) -> torch.Tensor:
        """Return the part of z that no smaller set explains, float64 [b, hidden]."""
        hop, terms_of = self.hop.in_float64(), self.readout.in_float64()
        sums = tuple(x.double() for x in parts.sums)
        wide = _Parts(parts.x.double(), sums, None, parts.last.double())
        with torch.autocast(parts.x.device.type, enabled=False):
            vectors = self._in_float64(hop, wide, shares)
            terms = terms_of(vectors, shares.units.rows)
            weight = (terms.gate - wild.total).exp().masked_fill(~shares.units.living, 0)
            value = weight.unsqueeze(1) * (wild.pooled.double() - terms.value)
            result = value.new_zeros(batch, value.shape[1])
            for of_size in shares.of_size:
                found = self._of_size(of_size, weight, value, by_gene)
                result = result.index_copy(0, of_size.genotypes, found)
        return result

    def _of_size(
        self, sets: Interactions, weight: torch.Tensor, value: torch.Tensor, sums: _Sums
    ) -> torch.Tensor:
        b, k = sets.genes.shape
        d, n = weight.new_zeros(b << k), value.new_zeros(b << k, value.shape[1])
        for size, (units, places) in enumerate(sets.subsets, 2):
            sign = signs(size).to(weight.device)
            of_rows = weight[units] @ sign
            d = d.index_add(0, places, of_rows)
            mixed = (value[units] * sign.view(1, -1, 1)).sum(1)
            n = n.index_add(0, places, mixed)
        genotype = torch.arange(b, device=n.device).unsqueeze(1)
        single = 1 << torch.arange(k, device=n.device)
        at = (genotype * (1 << k) + single).flatten()
        d = d.index_copy(0, at, sums.gene_d.index_select(0, sets.genes.flatten()))
        n = n.index_copy(0, at, sums.gene_n.double().index_select(0, sets.genes.flatten()))
        return interaction_of_quotient(n.view(b, 1 << k, -1), d.view(b, 1 << k))

    def _in_float64(self, hop: Hop, parts: _Parts, shares: Shares) -> torch.Tensor:
        """Return the vectors of units of shared rows, all subsets of them, in float64."""
        units = shares.units
        if hop.messages is None:
            return self._updated(hop, parts, _all_changed(shares))
        vectors = parts.last.index_select(0, units.rows)
        for k, (message, removed) in enumerate(zip(hop.messages, units.removed, strict=True)):
            _, changed, new, old = shares.same[k]
            found = self._messages(k, message, parts, removed)
            vectors = vectors.index_add(0, changed, found[new] - found[old])
        return vectors

    def _messages(self, k: int, message: Message, parts: _Parts, removed: Removed) -> torch.Tensor:
        scale = None
        if self.hop.aggregates[k].mean:
            scale = removed.left.clamp(min=1).to(parts.sums[k].dtype).reciprocal().unsqueeze(1)
        job = _Job(message, removed, scale, self.rows_at_a_time, self.workers)
        made = _MessagesAt.apply(job, parts.x, parts.sums[k], *message.parameters)  # type: ignore[no-untyped-call]
        return cast(torch.Tensor, made)

    def _updated(self, hop: Hop, parts: _Parts, units: Units) -> torch.Tensor:
        """Return the new vectors of units by a hop whose update is not a sum, [u, hidden]."""
        received = []
        for k, (a, removed) in enumerate(zip(hop.aggregates, units.removed, strict=True)):
            heard = parts.sums[k].index_select(0, units.rows)
            gone = parts.x.index_select(0, removed.genes).to(heard.dtype)
            at = removed.units.index_select(0, removed.entry)
            heard = heard.index_add(0, at, gone, alpha=-1)
            if a.mean:
                left = a.matrix.row_counts(device=heard.device, dtype=heard.dtype)
                left = left.index_select(0, units.rows)
                left[removed.units, 0] = removed.left.to(heard.dtype)
                heard = heard / left.clamp(min=1)
            received.append(heard)
        own, all_received = parts.x.index_select(0, units.rows), torch.stack(received)

        def update(own: torch.Tensor, heard: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            return hop.update(own.unsqueeze(1), heard.unsqueeze(2), rows).squeeze(1).to(own.dtype)

        made = [
            cast(
                torch.Tensor,
                checkpoint(
                    update,
                    own[part],
                    all_received[:, part],
                    units.rows[part],
                    use_reentrant=False,
                    preserve_rng_state=False,
                ),
            )
            for part in slices(len(own), self.rows_at_a_time)
        ]
        return torch.cat(made) if made else own


def _all_changed(shares: Shares) -> Units:
    """Return the units of shared rows with what each no longer receives over every relation."""
    removed = []
    for of_relation, (_, changed, new, _) in zip(shares.units.removed, shares.same, strict=True):
        # What a unit no longer receives is what the unit with the same message does not.
        entries = torch.bincount(of_relation.entry, minlength=len(of_relation.rows))
        starts = entries.cumsum(0) - entries
        lengths = entries[new]
        entry = torch.repeat_interleave(torch.arange(len(new), device=new.device), lengths)
        within = torch.arange(len(entry), device=new.device) - (lengths.cumsum(0) - lengths)[entry]
        removed.append(
            Removed(
                changed,
                shares.units.rows[changed],
                of_relation.genes[starts[new][entry] + within],
                entry,
                of_relation.left[new],
            )
        )
    return Units(shares.units.rows, shares.units.living, tuple(removed))


@dataclass(frozen=True, eq=False)
class _Job:
    message: Message
    removed: Removed
    scale: torch.Tensor | None
    rows_at_a_time: int
    workers: int

    def pieces(self) -> list[tuple[slice, slice]]:
        """Return a few rows at a time, each with its entries of removed genes."""
        parts = slices(len(self.removed.rows), self.rows_at_a_time)
        bounds = torch.tensor([0, *(part.stop for part in parts)], device=self.removed.entry.device)
        at = torch.searchsorted(self.removed.entry, bounds).tolist()
        return [(part, slice(at[i], at[i + 1])) for i, part in enumerate(parts)]

    def heard(
        self, x: torch.Tensor, sums: torch.Tensor, part: slice, entries: slice
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the vectors of some rows, and what they receive without the deleted genes."""
        rows = self.removed.rows[part]
        heard = sums.index_select(0, rows)
        gone = x.index_select(0, self.removed.genes[entries]).to(heard.dtype)
        heard.index_add_(0, self.removed.entry[entries] - part.start, gone, alpha=-1)
        if self.scale is not None:
            heard.mul_(self.scale[part])
        return x.index_select(0, rows), heard


class _MessagesAt(torch.autograd.Function):
    """The messages of one relation at some rows, [m, hidden]; the backward computes them again."""

    @staticmethod
    def forward(
        ctx: Any, job: _Job, x: torch.Tensor, sums: torch.Tensor, *parameters: torch.Tensor
    ) -> torch.Tensor:
        autocast = autocast_here(x.device.type)
        made = sums.new_empty(len(job.removed.rows), x.shape[1])

        def one(_: int, piece: tuple[slice, slice]) -> None:
            with torch.no_grad(), autocast():
                own, heard = job.heard(x, sums, *piece)
                made[piece[0]] = job.message.function(own, heard, job.removed.rows[piece[0]])

        with one_core(job.workers):
            in_workers(one, job.pieces(), job.workers)
        ctx.job, ctx.autocast = job, autocast
        ctx.save_for_backward(x, sums, *parameters)
        return made

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        job: _Job = ctx.job
        x, sums, *parameters = ctx.saved_tensors
        pieces = job.pieces()
        workers = max(1, min(job.workers, len(pieces)))
        by_x = [torch.zeros_like(x) for _ in range(workers)]
        by_sums = [torch.zeros_like(sums) for _ in range(workers)]
        by: list[list[torch.Tensor | None]] = [[None] * len(parameters) for _ in range(workers)]

        def one(worker: int, piece: tuple[slice, slice]) -> None:
            part, entries = piece
            rows = job.removed.rows[part]
            with torch.no_grad(), ctx.autocast():
                own, heard = job.heard(x, sums, part, entries)
                by_own, by_heard, others = job.message.backward(own, heard, rows, gradient[part])
                if by_own is not None:
                    by_x[worker].index_add_(0, rows, by_own.to(x.dtype))
                if by_heard is not None:
                    if job.scale is not None:
                        by_heard = by_heard * job.scale[part]
                    by_sums[worker].index_add_(0, rows, by_heard.to(sums.dtype))
                    of_entry = by_heard.index_select(0, job.removed.entry[entries] - part.start)
                    genes = job.removed.genes[entries]
                    by_x[worker].index_add_(0, genes, of_entry.to(x.dtype), alpha=-1)
                by[worker] = [_sum(a, b) for a, b in zip(by[worker], others, strict=True)]

        with one_core(workers):
            in_workers(one, pieces, workers)
        for other in range(1, workers):
            by_x[0] += by_x[other]
            by_sums[0] += by_sums[other]
            by[0] = [_sum(a, b) for a, b in zip(by[0], by[other], strict=True)]
        return None, by_x[0], by_sums[0], *by[0]


@dataclass(frozen=True, eq=False)
class _PoolJob:
    readout: Readout
    units: Units
    rows_at_a_time: int
    workers: int

    def added(
        self, part: slice, vectors: torch.Tensor, *wild: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what some units add to N and D, from their vectors and the wild type's pool."""
        total, weight, value, pooled = wild
        terms = self.readout.terms(vectors, self.units.rows[part])
        new = (terms.gate.double() - total).exp() * self.units.living[part]
        change = new - weight
        by_weight = change.to(value.dtype).unsqueeze(1) * (pooled - value)
        return by_weight + new.to(value.dtype).unsqueeze(1) * (value - terms.value), change


class _Pooled(torch.autograd.Function):
    """What units add to N [u, hidden] and D [u]; the backward computes it again."""

    @staticmethod
    def forward(
        ctx: Any, job: _PoolJob, moved: torch.Tensor, last: torch.Tensor, *others: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total, weight, value, pooled, *_ = others
        n, d = value.new_empty(moved.shape), weight.new_empty(len(moved))

        def one(_: int, part: slice) -> None:
            rows = job.units.rows[part]
            with torch.no_grad():
                vectors = last.index_select(0, rows).add_(moved[part])
                wild = total, weight.index_select(0, rows), value.index_select(0, rows), pooled
                n[part], d[part] = job.added(part, vectors, *wild)

        with one_core(job.workers):
            in_workers(one, slices(len(moved), job.rows_at_a_time), job.workers)
        ctx.job = job
        ctx.save_for_backward(moved, last, *others)
        return n, d

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, by_n: torch.Tensor, by_d: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        job: _PoolJob = ctx.job
        given, parameters = ctx.saved_tensors[:6], ctx.saved_tensors[6:]
        moved, last, total, weight, value, pooled = (x.detach() for x in given)
        parts = slices(len(moved), job.rows_at_a_time)
        workers = max(1, min(job.workers, len(parts)))
        by_moved = torch.empty_like(moved)
        by_rows = [
            [torch.zeros_like(last), torch.zeros_like(weight), torch.zeros_like(value)]
            for _ in range(workers)
        ]
        wholes = [total, pooled, *parameters]
        by_whole: list[list[torch.Tensor | None]] = [[None] * len(wholes) for _ in range(workers)]

        def one(worker: int, part: slice) -> None:
            rows = job.units.rows[part]
            with torch.enable_grad():
                vectors = last.index_select(0, rows).add_(moved[part]).requires_grad_()
                own = [x.index_select(0, rows).requires_grad_() for x in (weight, value)]
                whole = [x.detach().requires_grad_() for x in (total, pooled)]
                n, d = job.added(part, vectors, whole[0], *own, whole[1])
                # One number to go back from: the two gradients times what they are of.
                made = (n * by_n[part]).sum() + (d * by_d[part]).sum()
            found = gradients_of(made, [vectors, *own, *whole, *parameters], torch.ones_like(made))
            by_vectors = found[0]
            assert by_vectors is not None
            by_moved[part] = by_vectors
            for sums, gradient in zip(by_rows[worker], found[:3], strict=True):
                assert gradient is not None
                sums.index_add_(0, rows, gradient.to(sums.dtype))
            by_whole[worker] = [
                _sum(a, b) for a, b in zip(by_whole[worker], found[3:], strict=True)
            ]

        with one_core(workers):
            in_workers(one, parts, workers)
        for other in range(1, workers):
            for mine, theirs in zip(by_rows[0], by_rows[other], strict=True):
                mine += theirs
            by_whole[0] = [_sum(a, b) for a, b in zip(by_whole[0], by_whole[other], strict=True)]
        by_last, by_weight, by_value = by_rows[0]
        by_total, by_pooled, *by_parameters = by_whole[0]
        return None, by_moved, by_last, by_total, by_weight, by_value, by_pooled, *by_parameters


def _sum(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
    if a is None or b is None:
        return a if b is None else b
    return a + b


def _vectors(last: torch.Tensor, moved: torch.Tensor, touched: Touched) -> torch.Tensor:
    """Return the genes' vectors in every mutant, [b, n, hidden]."""
    made = last.expand(len(touched), *last.shape).clone()
    new = last.index_select(0, touched.units.rows) + moved
    new = new.masked_fill(~touched.units.living.unsqueeze(1), 0)
    for b, member in zip(touched.owner.tolist(), touched.members.tolist(), strict=True):
        units = slice(*touched.gene_starts[member : member + 2].tolist())
        made[b, touched.units.rows[units]] = new[units]
    singles = len(touched.of_gene)
    made[touched.joint_owner, touched.units.rows[singles:]] = new[singles:]
    return made
