"""A prediction taken apart: integrated gradients over gates of relations and genes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np
import torch
from torch.nn import functional

from deltacell.arrays import Doubles, Ints, offsets_of, ragged_positions
from deltacell.cell import Cell, Relation
from deltacell.models import Dango, HeteroCell
from deltacell.models.dango import SAGE, SAGELayer
from deltacell.models.hetero_cell import EncodedCell
from deltacell.propagate import GENE, METABOLITE, REACTION, Hop, Message
from deltacell.propagate.hop import Rows
from deltacell.propagate.product import SparseMatrix, mean_product
from deltacell.screen import Genotypes

METABOLISM = "metabolism"  # the name of the gate of the messages that pass through reactions
TOLERANCE = 0.01  # how far the sum may be from the difference that it explains, as a share of it
MOST = 300  # gradients to take at most; where they do not suffice, the residual says so

_NODES, _WEIGHTS = (column.tolist() for column in np.polynomial.legendre.leggauss(5))
_FIRST = (0.0, 0.1, 0.5, 1.0)
# Where contributions cancel, this share of their sizes is what the tolerance is a share of.
_CANCELLED = 0.02
# Errors of pieces may be this many times the tolerance where they cancel each other.
_HIDDEN = 4


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """What `SAGE` has to compute on one network for a few genes.

    The last layer is needed for these genes alone, the one before for their neighbours too, and so
    on back to the first.
    """

    genes: torch.Tensor  # those whose first vectors are needed, ascending
    layers: tuple[tuple[torch.Tensor, SparseMatrix], ...]  # places in the layer before, and edges

    @classmethod
    def of(cls, relation: Relation, genes: Ints, n_layers: int) -> Neighbourhood:
        """Return that of some ascending genes."""
        layers: list[tuple[torch.Tensor, SparseMatrix]] = []
        for _ in range(n_layers):
            starts = np.asarray(relation.indptr[genes], dtype=np.int64)
            lengths = np.asarray(relation.indptr[genes + 1], dtype=np.int64) - starts
            sources = relation.indices[ragged_positions(starts, lengths)].astype(np.int64)
            before = np.union1d(genes, sources)
            edges = SparseMatrix(
                offsets_of(lengths), np.searchsorted(before, sources), n_columns=len(before)
            )
            layers.insert(0, (torch.from_numpy(np.searchsorted(before, genes)), edges))
            genes = before
        return cls(torch.from_numpy(genes), tuple(layers))

    def vectors(self, sage: SAGE, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Return the genes' vectors, [len(genes), width], from all first vectors, [n, width].

        ``h'_i = relu(g W_n mean over j in N(i) of h_j + b + W_s h_i)`` in every layer; with g = 1
        that is `SAGE`.
        """
        x = x.index_select(0, self.genes)
        for module, (own, edges) in zip(sage.layers, self.layers, strict=True):
            layer = cast(SAGELayer, module)
            # Not the bias: a gene without neighbours has it too.
            weight = gate * layer.neighbours.weight
            received = functional.linear(mean_product(edges, x), weight, layer.neighbours.bias)
            x = torch.relu(received + layer.own(x.index_select(0, own)))
        return x


class GatedModel:
    """The score of one genotype as a function of gates, in double precision.

    A relation's gate g_r multiplies what every gene receives over it, in every layer, in the wild
    type and in the mutant: at 1 it is the model, at 0 the same model on a cell in which the
    relation has no edge. With metabolism there is one more gate, of what genes receive from
    reactions. A gene's gate multiplies its first vector: DANGO's embedding, or what HeteroCell's
    encoder makes of embedding and features.
    """

    def __init__(self, model: Dango | HeteroCell, cell: Cell, genes: Sequence[int]) -> None:
        self._model = copy.deepcopy(model).double().eval().requires_grad_(False)
        self._cell, self.n_genes = cell, cell.n_genes
        self._genotypes = Genotypes.of([sorted(genes)]).check(cell.n_genes)
        self.relations: tuple[str, ...] = model.relations
        if isinstance(self._model, Dango):
            deleted = self._genotypes.genes.numpy()
            self._near = [
                Neighbourhood.of(cell.relation(name), deleted, len(cast(SAGE, sage).layers))
                for name, sage in zip(self._model.relations, self._model.sage, strict=True)
            ]
            return
        self._deleted = self._model.prepare(cell, self._genotypes)
        if self._model.local_head is not None:
            self._model.local_head.largest = None
        if self._model.reactions is not None:
            self.relations = (*self.relations, METABOLISM)

    def score(self, relations: torch.Tensor, genes: torch.Tensor) -> torch.Tensor:
        """Return the score on the scale of the targets, by gates of relations and of all genes."""
        model, cell = self._model, self._cell
        if isinstance(model, Dango):
            embedding = model.first_vectors(cell) * genes.unsqueeze(1)
            vectors = [
                near.vectors(cast(SAGE, sage), embedding, gate)
                for near, sage, gate in zip(self._near, model.sage, relations.unbind(), strict=True)
            ]
            deleted, _ = model.meta_embedding(torch.stack(vectors))
            everyone = torch.ones(1, len(deleted), dtype=torch.bool)
            score: torch.Tensor = model.hyper_sagnn.sets(deleted.unsqueeze(0), everyone)[0]
            return score[0]
        state = {GENE: model.encoder(cell) * genes.unsqueeze(1)}
        if model.reactions is not None and model.metabolites is not None:
            state |= {REACTION: model.reactions, METABOLITE: model.metabolites}
        hops = [_gated(hop, relations, len(model.relations)) for hop in model.hops(cell)]
        encoded = EncodedCell(hops, model.propagation.wild_type(hops, state))
        return model.score(cell, encoded, self._deleted).score[0]

    def vectors(self) -> torch.Tensor:
        """Return the genes' vectors in the wild type, [n_genes, hidden]."""
        with torch.no_grad():
            if isinstance(self._model, Dango):
                return self._model.encode(self._cell).genes
            return self._model.encode(self._cell).wild_type.last[GENE]


