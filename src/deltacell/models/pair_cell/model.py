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
        self.heads, self.hidden = heads, hidden
        self.nearest_both = min(nearest_both, nearest)
        self.drop_genes, self.penalty, self.folds = drop_genes, penalty, folds
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
        y = training.targets.double().numpy()
        part = Part(sets, y)
        fold = set_folds(sets, self.n_genes, self.folds, 0)
        effect, intercept, count = [], [], []
        # The last fold is empty, so its model is fitted on all sets.
        for k in range(self.folds + 1):
            kept = part.take(np.flatnonzero(fold != k))
            fitted = ridge(kept, self.n_genes, self.penalty)
            effect.append(fitted.effect[order.place])
            intercept.append(fitted.intercept)
            of_gene = np.bincount(kept.sets.genes, minlength=self.n_genes)[order.place]
            count.append(of_gene * (len(sets) / len(kept.sets)))
        of_folds = (np.array(x, dtype=np.float32) for x in (effect, intercept, count))
        self.effect, self.intercept, self.count = map(_buffer, of_folds)
        self._sizes = tuple(np.unique(sets.sizes[sets.sizes > 1]).tolist())
        for size in self._sizes:
            rows = np.flatnonzero(sets.sizes == size)
            genes = np.sort(order.gene[sets.take(rows).genes.reshape(-1, size)], axis=1)
            keys, first, inverse, repeats = np.unique(
                _keys(torch.from_numpy(genes), self.n_genes).numpy(),
                return_index=True,
                return_inverse=True,
                return_counts=True,
            )
            score = np.bincount(inverse.ravel(), y[rows]) / repeats
            found = {"keys": keys, "scores": score.astype(np.float32), "folds": fold[rows][first]}
            for name, array in found.items():
                setattr(self, f"{name}{size}", _buffer(array))

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
        (b, size), n_pairs = genes.shape, genes.shape[1] * (genes.shape[1] - 1) // 2
        fold = torch.full((b,), self.folds, device=genes.device)
        own: dict[int, Tensor] = {}
        if self.training and size in self._sizes:
            keys, _, folds = self._known(size)
            row, found = _look_up(keys, _keys(genes, self.n_genes))
            fold = torch.where(found, folds[row], fold)
            # The sets of the batch enter no mean.
            # A set that was not measured marks a place after the last.
            places = torch.where(found, row, len(keys))
            marks = torch.zeros(len(keys) + 1, dtype=torch.bool, device=keys.device)
            own[size] = marks.index_fill(0, places, True)[:-1]
        # Keys use only the fixed inputs of neighbours, so they are the same for all folds.
        key = self.key(self.encoder(functional.pad(self.inputs, (0, 3))))
        step = _Step(fold, kept, own, key.view(-1, self.heads, 8))
        effect = self.effect[fold[:, None], genes] * kept[genes]
        score = self.intercept[fold] + effect.sum(dim=1)
        count = self.count[fold[:, None], genes]
        seen = (count > 0) & kept[genes]
        state = torch.stack([effect * seen, torch.log1p(count) * seen, seen.to(effect)], dim=-1)
        x: Tensor = self.encoder(torch.cat([self.inputs[genes], state], dim=-1))
        of_rests = self.effect.new_zeros(b, 2 * self.heads)
        if size > 2:
            replaced = [self._replace(genes, i, x[:, i], step, 2) for i in range(size)]
            of_rests = torch.stack(replaced).mean(dim=0)
        if not n_pairs:
            single: Tensor = self.read_set(functional.pad(of_rests, (self.hidden, 0))).squeeze(1)
            return score + single
        first, second = torch.triu_indices(size, size, 1, device=genes.device)
        spread = step._replace(fold=fold.repeat_interleave(n_pairs))
        pair = torch.stack([genes[:, first], genes[:, second]], dim=2).view(-1, 2)
        a, c = x[:, first].reshape(-1, self.hidden), x[:, second].reshape(-1, self.hidden)
        one, other = (self._replace(pair, i, v, spread, 0) for i, v in ((0, a), (1, c)))
        both = self._between(pair, a, c, spread)
        parts = [a + c, a * c, (a - c).abs(), one + other, (one - other).abs(), one * other, both]
        row, found = _look_up(self.edge_keys, pair[:, 0] * self.n_genes + pair[:, 1])
        inputs = torch.cat([*parts, self.edge_weights[row] * found[:, None]], dim=1)
        read = self.read_pair(inputs).view(b, n_pairs, -1).mean(dim=1)
        left: Tensor = self.read_set(torch.cat([read, of_rests], dim=1)).squeeze(1)
        return score + left

    def _weights(self, gene: Tensor, x: Tensor, nearest: int, step: _Step) -> Tensor:
        """Return the logarithm of the weight of each neighbour, [b, K, heads]."""
        neighbour = self.candidates[gene, :nearest]
        query = self.query(x).view(-1, 1, self.heads, 8)
        match = (query * step.key[neighbour]).sum(dim=-1) / 8**0.5
        linked = self.relation(self.edge_weights[self.candidate_edges[gene, :nearest]])
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
        rest = torch.cat([genes[:, :place], genes[:, place + 1 :]], dim=1)
        others = rest[:, None, :].expand(-1, neighbour.shape[1], -1)
        sets = torch.cat([others, neighbour[..., None]], dim=2)
        weights = self._weights(genes[:, place], x, neighbour.shape[1], step)
        return self._mean_residual(sets.view(-1, size), weights, step, doubt)

    def _between(self, pair: Tensor, a: Tensor, c: Tensor, step: _Step) -> Tensor:
        """Return the `_mean_residual` of the pairs between two neighbourhoods, [b, 2H]."""
        first, second = (self.candidates[pair[:, i], : self.nearest_both] for i in range(2))
        k = first.shape[1]
        each = first[:, :, None].expand(-1, -1, k), second[:, None, :].expand(-1, k, -1)
        sets = torch.stack(each, dim=3)
        one, other = (self._weights(pair[:, i], x, k, step) for i, x in ((0, a), (1, c)))
        weights = (one[:, :, None] + other[:, None, :]).flatten(1, 2)
        # The two genes are not part of each other's neighbourhoods.
        apart = (sets[..., 0] != pair[:, 1, None, None]) & (sets[..., 1] != pair[:, 0, None, None])
        return self._mean_residual(sets.view(-1, 2), weights, step, 1, apart.flatten(1))

    def _mean_residual(
        self,
        sets: Tensor,
        log_weights: Tensor,
        step: _Step,
        doubt: int,
        allowed: Tensor | None = None,
    ) -> Tensor:
        """Return the weighted mean residual of measured sets and the log of its weight, [b, 2H]."""
        b, k, _ = log_weights.shape
        size, ordered = sets.shape[1], sets.sort(dim=1).values
        if size not in self._sizes:
            return log_weights.new_zeros(b, 2 * self.heads)
        keys, scores, _ = self._known(size)
        row, found = _look_up(keys, _keys(ordered, self.n_genes))
        # Sets with a repeated gene, or one that is treated as unseen, do not exist.
        found = found & (ordered.diff(dim=1) > 0).all(dim=1) & step.kept[ordered].all(dim=1)
        if size in step.own:
            found = found & ~step.own[size][row]
        fold = step.fold.repeat_interleave(k)
        additive = self.intercept[fold] + self.effect[fold[:, None], ordered].sum(dim=1)
        residual = (scores[row] - additive).view(b, k)
        mask = found.view(b, k) if allowed is None else found.view(b, k) & allowed
        weights = log_weights.exp() * mask[..., None]
        total = weights.sum(dim=1)
        weighted = (weights * residual[..., None]).sum(dim=1)
        mean = weighted / (total + functional.softplus(self.doubt[doubt]))
        return torch.cat([mean, torch.log1p(total)], dim=1)

    def _known(self, size: int) -> list[Tensor]:
        """Return the keys, ascending, the scores and the folds of the measured sets of one size."""
        return [getattr(self, f"{name}{size}") for name in ("keys", "scores", "folds")]

    def _add_edges(self, neighbours: Neighbours, order: GeneOrder, nearest: int) -> None:
        """Store the edges of all relations by key, and each gene's neighbours with their edges."""
        n = len(order)
        # In the numbering of the cell, which the genotypes use.
        matrices = [sp.coo_array(matrix) for matrix in neighbours.matrices]
        keys = [order.gene[m.row] * n + order.gene[m.col] for m in matrices]
        distinct: Ints = np.unique(np.concatenate([np.zeros(1, dtype=np.int64), *keys]))
        weights = np.zeros((len(distinct), len(matrices)), dtype=np.float32)
        for i, (key, matrix) in enumerate(zip(keys, matrices, strict=True)):
            weights[np.searchsorted(distinct, key), i] = matrix.data
        # Weights are divided by the mean of their relation, so that none dominates.
        mean = weights.sum(axis=0) / np.maximum((weights > 0).sum(axis=0), 1)
        weights /= np.where(mean > 0, mean, 1)
        row, column, total = distinct // n, distinct % n, weights.sum(axis=1)
        best = np.lexsort((column, -total, row))
        rank = np.arange(len(best)) - np.searchsorted(row[best], row[best])
        near = (rank < nearest) & (total[best] > 0)
        chosen, rank = best[near], rank[near]
        # A gene with fewer neighbours is padded with itself; in its own place, that is the set
        # itself, which counts as measured only if a training set is scored after training.
        candidates = np.repeat(np.arange(n)[:, None], nearest, axis=1)
        edges = np.zeros((n, nearest), dtype=np.int64)
        candidates[row[chosen], rank], edges[row[chosen], rank] = column[chosen], chosen
        self.edge_keys, self.edge_weights = _buffer(distinct), _buffer(np.log1p(weights))
        self.candidates, self.candidate_edges = _buffer(candidates), _buffer(edges)


