"""A prediction taken apart: integrated gradients over gates of relations and genes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from deltacell.arrays import Ints, offsets_of, ragged_positions
from deltacell.cell import Cell, Relation
from deltacell.models import Dango, HeteroCell
from deltacell.models.dango import SAGE, SAGELayer
from deltacell.models.hetero_cell import EncodedCell
from deltacell.propagate import GENE, METABOLITE, REACTION, Deleted, Hop, Message
from deltacell.propagate.hop import Rows
from deltacell.propagate.product import SparseMatrix, mean_product
from deltacell.screen import Genotypes


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """What `SAGE` has to compute on one network for a few genes, and nothing else.

    The last layer is needed for these genes alone, the one before for their neighbours too, and so
    on back to the first.

    Parameters
    ----------
    genes
        Those whose first vectors are needed, ascending.
    layers
        Of each layer, the places of its genes among those of the layer before, and the edges
        between the two.
    """

    genes: torch.Tensor
    layers: tuple[tuple[torch.Tensor, SparseMatrix], ...]

    @classmethod
    def of(cls, relation: Relation, genes: Ints, n_layers: int) -> Neighbourhood:
        """Return that of some genes.

        Parameters
        ----------
        relation
            The network.
        genes
            Whose vectors are wanted, ascending.
        n_layers
            Of `SAGE`.
        """
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
        """Return the wanted genes' vectors, [len(genes), width].

        ``h'_i = relu(g W_n mean over j in N(i) of h_j + b + W_s h_i)`` in every layer; with g = 1
        that is `SAGE`.

        Parameters
        ----------
        sage
            With its weights.
        x
            First vectors of all genes, [n_genes, width].
        gate
            What is received is multiplied by it.
        """
        x = x.index_select(0, self.genes)
        for module, (own, edges) in zip(sage.layers, self.layers, strict=True):
            layer = cast(SAGELayer, module)
            # Not the bias: a gene without neighbours has it too.
            weight = gate * layer.neighbours.weight
            received = functional.linear(mean_product(edges, x), weight, layer.neighbours.bias)
            x = torch.relu(received + layer.own(x.index_select(0, own)))
        return x


METABOLISM = "metabolism"
"""What the gate of the messages that pass through reactions is called."""


class GatedModel:
    """The score of one genotype as a function of gates, in double precision.

    A relation's gate g_r multiplies what every gene receives over it, in every layer, in the wild
    type and in the mutant: at 1 it is the model, at 0 the same model on a cell in which the
    relation has no edge. With metabolism there is one more gate, of what genes receive from
    reactions. A gene's gate multiplies its first vector: DANGO's embedding, or what HeteroCell's
    encoder makes of embedding and features.

    Parameters
    ----------
    model
        `Dango` or `HeteroCell`, with its weights; it is copied.
    cell
        The wild type.
    genes
        The deleted genes.
    """

    def __init__(self, model: Dango | HeteroCell, cell: Cell, genes: Sequence[int]) -> None:
        self._model = copy.deepcopy(model).double().eval().requires_grad_(False)
        self._cell = cell
        self._genotypes = Genotypes.of([sorted(genes)]).check(cell.n_genes)
        self._near: tuple[Neighbourhood, ...] = ()
        self._deleted: Deleted | None = None
        if isinstance(self._model, Dango):
            deleted = self._genotypes.genes.numpy()
            self._near = tuple(
                Neighbourhood.of(cell.relation(name), deleted, len(cast(SAGE, sage).layers))
                for name, sage in zip(self._model.relations, self._model.sage, strict=True)
            )
        else:
            self._deleted = self._model.prepare(cell, self._genotypes)
            if self._model.local_head is not None:
                self._model.local_head.largest = None
        self.relations: tuple[str, ...] = model.relations
        if isinstance(model, HeteroCell) and model.reactions is not None:
            self.relations = (*self.relations, METABOLISM)
        self.n_genes = cell.n_genes

    def score(self, relations: torch.Tensor, genes: torch.Tensor) -> torch.Tensor:
        """Return the score, of which gradients can be taken, on the scale of the targets.

        Parameters
        ----------
        relations
            The gates of `relations`, float64 [k].
        genes
            The gates of the cell's genes, float64 [n_genes].
        """
        if isinstance(self._model, Dango):
            return self._dango(self._model, relations, genes)
        return self._hetero_cell(self._model, relations, genes)

    def vectors(self) -> torch.Tensor:
        """Return the genes' vectors in the wild type, [n_genes, hidden]."""
        with torch.no_grad():
            if isinstance(self._model, Dango):
                return self._model.encode(self._cell).genes
            return self._model.encode(self._cell).wild_type.last[GENE]

    def _dango(self, model: Dango, relations: torch.Tensor, genes: torch.Tensor) -> torch.Tensor:
        embedding = model.first_vectors(self._cell) * genes.unsqueeze(1)
        vectors = [
            near.vectors(cast(SAGE, sage), embedding, gate)
            for near, sage, gate in zip(self._near, model.sage, relations.unbind(), strict=True)
        ]
        deleted, _ = model.meta_embedding(torch.stack(vectors))
        everyone = torch.ones(1, len(deleted), dtype=torch.bool)
        score: torch.Tensor = model.hyper_sagnn.sets(deleted.unsqueeze(0), everyone)[0]
        return score[0]

    def _hetero_cell(
        self, model: HeteroCell, relations: torch.Tensor, genes: torch.Tensor
    ) -> torch.Tensor:
        state = {GENE: model.encoder(self._cell) * genes.unsqueeze(1)}
        if model.reactions is not None and model.metabolites is not None:
            state |= {REACTION: model.reactions, METABOLITE: model.metabolites}
        hops = [_gated(hop, relations, len(model.relations)) for hop in model.hops(self._cell)]
        encoded = EncodedCell(hops, model.propagation.wild_type(hops, state))
        assert self._deleted is not None
        return model.score(self._cell, encoded, self._deleted).score[0]


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


