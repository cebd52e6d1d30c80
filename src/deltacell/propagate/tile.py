"""A tile of mutants: what it is computed from, its vectors between hops, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from deltacell.propagate.changed import Piece, Places, Tile, pieces
from deltacell.propagate.hop import ALL, GENE, Aggregate, Hop, Message, gradients_of
from deltacell.propagate.pool import Readout, WildPool, changed_pool_difference, pool_difference
from deltacell.propagate.product import SparseMatrix, multiply, picked_rows
from deltacell.propagate.wild import InParts, WildTypeInParts


@dataclass(frozen=True)
class First:
    """The wild type's vectors before all hops, [n, hidden], of one kind of node."""

    kind: str


@dataclass(frozen=True)
class After:
    """The wild type's new vectors after a hop, [n, hidden], of the hop's target."""

    hop: int


@dataclass(frozen=True)
class SumsOf:
    """What the wild type receives in a hop, before a mean divides, [k, n, hidden]."""

    hop: int


@dataclass(frozen=True)
class MessagesOf:
    """The wild type's messages in a hop, [k, n, hidden]."""

    hop: int


@dataclass(frozen=True)
class PoolPart:
    """A part of the pooled wild type, see `WildPool`."""

    part: str


@dataclass(frozen=True)
class ParameterOf:
    """Parameter i of a hop's message k, or of its update, where k is 0."""

    hop: int
    k: int
    i: int


@dataclass(frozen=True)
class ReadoutParameter:
    """Parameter i of the readout."""

    i: int


Name = First | After | SumsOf | MessagesOf | PoolPart | ParameterOf | ReadoutParameter
Given = Mapping[Name, torch.Tensor]


def given_by(
    hops: Sequence[Hop], wild: WildTypeInParts, pool: WildPool, readout: Readout
) -> dict[Name, torch.Tensor]:
    """Return all that mutants are computed from.

    Parameters
    ----------
    hops, readout
        For their parameters.
    wild
        The wild type, with or without its parts.
    pool
        The pooled wild type.
    """
    given: dict[Name, torch.Tensor] = {First(kind): x for kind, x in wild.first.items()}
    for h, hop in enumerate(hops):
        given[After(h)] = wild.states[h + 1][hop.target]
        groups = [hop.parameters] if hop.messages is None else [m.parameters for m in hop.messages]
        for k, group in enumerate(groups):
            given |= {ParameterOf(h, k, i): p for i, p in enumerate(group)}
    given |= {SumsOf(h): x for h, x in enumerate(wild.sums) if x is not None}
    given |= {MessagesOf(h): x for h, x in enumerate(wild.messages) if x is not None}
    given |= {PoolPart(part): x for part, x in pool._asdict().items()}
    given |= {ReadoutParameter(i): p for i, p in enumerate(readout.parameters())}
    return given


class GradientSums:
    """Sums of gradients of what is given, by name; begun where something is added.

    Parameters
    ----------
    wanted
        What wants a gradient.
    """

    def __init__(self, wanted: Given) -> None:
        self._wanted = wanted
        self.sums: dict[Name, torch.Tensor] = {}

    def wants(self, name: Name) -> bool:
        """Whether a gradient is wanted."""
        return name in self._wanted

    def of(self, name: Name) -> torch.Tensor:
        """Return the sum so far, to be added to."""
        if name not in self.sums:
            like = self._wanted[name]
            self.sums[name] = torch.zeros(like.shape, dtype=like.dtype, device=like.device)
        return self.sums[name]

    def add(self, name: Name, gradient: torch.Tensor | None) -> None:
        """Add to a sum, where one is wanted."""
        if gradient is not None and self.wants(name):
            self.of(name).add_(gradient)

    def join(self, other: GradientSums) -> None:
        """Add the sums of another."""
        for name, gradient in other.sums.items():
            self.add(name, gradient)


