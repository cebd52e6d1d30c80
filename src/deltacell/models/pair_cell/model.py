"""PairCell: a network whose messages are the scores measured next to a set of genes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional

from deltacell.base.arrays import AnyArray, Floats, Ints
from deltacell.base.errors import InputError
from deltacell.cell import Cell
from deltacell.models.base import check_cell
from deltacell.models.baselines.additive import ridge
from deltacell.models.fitted.gene_sets import GeneOrder
from deltacell.models.fitted.predictor import Part
from deltacell.models.gene_vectors import chosen_features, feature_vectors
from deltacell.models.interface import LabelledSets, Model, Prediction
from deltacell.models.pair_cell.prepared import PreparedSets
from deltacell.models.pairs.columns import set_folds
from deltacell.models.pairs.messages import Neighbours
from deltacell.screen.genotypes import Genotypes

_COMPONENTS = 32
_PLACES = 32


class PairCell(Model):
    r"""Predict the residual of the additive model from the measured sets next to a set.

    A gene's vector comes from its features and its place in the networks, so unseen genes have one
    too. Every gene a has up to K neighbours a', those most strongly linked over all relations, with
    learned weights for each of H heads:

    .. math:: w_h(a, a') = \exp(\theta_h \cdot A_{aa'} + q_h(x_a) \cdot k_h(x_{a'}))

    with A the weights in each relation and x the vectors. For each ordered pair (a, b) of a set,
    each head has the weighted mean residual of the measured pairs (a', b); for each
    unordered pair also that of the measured pairs (a', b'); for a set of three or more also that of
    the measured sets with a' in place of a. A symmetric network reads these mean residuals, the
    vectors and the relations of each pair, and the mean over pairs gives the score.

    In training, the sets of the batch do not count as measured, residuals come from the other folds
    of sets, and in half of the steps a share ``drop_genes`` of the genes is treated as unseen.
    docs/reference/config.md describes all parameters.
    """

    sets_per_call = 4096

    def __init__(
        self,
        cell: Cell,
        features: Sequence[str] | None = None,
        *,
        hidden: int = 64,
        heads: int = 8,
        nearest: int = 48,
        nearest_both: int = 12,
        drop_genes: float = 0.2,
        dropout: float = 0.1,
        penalty: float = 3.0,
        folds: int = 5,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.hidden = hidden
        self.nearest_both = min(nearest_both, nearest)
        self.drop_genes = drop_genes
        self.penalty = penalty
        self.folds = folds
        self.n_genes = cell.n_genes
        order = GeneOrder(cell.genes)
        neighbours = Neighbours.of(cell, order, features)
        self.inputs = _buffer(_gene_inputs(cell, order, neighbours, features))
        self._add_edges(neighbours, order, min(nearest, cell.n_genes - 1))
        n_relations = len(neighbours.names)
        self.encoder = LayersInARow(
            nn.Linear(self.inputs.shape[1] + 3, 2 * hidden),
            nn.GELU(),
            nn.Linear(2 * hidden, hidden),
            nn.LayerNorm(hidden),
        )
        self.query = nn.Linear(hidden, heads * 8, bias=False)
        self.key = nn.Linear(hidden, heads * 8, bias=False)
        self.relation = nn.Linear(n_relations, heads)
        self.doubt = nn.Parameter(torch.zeros(3, heads))
        width = 3 * hidden + 8 * heads + n_relations
        self.read_pair = LayersInARow(
            nn.LayerNorm(width),
            nn.Linear(width, 2 * hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(2 * hidden, hidden),
            nn.GELU(),
        )
        self.read_set = nn.Linear(hidden + 2 * heads, 1)
        nn.init.zeros_(self.read_set.weight)
        nn.init.zeros_(self.read_set.bias)
        self._sizes: tuple[int, ...] = ()

    def begin(self, cell: Cell, training: LabelledSets) -> None:
        """Store the measured sets and their targets; required before a call."""
        order = GeneOrder(cell.genes)
        sets = order.sets(training.genotypes)
        part = Part(sets, training.targets.double().numpy())
        fold = set_folds(sets, self.n_genes, self.folds, 0)
        self._fit_additive_models(part, order, fold)
        self._sizes = tuple(np.unique(sets.sizes[sets.sizes > 1]).tolist())
        for size in self._sizes:
            rows = np.flatnonzero(sets.sizes == size)
            self._store_measured(size, part.take(rows), order, fold[rows])

    def _fit_additive_models(self, part: Part, order: GeneOrder, fold: Ints) -> None:
        """Store the additive model and the counts of genes without each fold, in cell order.

        The last fold is empty, so its model is fitted on all sets.
        """
        effects = []
        intercepts = []
        counts = []
        for number in range(self.folds + 1):
            others = part.take(np.flatnonzero(fold != number))
            additive = ridge(others, self.n_genes, self.penalty)
            effects.append(additive.effect[order.place])
            intercepts.append(additive.intercept)
            of_gene = np.bincount(others.sets.genes, minlength=self.n_genes)[order.place]
            counts.append(of_gene * (len(part.sets) / len(others.sets)))
        self.effect = _buffer(np.array(effects, dtype=np.float32))
        self.intercept = _buffer(np.array(intercepts, dtype=np.float32))
        self.count = _buffer(np.array(counts, dtype=np.float32))

    def _store_measured(self, size: int, part: Part, order: GeneOrder, fold: Ints) -> None:
        """Store the keys of sets of one size, their mean scores over repeats and their folds."""
        genes = np.sort(order.gene[part.sets.genes.reshape(-1, size)], axis=1)
        keys, first_row, number, repeats = np.unique(
            _keys(torch.from_numpy(genes), self.n_genes).numpy(),
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        score = np.bincount(number.ravel(), part.targets) / repeats
        setattr(self, f"keys{size}", _buffer(keys))
        setattr(self, f"scores{size}", _buffer(score.astype(np.float32)))
        setattr(self, f"folds{size}", _buffer(fold[first_row]))

    def prepare(self, cell: Cell, genotypes: Genotypes) -> PreparedSets:
        """Return the sets by size, so that no step waits for a device to know the sizes."""
        return PreparedSets.of(genotypes)

    def forward(
        self,
        cell: Cell,
        genotypes: Genotypes | PreparedSets,
        *,
        wanted: Collection[str] = (),
    ) -> Prediction:
        """Return the scores [b] of genotypes."""
        check_cell(genes=(self.n_genes, cell.n_genes))
        if not hasattr(self, "effect"):
            fix = "Call begin(cell, LabelledSets(genotypes, targets)) first."
            raise InputError("this PairCell has no measured sets", code="not-fitted", fix=fix)
        prepared = genotypes if isinstance(genotypes, PreparedSets) else PreparedSets.of(genotypes)
        prepared = prepared.to(self.effect.device)
        score = self.effect.new_zeros(len(prepared))
        # Which genes count as measured in this step.
        kept = torch.ones(self.n_genes, dtype=torch.bool, device=self.effect.device)
        if self.training and self.drop_genes and bool(torch.rand(()) < 0.5):
            kept = torch.rand(self.n_genes, device=kept.device) >= self.drop_genes
        for sets in prepared.by_size:
            score = score.index_put((sets.rows,), self._score(sets.genes, kept))
        return Prediction(score)

    def compile_parts(self, **options: Any) -> None:
        """Compile the two networks; what looks up measured sets depends on the data."""
        options = {"dynamic": True} | options
        self.encoder.compile(**options)
        self.read_pair.compile(**options)

    def _score(self, genes: Tensor, kept: Tensor) -> Tensor:
        """Return the score of sets of one size, [b, size] ascending."""
        step = self._step(genes, kept)
        effect = self.effect[step.fold[:, None], genes] * kept[genes]
        additive = self.intercept[step.fold] + effect.sum(dim=1)
        x = self._vectors(genes, effect, step)
        of_rests = self._residuals_of_rests(genes, x, step)
        read = self._read_pairs(genes, x, step)
        residual: Tensor = self.read_set(torch.cat([read, of_rests], dim=1)).squeeze(1)
        return additive + residual

    def _step(self, genes: Tensor, kept: Tensor) -> _Step:
        """Return what counts as measured for sets, [b, size], and the keys of all genes.

        In training, the sets of the batch enter no mean, and the models are those of the other
        folds.
        """
        size = genes.shape[1]
        fold = torch.full((len(genes),), self.folds, device=genes.device)
        own: dict[int, Tensor] = {}
        if self.training and size in self._sizes:
            keys, _, folds = self._known(size)
            row, is_measured = _look_up(keys, _keys(genes, self.n_genes))
            fold = torch.where(is_measured, folds[row], fold)
            # A set that was not measured marks a place after the last.
            places = torch.where(is_measured, row, len(keys))
            marks = torch.zeros(len(keys) + 1, dtype=torch.bool, device=keys.device)
            own[size] = marks.index_fill(0, places, True)[:-1]
        # Keys use only the fixed inputs of neighbours, so they are the same for all folds.
        without_state = functional.pad(self.inputs, (0, 3))
        key = self.key(self.encoder(without_state))
        return _Step(fold, kept, own, key.view(-1, self.heads, 8))

    def _vectors(self, genes: Tensor, effect: Tensor, step: _Step) -> Tensor:
        """Return the vectors of the genes of sets, [b, size, hidden].

        The state of a gene is its effect, how often it was measured, and whether it was.
        """
        count = self.count[step.fold[:, None], genes]
        is_seen = (count > 0) & step.kept[genes]
        parts = [effect * is_seen, torch.log1p(count) * is_seen, is_seen.to(effect)]
        state = torch.stack(parts, dim=-1)
        x: Tensor = self.encoder(torch.cat([self.inputs[genes], state], dim=-1))
        return x

    def _residuals_of_rests(self, genes: Tensor, x: Tensor, step: _Step) -> Tensor:
        """Return the mean over genes of `_replace` for sets of three or more, else 0, [b, 2H]."""
        n_sets, size = genes.shape
        if size <= 2:
            return self.effect.new_zeros(n_sets, 2 * self.heads)
        replaced = [self._replace(genes, place, x[:, place], step, 2) for place in range(size)]
        return torch.stack(replaced).mean(dim=0)

    def _read_pairs(self, genes: Tensor, x: Tensor, step: _Step) -> Tensor:
        """Return the mean over the pairs of each set of what is read of a pair, [b, hidden].

        It is 0 for a single gene. What is read does not depend on the order of the two genes.
        """
        n_sets, size = genes.shape
        n_pairs = size * (size - 1) // 2
        if not n_pairs:
            return x.new_zeros(n_sets, self.hidden)
        first, second = torch.triu_indices(size, size, 1, device=genes.device)
        of_pairs = step._replace(fold=step.fold.repeat_interleave(n_pairs))
        pair = torch.stack([genes[:, first], genes[:, second]], dim=2).view(-1, 2)
        a = x[:, first].reshape(-1, self.hidden)
        b = x[:, second].reshape(-1, self.hidden)
        next_to_b = self._replace(pair, 0, a, of_pairs, 0)
        next_to_a = self._replace(pair, 1, b, of_pairs, 0)
        between = self._between(pair, a, b, of_pairs)
        of_genes = [*_symmetric(a, b), *_symmetric_residuals(next_to_b, next_to_a), between]
        read: Tensor = self.read_pair(torch.cat([*of_genes, self._relations_of(pair)], dim=1))
        return read.view(n_sets, n_pairs, -1).mean(dim=1)

    def _relations_of(self, pair: Tensor) -> Tensor:
        """Return the weight of pairs in each relation, 0 without an edge, [pairs, relations]."""
        row, is_edge = _look_up(self.edge_keys, pair[:, 0] * self.n_genes + pair[:, 1])
        return self.edge_weights[row] * is_edge[:, None]

    def _weights(self, gene: Tensor, x: Tensor, nearest: int, step: _Step) -> Tensor:
        """Return the logarithm of the weight of each neighbour, [b, K, heads]."""
        neighbour = self.candidates[gene, :nearest]
        query = self.query(x).view(-1, 1, self.heads, 8)
        match = (query * step.key[neighbour]).sum(dim=-1) / 8**0.5
        edges = self.candidate_edges[gene, :nearest]
        linked = self.relation(self.edge_weights[edges])
        logarithm: Tensor = (match + linked).clamp(-8, 8)
        return logarithm

    def _replace(
        self,
        genes: Tensor,
        place: int,
        x: Tensor,
        step: _Step,
        doubt: int,
    ) -> Tensor:
        """Return the `_mean_residual` of the sets with a neighbour in place of a gene, [b, 2H]."""
        size = genes.shape[1]
        neighbour = self.candidates[genes[:, place]]
        n_neighbours = neighbour.shape[1]
        rest = torch.cat([genes[:, :place], genes[:, place + 1 :]], dim=1)
        others = rest[:, None, :].expand(-1, n_neighbours, -1)
        sets = torch.cat([others, neighbour[..., None]], dim=2)
        weights = self._weights(genes[:, place], x, n_neighbours, step)
        return self._mean_residual(sets.view(-1, size), weights, step, doubt)

    def _between(self, pair: Tensor, a: Tensor, b: Tensor, step: _Step) -> Tensor:
        """Return the `_mean_residual` of the pairs between two neighbourhoods, [b, 2H]."""
        near_first = self.candidates[pair[:, 0], : self.nearest_both]
        near_second = self.candidates[pair[:, 1], : self.nearest_both]
        k = near_first.shape[1]
        of_first = near_first[:, :, None].expand(-1, -1, k)
        of_second = near_second[:, None, :].expand(-1, k, -1)
        sets = torch.stack([of_first, of_second], dim=3)
        weights_of_first = self._weights(pair[:, 0], a, k, step)
        weights_of_second = self._weights(pair[:, 1], b, k, step)
        weights = (weights_of_first[:, :, None] + weights_of_second[:, None, :]).flatten(1, 2)
        # The two genes are not part of each other's neighbourhoods.
        is_not_second = sets[..., 0] != pair[:, 1, None, None]
        is_not_first = sets[..., 1] != pair[:, 0, None, None]
        is_allowed = (is_not_second & is_not_first).flatten(1)
        return self._mean_residual(sets.view(-1, 2), weights, step, 1, is_allowed)

    def _mean_residual(
        self,
        sets: Tensor,
        log_weights: Tensor,
        step: _Step,
        doubt: int,
        allowed: Tensor | None = None,
    ) -> Tensor:
        """Return the weighted mean residual of measured sets and the log of its weight, [b, 2H]."""
        n_sets, k, _ = log_weights.shape
        size = sets.shape[1]
        if size not in self._sizes:
            return log_weights.new_zeros(n_sets, 2 * self.heads)
        ordered = sets.sort(dim=1).values
        row, is_measured = self._measured_row(ordered, step)
        _, scores, _ = self._known(size)
        additive = self._additive_score(ordered, step.fold.repeat_interleave(k))
        residual = (scores[row] - additive).view(n_sets, k)
        counts = is_measured.view(n_sets, k)
        if allowed is not None:
            counts = counts & allowed
        weights = log_weights.exp() * counts[..., None]
        total = weights.sum(dim=1)
        weighted = (weights * residual[..., None]).sum(dim=1)
        mean = weighted / (total + functional.softplus(self.doubt[doubt]))
        return torch.cat([mean, torch.log1p(total)], dim=1)

    def _additive_score(self, genes: Tensor, fold: Tensor) -> Tensor:
        """Return the score of sets, [b, size], by the additive model without a fold, [b]."""
        return self.intercept[fold] + self.effect[fold[:, None], genes].sum(dim=1)

    def _measured_row(self, ordered: Tensor, step: _Step) -> tuple[Tensor, Tensor]:
        """Return the rows of sets among the measured ones, and whether each counts as measured.

        Sets with a repeated gene, or one that is treated as unseen, do not exist.
        """
        size = ordered.shape[1]
        keys, _, _ = self._known(size)
        row, is_measured = _look_up(keys, _keys(ordered, self.n_genes))
        has_distinct_genes = (ordered.diff(dim=1) > 0).all(dim=1)
        is_measured = is_measured & has_distinct_genes & step.kept[ordered].all(dim=1)
        if size in step.own:
            is_measured = is_measured & ~step.own[size][row]
        return row, is_measured

    def _known(self, size: int) -> list[Tensor]:
        """Return the keys, ascending, the scores and the folds of the measured sets of one size."""
        return [getattr(self, f"{name}{size}") for name in ("keys", "scores", "folds")]

    def _add_edges(self, neighbours: Neighbours, order: GeneOrder, nearest: int) -> None:
        """Store the edges of all relations by key, and each gene's neighbours with their edges."""
        edges = _Edges.of(neighbours, order)
        self.edge_keys = _buffer(edges.keys)
        self.edge_weights = _buffer(np.log1p(edges.weights))
        nearest_edges = edges.nearest(nearest)
        self.candidates = _buffer(nearest_edges.genes)
        self.candidate_edges = _buffer(nearest_edges.edges)


class _NearestEdges(NamedTuple):
    """The strongest edges of each gene, [genes, nearest]."""

    genes: Ints  # at the other end
    edges: Ints  # numbers of the edges


class _Edges(NamedTuple):
    """The edges of all relations, in the numbering of the cell, which the genotypes use."""

    n_genes: int
    keys: Ints  # first gene * n_genes + second gene, ascending, [edges]
    weights: Floats  # in each relation, [edges, relations]

    @classmethod
    def of(cls, neighbours: Neighbours, order: GeneOrder) -> _Edges:
        """Return the edges with weights divided by their relation's mean, so that none dominates.

        The first edge is that of gene 0 with itself, so that there is always one.
        """
        n_genes = len(order)
        matrices = [sp.coo_array(matrix) for matrix in neighbours.matrices]
        keys_of_relations = [
            order.gene[matrix.row] * n_genes + order.gene[matrix.col] for matrix in matrices
        ]
        first_key = np.zeros(1, dtype=np.int64)
        keys: Ints = np.unique(np.concatenate([first_key, *keys_of_relations]))
        weights = np.zeros((len(keys), len(matrices)), dtype=np.float32)
        pairs = zip(keys_of_relations, matrices, strict=True)
        for relation, (keys_of_relation, matrix) in enumerate(pairs):
            weights[np.searchsorted(keys, keys_of_relation), relation] = matrix.data
        n_edges = (weights > 0).sum(axis=0)
        mean = weights.sum(axis=0) / np.maximum(n_edges, 1)
        weights /= np.where(mean > 0, mean, 1)
        return cls(n_genes, keys, weights)

    def nearest(self, n_nearest: int) -> _NearestEdges:
        """Return the strongest edges of each gene by their sum of weights, ties by gene.

        A gene with fewer neighbours is padded with itself; in its own place, that is the set
        itself, which counts as measured only if a training set is scored after training.
        """
        first = self.keys // self.n_genes
        second = self.keys % self.n_genes
        total = self.weights.sum(axis=1)
        strongest_first = np.lexsort((second, -total, first))
        ordered_first = first[strongest_first]
        ranks = np.arange(len(strongest_first)) - np.searchsorted(ordered_first, ordered_first)
        is_near = (ranks < n_nearest) & (total[strongest_first] > 0)
        chosen = strongest_first[is_near]
        genes = np.repeat(np.arange(self.n_genes)[:, None], n_nearest, axis=1)
        edges = np.zeros((self.n_genes, n_nearest), dtype=np.int64)
        places = first[chosen], ranks[is_near]
        genes[places] = second[chosen]
        edges[places] = chosen
        return _NearestEdges(genes, edges)


def _symmetric(a: Tensor, b: Tensor) -> list[Tensor]:
    return [a + b, a * b, (a - b).abs()]


def _symmetric_residuals(a: Tensor, b: Tensor) -> list[Tensor]:
    return [a + b, (a - b).abs(), a * b]


class LayersInARow(nn.Sequential):
    """Layers one after the other; `torch.compile` skips functions of PyTorch, but not this one."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers."""
        for layer in self:
            x = layer(x)
        return x


def _buffer(array: AnyArray) -> Tensor:
    return nn.Buffer(torch.from_numpy(np.ascontiguousarray(array)), persistent=False)


class _Step(NamedTuple):
    """What counts as measured in one step, and the keys of the genes."""

    fold: Tensor  # the fold of each set
    kept: Tensor  # which genes count as measured
    own: dict[int, Tensor]  # a mask of the measured sets of the batch itself, by size
    key: Tensor  # the key of each gene as a neighbour, [genes, heads, 8]


def _gene_inputs(
    cell: Cell,
    order: GeneOrder,
    neighbours: Neighbours,
    features: Sequence[str] | None,
) -> Floats:
    """Return the fixed inputs of genes: features, places in the networks and degrees, [genes, n].

    Each column has a mean of 0 and a deviation of 1, or is 0 if it is constant.
    """
    columns: list[AnyArray] = [np.ones((cell.n_genes, 1))]
    for feature in chosen_features(cell, features):
        columns.append(feature_vectors(feature, _COMPONENTS))
    if neighbours.names:
        degrees = [np.log1p(np.diff(weight.indptr)) for weight in neighbours.weights]
        in_networks = [neighbours.places(_PLACES), np.stack(degrees, axis=1)]
        columns.append(np.concatenate(in_networks, axis=1)[order.place])
    inputs = np.concatenate(columns, axis=1)
    deviation = inputs.std(axis=0)
    standard: AnyArray = (inputs - inputs.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
    return standard.astype(np.float32)


def _keys(genes: Tensor, n_genes: int) -> Tensor:
    if n_genes ** genes.shape[1] >= 2**63:
        message = f"PairCell cannot handle sets of {genes.shape[1]} of {n_genes} genes"
        raise InputError(message, code="genotype-too-large")
    key = genes[:, 0]
    for place in range(1, genes.shape[1]):
        key = key * n_genes + genes[:, place]
    return key


def _look_up(keys: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the position of each wanted key in ascending keys, and whether it is present."""
    row = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    return row, keys[row] == wanted
