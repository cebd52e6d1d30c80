"""A tile of mutants, backward: from the gradient of z to those of the wild type and parameters."""

from __future__ import annotations

from dataclasses import replace

import torch

from deltacell.propagate.changed import Tile
from deltacell.propagate.given import (
    After,
    First,
    Given,
    GradientSums,
    MessagesOf,
    Name,
    ParameterOf,
    PoolPart,
    ReadoutParameter,
    SumsOf,
)
from deltacell.propagate.gradients import gradients_of
from deltacell.propagate.hop import GENE, Message
from deltacell.propagate.places import Piece, Places
from deltacell.propagate.pool import WildPool
from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.restricted import picked_rows
from deltacell.propagate.tile_forward import Kept
from deltacell.propagate.tile_state import Heard, Job, TileState


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