@dataclass(frozen=True, eq=False)
class Job:
    """What the tiles of a batch have in common.

    Parameters
    ----------
    hops
        Message passing.
    parts
        The matrices of each hop's aggregates, in parts.
    readout
        What is pooled.
    rows_at_a_time
        How many rows go through a row-wise function together; None is all.
    autocast
        Makes the context that row-wise functions are called in.
    """

    hops: Sequence[Hop]
    parts: Sequence[tuple[InParts, ...]]
    readout: Readout
    rows_at_a_time: int | None
    autocast: Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, eq=False)
class Heard:
    """Sums over an aggregate where they are needed.

    Parameters
    ----------
    sums
        One row a place that is computed, or of all places.
    scale
        What makes means of sums, [n * t, 1]; None is 1.
    """

    sums: torch.Tensor
    scale: torch.Tensor | None

    def of(self, piece: Piece) -> torch.Tensor:
        """Return what is received at some places."""
        sums = self.sums[piece.part]
        return sums if self.scale is None else sums * piece.of(self.scale)


class TileState:
    """A tile of mutants and its vectors before each hop.

    Parameters
    ----------
    job
        What the tiles have in common.
    tile
        The mutants.
    given
        What they are computed from, without gradients.
    """

    def __init__(self, job: Job, tile: Tile, given: Given) -> None:
        self.job, self.tile, self.given, self.t = job, tile, given, tile.size
        self.changed: dict[int, torch.Tensor] = {}
        """After each hop, the new vectors where they are not the wild type's; all in full."""
        self._vectors: dict[First | After, torch.Tensor] = {}
        self._products: dict[tuple[First | After, SparseMatrix], torch.Tensor] = {}
        self._scales: dict[SparseMatrix, torch.Tensor] = {}

    def version(self, kind: str, h: int) -> First | After:
        """Return the name of the wild type's vectors before a hop."""
        for g in reversed(range(h)):
            if self.job.hops[g].target == kind:
                return After(g)
        return First(kind)

    def vectors(self, kind: str, h: int) -> torch.Tensor:
        """Return the mutants' vectors before a hop, [n * t, hidden], 0 where deleted."""
        version = self.version(kind, h)
        if version not in self._vectors:
            places = self.tile.hops[version.hop].changed if isinstance(version, After) else None
            if isinstance(version, After) and places is None:
                self._vectors[version] = self.changed[version.hop]
            else:
                x = self.spread(self.given[version])
                if isinstance(version, After) and places is not None:
                    x.index_copy_(0, places.at, self.changed[version.hop])
                self._vectors[version] = self.without_deleted(kind, x)
        return self._vectors[version]

    def remember(self, h: int, new: torch.Tensor) -> None:
        """Take the vectors after a hop, [n * t, hidden]."""
        places = self.tile.hops[h].changed
        self.changed[h] = new if places is None else new.index_select(0, places.at)
        self._vectors.pop(self.version(self.job.hops[h].target, h), None)
        self._vectors[After(h)] = new
        self._products.clear()

    def forget(self) -> None:
        """Drop what can be made again from `changed`."""
        self._vectors.clear()
        self._products.clear()

    def heard(self, h: int, k: int) -> Heard:
        """Return the sums over an aggregate of a hop, where the tile needs them."""
        a, received = self.job.hops[h].aggregates[k], self.tile.hops[h].received[k]
        x = self.vectors(a.source, h)
        scale = self.scale(a, x)
        if received.difference is not None:
            assert received.computed is not None
            sums = self.given[SumsOf(h)][k].index_select(0, received.computed.nodes)
            sums += received.difference.by_target.sums(self._difference(h, a.source, x))
            return Heard(sums, scale)
        own, *common = self.job.parts[h][k].of(a.matrix)
        sums = self.multiply(own, x)
        for part in common:
            key = (self.version(a.source, h), part)
            if key not in self._products:
                self._products[key] = self.multiply(part, x)
            sums += self._products[key]
        if received.computed is not None:
            sums = sums.index_select(0, received.computed.at)
        return Heard(sums, scale)

    def read(self, genes: torch.Tensor, pool: WildPool) -> torch.Tensor:
        """Return z [t, hidden] from the genes' vectors after all hops, [n * t, hidden]."""
        readout, read = self.job.readout, self.tile.read
        if read is None:
            terms = readout.terms(genes.view(-1, self.t, genes.shape[1]), ALL)
            living = torch.ones_like(terms.gate, dtype=torch.bool)
            if GENE in self.tile.deleted:
                living.view(-1).index_fill_(0, self.tile.deleted[GENE].at, False)
            return pool_difference(pool, terms, living)
        terms = readout.terms(genes.index_select(0, read.places.at), read.places.nodes)
        return changed_pool_difference(
            pool, terms, read.living, read.places.nodes, read.owner, self.t
        )

    def pool(self) -> WildPool:
        """Return the pooled wild type."""
        return WildPool(*(self.given[PoolPart(part)] for part in WildPool._fields))

    def spread(self, x: torch.Tensor) -> torch.Tensor:
        """Return a copy of the wild type's rows for each mutant, [n * t, width]."""
        if self.t == 1:
            return x.clone()
        return x.unsqueeze(1).repeat(1, self.t, 1).view(-1, x.shape[1])

    def over_mutants(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum over mutants, [n, width]."""
        return x if self.t == 1 else x.view(-1, self.t, x.shape[1]).sum(1)

    def without_deleted(self, kind: str, x: torch.Tensor) -> torch.Tensor:
        """Set the rows of deleted nodes to 0 and return x."""
        if kind in self.tile.deleted:
            x.index_fill_(0, self.tile.deleted[kind].at, 0)
        return x

    def pieces(self, places: Places | None, x: torch.Tensor) -> Iterator[Piece]:
        """Go through places of x, or through all, a few at a time."""
        return pieces(places, len(x), self.t, self.job.rows_at_a_time, x.device)

    def multiply(self, matrix: SparseMatrix, x: torch.Tensor) -> torch.Tensor:
        """Return a matrix times the rows of each mutant, [n_rows * t, width]."""
        width = x.shape[1]
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        return multiply(matrix, x.reshape(-1, self.t * width)).view(-1, width)

    def scale(self, a: Aggregate, like: torch.Tensor) -> torch.Tensor | None:
        """Return one over the number of living sources of each place, for a mean."""
        if not a.mean:
            return None
        if a.matrix not in self._scales:
            dtype = torch.promote_types(like.dtype, torch.float32)
            counts = self.spread(a.matrix.row_counts(device=like.device, dtype=dtype))
            if a.matrix in self.tile.silent:
                places, fewer = self.tile.silent[a.matrix]
                counts.index_add_(0, places.at, fewer.to(dtype).unsqueeze(1), alpha=-1)
            self._scales[a.matrix] = counts.clamp_(min=1).reciprocal_()
        return self._scales[a.matrix]

    def _difference(self, h: int, kind: str, x: torch.Tensor) -> torch.Tensor:
        """Return how the changed and deleted sources differ from the wild type."""
        places = self.tile.hops[h].sources[kind]
        assert places is not None
        wild = self.given[self.version(kind, h)].index_select(0, places.nodes)
        difference = x.index_select(0, places.at) - wild
        return difference.to(torch.promote_types(x.dtype, torch.float32))


Sums = dict[tuple[int, int], torch.Tensor]
"""Sums over the aggregates k of the hops h that were kept, by (h, k)."""


class Kept(NamedTuple):
    """What the backward of a tile starts from.

    Parameters
    ----------
    changed
        After each hop, the new vectors where they are not the wild type's.
    sums
        Those that were kept.
    """

    changed: dict[int, torch.Tensor]
    sums: Sums


class TileForward(TileState):
    """Propagates a tile of mutants and reads it out."""

    def run(self, *, keep_sums: bool) -> tuple[torch.Tensor, torch.Tensor, Kept]:
        """Return z [t, hidden], the genes' vectors [t, n, hidden], and what is kept.

        Parameters
        ----------
        keep_sums
            Whether to keep the sums for the backward, which else computes them again.
        """
        kept: Sums = {}
        with torch.no_grad(), self.job.autocast():
            for h, hop in enumerate(self.job.hops):
                with hop.around():
                    self.remember(h, self._after(h, kept if keep_sums else None))
            genes = self.vectors(GENE, len(self.job.hops))
            z = self.read(genes, self.pool())
            vectors = genes.view(-1, self.t, genes.shape[1]).transpose(0, 1)
        return z, vectors, Kept(self.changed, kept)

    def _after(self, h: int, kept: Sums | None) -> torch.Tensor:
        """Return the new vectors of a hop's target, [n * t, hidden]."""
        hop = self.job.hops[h]
        x, changed = self.vectors(hop.target, h), self.tile.hops[h].changed
        if changed is None:
            new = torch.zeros_like(x)
        else:
            new = self.spread(self.given[After(h)]).index_fill_(0, changed.at, 0)
        if hop.messages is None:
            self._update(h, x, new, kept)
        else:
            for k, message in enumerate(hop.messages):
                self._add_message(h, k, message, x, new, kept)
            if hop.residual:
                for piece in self.pieces(changed, x):
                    piece.add(new, piece.of(x))
        return self.without_deleted(hop.target, new)

    def _add_message(
        self,
        h: int,
        k: int,
        message: Message,
        x: torch.Tensor,
        new: torch.Tensor,
        kept: Sums | None,
    ) -> None:
        received = self.tile.hops[h].received[k]
        if received.computed is None or len(received.computed):
            heard = self._heard(h, k, kept)
            for piece in self.pieces(received.computed, x):
                piece.add(new, message.function(piece.of(x), heard.of(piece), piece.nodes))
        if received.taken is not None:
            taken = self.given[MessagesOf(h)][k].index_select(0, received.taken.nodes)
            new.index_add_(0, received.taken.at, taken)

    def _update(self, h: int, x: torch.Tensor, new: torch.Tensor, kept: Sums | None) -> None:
        hop = self.job.hops[h]
        heard = [self._heard(h, k, kept) for k in range(len(hop.aggregates))]
        for piece in self.pieces(self.tile.hops[h].changed, x):
            received = torch.stack([one.of(piece) for one in heard])
            made = hop.update(piece.of(x).unsqueeze(1), received.unsqueeze(2), piece.nodes)
            piece.put(new, made.squeeze(1))

    def _heard(self, h: int, k: int, kept: Sums | None) -> Heard:
        heard = self.heard(h, k)
        # Few where they are differences, and found again at no cost.
        if kept is not None and self.tile.hops[h].received[k].difference is None:
            kept[h, k] = heard.sums
        return heard


class TileBackward(TileState):
    """Goes back through a tile of mutants.

    The row-wise functions are computed again, a few rows at a time, from the vectors before each
    hop. The gradients of the mutants' own vectors go from hop to hop; whatever the mutants share
    with the wild type is added to the gradients of the wild type's parts, so that one product for
    the whole batch carries it on.

    Parameters
    ----------
    job, tile, given
        As in `TileState`.
    kept
        By the forward.
    gradients
        What to add to.
    """

    def __init__(
        self, job: Job, tile: Tile, given: Given, kept: Kept, gradients: GradientSums
    ) -> None:
        super().__init__(job, tile, given)
        self.changed, self.sums, self.gradients = kept.changed, dict(kept.sums), gradients
        self.by: dict[str, torch.Tensor] = {}
        """The gradient of the mutants' vectors of each kind, [n * t, hidden], so far."""

    def run(self, by_z: torch.Tensor | None, by_vectors: torch.Tensor | None) -> None:
        """Add what the gradients of z [t, hidden] and of the vectors [t, n, hidden] give."""
        with torch.no_grad(), self.job.autocast():
            genes = self.vectors(GENE, len(self.job.hops))
            by_genes = torch.zeros_like(genes) if by_z is None else self._read(genes, by_z)
            if by_vectors is not None:
                by_genes += by_vectors.transpose(0, 1).reshape(genes.shape)
            self.by[GENE] = by_genes
            for h, hop in reversed(list(enumerate(self.job.hops))):
                if hop.target in self.by:
                    with hop.around():
                        self._hop(h)
                self.forget()
            for kind, gradient in self.by.items():
                if self.gradients.wants(First(kind)):
                    living = self.without_deleted(kind, gradient)
                    self.gradients.add(First(kind), self.over_mutants(living))

    def _read(self, genes: torch.Tensor, by_z: torch.Tensor) -> torch.Tensor:
        names: list[Name] = [PoolPart(part) for part in WildPool._fields]
        parameters = list(self.job.readout.parameters())
        with torch.enable_grad():
            genes = genes.detach().requires_grad_()
            pool = WildPool(*(x.detach().requires_grad_() for x in self.pool()))
            z = self.read(genes, pool)
        by_genes, *others = gradients_of(z, [genes, *pool, *parameters], by_z)
        names += [ReadoutParameter(i) for i in range(len(parameters))]
        for name, gradient in zip(names, others, strict=True):
            self.gradients.add(name, gradient)
        return torch.zeros_like(genes) if by_genes is None else by_genes

    def _hop(self, h: int) -> None:
        hop, changed = self.job.hops[h], self.tile.hops[h].changed
        x = self.vectors(hop.target, h)
        by_new = self.without_deleted(hop.target, self.by.pop(hop.target))
        if changed is not None and self.gradients.wants(After(h)):
            outside = by_new.clone().index_fill_(0, changed.at, 0)
            self.gradients.add(After(h), self.over_mutants(outside))
        self.by[hop.target] = torch.zeros_like(x)
        common = _CommonGradients(self)
        if hop.messages is None:
            self._update(h, x, by_new, common)
        else:
            for k, message in enumerate(hop.messages):
                self._message(h, k, message, x, by_new, common)
            if hop.residual:
                for piece in self.pieces(changed, x):
                    piece.add(self.by[hop.target], piece.of(by_new))
        common.flush()

    def _message(
        self,
        h: int,
        k: int,
        message: Message,
        x: torch.Tensor,
        by_new: torch.Tensor,
        common: _CommonGradients,
    ) -> None:
        received = self.tile.hops[h].received[k]
        if received.computed is None or len(received.computed):
            heard = self._heard(h, k)
            by_sums = torch.empty_like(heard.sums)
            for piece in self.pieces(received.computed, x):
                place = by_sums[piece.part]
                by_own, by_received, by_parameters = message.backward(
                    piece.of(x), heard.of(piece), piece.nodes, piece.of(by_new), place
                )
                if by_own is not None:
                    piece.add(self.by[self.job.hops[h].target], by_own)
                _put(place, heard, piece, by_received)
                for i, gradient in enumerate(by_parameters):
                    self.gradients.add(ParameterOf(h, k, i), gradient)
            self._sums(h, k, by_sums, common)
        if received.taken is not None and self.gradients.wants(MessagesOf(h)):
            taken = by_new.index_select(0, received.taken.at)
            self.gradients.of(MessagesOf(h))[k].index_add_(0, received.taken.nodes, taken)

    def _update(
        self, h: int, x: torch.Tensor, by_new: torch.Tensor, common: _CommonGradients
    ) -> None:
        hop = self.job.hops[h]
        heard = [self._heard(h, k) for k in range(len(hop.aggregates))]
        by_sums = [torch.empty_like(one.sums) for one in heard]
        for piece in self.pieces(self.tile.hops[h].changed, x):
            with torch.enable_grad():
                own = piece.of(x).detach().requires_grad_()
                received = torch.stack([one.of(piece) for one in heard]).requires_grad_()
                made = hop.update(own.unsqueeze(1), received.unsqueeze(2), piece.nodes).squeeze(1)
            by_own, by_received, *others = gradients_of(
                made, [own, received, *hop.parameters], piece.of(by_new)
            )
            if by_own is not None:
                piece.add(self.by[hop.target], by_own)
            for k, one in enumerate(heard):
                _put(
                    by_sums[k][piece.part],
                    one,
                    piece,
                    None if by_received is None else by_received[k],
                )
            for i, gradient in enumerate(others):
                self.gradients.add(ParameterOf(h, 0, i), gradient)
        for k, gradient in enumerate(by_sums):
            self._sums(h, k, gradient, common)

    def _heard(self, h: int, k: int) -> Heard:
        if (h, k) not in self.sums:
            return self.heard(h, k)
        a = self.job.hops[h].aggregates[k]
        return Heard(self.sums.pop((h, k)), self.scale(a, self.vectors(a.source, h)))

    def _sums(self, h: int, k: int, by_sums: torch.Tensor, common: _CommonGradients) -> None:
        """Send back the gradients of the sums over an aggregate, one row a computed place."""
        a, received = self.job.hops[h].aggregates[k], self.tile.hops[h].received[k]
        if a.source not in self.by:
            self.by[a.source] = torch.zeros_like(self.vectors(a.source, h))
        if received.difference is not None:
            assert received.computed is not None
            if self.gradients.wants(SumsOf(h)):
                self.gradients.of(SumsOf(h))[k].index_add_(0, received.computed.nodes, by_sums)
            self._to_changed(h, a.source, received.difference.by_source.sums(by_sums))
            return
        if received.computed is not None:
            every = by_sums.new_zeros(a.matrix.shape[0] * self.t, by_sums.shape[1])
            by_sums = every.index_copy_(0, received.computed.at, by_sums)
        sources = self.tile.hops[h].sources[a.source]
        # Picking rows is work for the host, which a device should not wait for.
        if received.to_changed and sources is not None and by_sums.device.type == "cpu":
            if self.gradients.wants(SumsOf(h)):
                self.gradients.of(SumsOf(h))[k].add_(self.over_mutants(by_sums))
            self._to_changed(h, a.source, self._picked(a.matrix.transpose, sources, by_sums))
            return
        own, *shared = self.job.parts[h][k].of(a.matrix)
        self.by[a.source].add_(self.multiply(own.transpose, by_sums))
        for part in shared:
            common.add(part, a.source, by_sums)

    def _to_changed(self, h: int, kind: str, by_difference: torch.Tensor) -> None:
        """Take the gradient of how the changed sources differ from the wild type."""
        sources = self.tile.hops[h].sources[kind]
        assert sources is not None
        self.by[kind].index_add_(0, sources.at, by_difference.to(self.by[kind].dtype))
        version = self.version(kind, h)
        if self.gradients.wants(version):
            gradient = self.gradients.of(version)
            gradient.index_add_(0, sources.nodes, by_difference.to(gradient.dtype), alpha=-1)

    def _picked(self, turned: SparseMatrix, sources: Places, by_sums: torch.Tensor) -> torch.Tensor:
        """Return the rows of a product that belong to some places."""
        at = sources.at.numpy()
        bags = picked_rows(turned, at // self.t)
        if self.t > 1:
            # Each mutant reads rows of its own.
            mutant = torch.from_numpy(at % self.t).int()
            own = torch.repeat_interleave(mutant, bags.offsets.diff())
            bags = replace(bags, indices=bags.indices * self.t + own)
        return bags.sums(by_sums)


class _CommonGradients:
    """Gradients of sums over what two aggregates have in common, until both are there."""

    def __init__(self, tile: TileBackward) -> None:
        self._tile = tile
        self._waiting: dict[SparseMatrix, tuple[str, torch.Tensor]] = {}

    def add(self, part: SparseMatrix, source: str, by_sums: torch.Tensor) -> None:
        """Add one gradient, [n * t, hidden]."""
        if part in self._waiting:
            by_sums = by_sums + self._waiting.pop(part)[1]
        self._waiting[part] = (source, by_sums)

    def flush(self) -> None:
        """Send back what is there."""
        for part, (source, by_sums) in self._waiting.items():
            self._tile.by[source].add_(self._tile.multiply(part.transpose, by_sums))
        self._waiting.clear()


def _put(place: torch.Tensor, heard: Heard, piece: Piece, by_received: torch.Tensor | None) -> None:
    """Put the gradient of the sums where it belongs, unless it is there already."""
    if by_received is None:
        place.zero_()
    elif heard.scale is not None:
        torch.mul(by_received, piece.of(heard.scale), out=place)
    elif by_received.data_ptr() != place.data_ptr():
        place.copy_(by_received)