class LayersInARow(nn.Sequential):
    """Layers one after the other; `torch.compile` skips functions of PyTorch, but not this one."""

    def forward(self, x: Tensor) -> Tensor:
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
    columns: list[AnyArray] = [np.ones((cell.n_genes, 1))]
    columns += [feature_vectors(one, _COMPONENTS) for one in chosen_features(cell, features)]
    if neighbours.names:
        degrees = [np.log1p(np.diff(weight.indptr)) for weight in neighbours.weights]
        places = [neighbours.places(_PLACES), np.stack(degrees, axis=1)]
        columns.append(np.concatenate(places, axis=1)[order.place])
    inputs = np.concatenate(columns, axis=1)
    deviation = inputs.std(axis=0)
    standard: AnyArray = (inputs - inputs.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
    return standard.astype(np.float32)


def _keys(genes: Tensor, n_genes: int) -> Tensor:
    if n_genes ** genes.shape[1] >= 2**63:
        what = f"PairCell cannot handle sets of {genes.shape[1]} of {n_genes} genes"
        raise InputError(what, code="genotype-too-large")
    key = genes[:, 0]
    for i in range(1, genes.shape[1]):
        key = key * n_genes + genes[:, i]
    return key


def _look_up(keys: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the position of each wanted key in ascending keys, and whether it is present."""
    row = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    return row, keys[row] == wanted