Doubles = npt.NDArray[np.float64]

TOLERANCE = 0.01
"""How far the sum may be from the difference that it explains, as a share of it."""

MOST = 300
"""Gradients to take at most; where they do not suffice, the residual says so."""

_NODES, _WEIGHTS = (column.tolist() for column in np.polynomial.legendre.leggauss(5))
_FIRST = (0.0, 0.1, 0.5, 1.0)
# Where contributions cancel, so large a share of their sizes is what the tolerance is a share of.
_CANCELLED = 0.02
# Errors of pieces may be so many times the tolerance where they cancel each other.
_HIDDEN = 4


class Contributions(NamedTuple):
    """What each gate adds to a score, from all gates at 0 to all at 1.

    ``score - baseline = values.sum() + residual``.

    Parameters
    ----------
    values
        One a gate, [k].
    score
        With all gates at 1.
    baseline
        With all gates at 0.
    gradients
        How many were taken.
    """

    values: Doubles
    score: float
    baseline: float
    gradients: int

    @property
    def residual(self) -> float:
        """What the contributions leave unexplained."""
        return self.score - self.baseline - float(self.values.sum())

    @property
    def complete(self) -> bool:
        """Whether that is within the tolerance."""
        return abs(self.residual) <= _allowed(self.values, self.score, self.baseline)


def relation_contributions(model: GatedModel, most: int = MOST) -> Contributions:
    """Return what each relation of a model contributes to the score, see `integrated_gradients`.

    Parameters
    ----------
    model
        Of one genotype.
    most
        Gradients to take at most.
    """
    everyone = torch.ones(model.n_genes, dtype=torch.float64)
    return integrated_gradients(
        lambda gates: model.score(gates, everyone), len(model.relations), most
    )


def gene_contributions(model: GatedModel, most: int = MOST) -> Contributions:
    """Return what each gene of the cell contributes to the score, see `integrated_gradients`.

    Parameters
    ----------
    model
        Of one genotype.
    most
        Gradients to take at most.
    """
    all_relations = torch.ones(len(model.relations), dtype=torch.float64)
    return integrated_gradients(
        lambda gates: model.score(all_relations, gates), model.n_genes, most
    )


def integrated_gradients(
    function: Callable[[torch.Tensor], torch.Tensor], n_gates: int, most: int = MOST
) -> Contributions:
    r"""Return ``c_k = integral over t from 0 to 1 of (df / dg_k)(t, ..., t)``.

    By the fundamental theorem they add up to ``f(1) - f(0)``. That holds on every piece of the way
    too, so each piece is integrated with five nodes of Gauss and Legendre and compared with the
    difference of f over it, and the worst piece is halved until the errors are small.

    Parameters
    ----------
    function
        From gates [k] to a number.
    n_gates
        How many.
    most
        Gradients to take at most.
    """
    path = _Path(function, n_gates)
    pieces = [path.piece(a, b) for a, b in pairwise(_FIRST)]
    while path.gradients + 2 * len(_NODES) <= most and not path.well_covered(pieces):
        worst = max(pieces, key=lambda piece: abs(piece.error))
        middle = (worst.begin + worst.end) / 2
        pieces.remove(worst)
        pieces += [path.piece(worst.begin, middle), path.piece(middle, worst.end)]
    values = np.sum([piece.values for piece in pieces], axis=0)
    return Contributions(values, path.at(1.0), path.at(0.0), path.gradients)


class _Piece(NamedTuple):
    begin: float
    end: float
    values: Doubles
    error: float


class _Path:
    """A function along the way on which all gates are the same."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], n_gates: int) -> None:
        self._function = function
        self._n_gates = n_gates
        self._at: dict[float, float] = {}
        self.gradients = 0

    def at(self, t: float) -> float:
        """Return the function at a place."""
        if t not in self._at:
            with torch.no_grad():
                gates = torch.full((self._n_gates,), t, dtype=torch.float64)
                self._at[t] = float(self._function(gates))
        return self._at[t]

    def piece(self, begin: float, end: float) -> _Piece:
        """Return the integral over a piece, and how far its sum is from the difference."""
        half = (end - begin) / 2
        values = np.zeros(self._n_gates)
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            values += half * weight * self._gradient(begin + half * (1 + node))
        error = self.at(end) - self.at(begin) - float(values.sum())
        return _Piece(begin, end, values, error)

    def well_covered(self, pieces: Sequence[_Piece]) -> bool:
        """Whether the errors are small together, and not only because they cancel."""
        values = np.sum([piece.values for piece in pieces], axis=0)
        errors = np.array([piece.error for piece in pieces])
        allowed = _allowed(values, self.at(1.0), self.at(0.0))
        return bool(abs(errors.sum()) <= allowed and np.abs(errors).sum() <= _HIDDEN * allowed)

    def _gradient(self, t: float) -> Doubles:
        gates = torch.full((self._n_gates,), t, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            (found,) = torch.autograd.grad(self._function(gates), gates)
        self.gradients += 1
        gradient: Doubles = found.numpy()
        return gradient


def _allowed(values: Doubles, score: float, baseline: float) -> float:
    rounding = 1e-10 * max(abs(score), abs(baseline))
    explained = max(abs(score - baseline), _CANCELLED * float(np.abs(values).sum()))
    return TOLERANCE * explained + rounding