def _gated(hop: Hop, gates: torch.Tensor, n_relations: int) -> Hop:
    if hop.target != GENE:
        return hop
    over_relations = hop.aggregates[0].source == GENE
    own = gates[:n_relations] if over_relations else gates[n_relations:]

    def update(vectors: torch.Tensor, aggregated: torch.Tensor, rows: Rows) -> torch.Tensor:
        return hop.update(vectors, aggregated * own.view(-1, 1, 1, 1), rows)

    messages = hop.messages
    if messages is not None:
        pairs = zip(messages, own.unbind(), strict=True)
        messages = tuple(_gated_message(message, gate) for message, gate in pairs)
    return replace(hop, update=update, parameters=(own,), messages=messages)


def _gated_message(message: Message, gate: torch.Tensor) -> Message:
    def function(vectors: torch.Tensor, received: torch.Tensor, rows: Rows) -> torch.Tensor:
        return message.function(vectors, received * gate, rows)

    return Message(function, (gate,))


class Contributions(NamedTuple):
    """What each gate adds to a score, from all gates at 0 to all at 1.

    ``score - baseline = values.sum() + residual``.
    """

    values: Doubles  # one per gate
    score: float  # with all gates at 1
    baseline: float  # with all gates at 0
    gradients: int  # how many were taken

    @property
    def residual(self) -> float:
        """What the contributions leave unexplained."""
        return self.score - self.baseline - float(self.values.sum())

    @property
    def complete(self) -> bool:
        """Whether that is within the tolerance."""
        return abs(self.residual) <= _allowed(self.values, self.score, self.baseline)


def relation_contributions(model: GatedModel, most: int = MOST) -> Contributions:
    """Return what each relation of a model contributes to the score."""
    everyone = torch.ones(model.n_genes, dtype=torch.float64)
    return integrated_gradients(lambda g: model.score(g, everyone), len(model.relations), most)


def gene_contributions(model: GatedModel, most: int = MOST) -> Contributions:
    """Return what each gene of the cell contributes to the score."""
    all_relations = torch.ones(len(model.relations), dtype=torch.float64)
    return integrated_gradients(lambda g: model.score(all_relations, g), model.n_genes, most)


class _Piece(NamedTuple):
    begin: float
    end: float
    values: Doubles
    error: float


def integrated_gradients(
    function: Callable[[torch.Tensor], torch.Tensor], n_gates: int, most: int = MOST
) -> Contributions:
    r"""Return ``c_k = integral over t from 0 to 1 of (df / dg_k)(t, ..., t)``.

    By the fundamental theorem they add up to ``f(1) - f(0)``. That holds on every piece of the path
    too, so each piece is integrated with five nodes of Gauss and Legendre and compared with the
    difference of f over it, and the worst piece is halved until the errors are small, or ``most``
    gradients have been taken.
    """
    known: dict[float, float] = {}

    def gates(t: float, *, gradient: bool = False) -> torch.Tensor:
        return torch.full((n_gates,), t, dtype=torch.float64, requires_grad=gradient)

    def value(t: float) -> float:
        if t not in known:
            with torch.no_grad():
                known[t] = float(function(gates(t)))
        return known[t]

    def piece(begin: float, end: float) -> _Piece:
        half, values = (end - begin) / 2, np.zeros(n_gates)
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            at = gates(begin + half * (1 + node), gradient=True)
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(function(at), at)
            values += half * weight * gradient.numpy()
        return _Piece(begin, end, values, value(end) - value(begin) - float(values.sum()))

    def total() -> Doubles:
        values: Doubles = np.sum([one.values for one in pieces], axis=0)
        return values

    def is_good() -> bool:
        """Whether the errors are small together, and not only because they cancel."""
        errors = np.array([one.error for one in pieces])
        allowed = _allowed(total(), value(1.0), value(0.0))
        return bool(abs(errors.sum()) <= allowed and np.abs(errors).sum() <= _HIDDEN * allowed)

    pieces = [piece(a, b) for a, b in pairwise(_FIRST)]
    gradients = len(_NODES) * len(pieces)
    while gradients + 2 * len(_NODES) <= most and not is_good():
        worst = max(pieces, key=lambda one: abs(one.error))
        middle = (worst.begin + worst.end) / 2
        pieces.remove(worst)
        pieces += [piece(worst.begin, middle), piece(middle, worst.end)]
        gradients += 2 * len(_NODES)
    return Contributions(total(), value(1.0), value(0.0), gradients)


def _allowed(values: Doubles, score: float, baseline: float) -> float:
    rounding = 1e-10 * max(abs(score), abs(baseline))
    explained = max(abs(score - baseline), _CANCELLED * float(np.abs(values).sum()))
    return TOLERANCE * explained + rounding
