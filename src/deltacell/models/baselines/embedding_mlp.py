"""A multilayer perceptron on learned gene embeddings, without a graph."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from deltacell.arrays import Bools, Doubles
from deltacell.cell import Cell
from deltacell.models.base import check_range, parameter_groups
from deltacell.models.baselines.baseline import (
    FitData,
    FittedPredictor,
    Part,
    Report,
    State,
    loaded,
    saved,
)
from deltacell.models.baselines.gene_sets import GeneOrder, GeneSets

_SETS_PER_BLOCK = 65_536
_VALIDATION_SHARE = 0.1


@dataclass(eq=False)
class EmbeddingMLP(FittedPredictor):
    r"""A sum over the genes of a set between two multilayer perceptrons.

    .. math:: \hat y(S) = \bar y + s \, \rho\Big(\sum_{g \in S} \phi(e_g)\Big)

    with a learned vector e per gene, :math:`\phi` = Linear, ReLU, :math:`\rho` = Linear, ReLU,
    Linear to one number, and the mean and standard deviation of the training scores. All genes
    never seen share one vector. It is learned by letting each gene of a training genotype stand
    for an unseen one with the probability ``forget``.

    It trains with AdamW on the squared error and keeps the epoch with the smallest error on the
    validation part; without one, a tenth of the training sets is held out for it.

    Parameters
    ----------
    width
        Width of the vectors and of all layers.
    learning_rate, weight_decay
        Those of AdamW.
    dropout
        Share of the pooled vector's entries that are dropped while training.
    forget
        Probability that a gene stands for an unseen one while training.
    batch_size
        Genotypes per step.
    epochs
        The most passes over the training part.
    patience
        Epochs without improvement after which it stops.
    """

    width: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    dropout: float = 0.2
    forget: float = 0.1
    batch_size: int = 512
    epochs: int = 60
    patience: int = 6

    def __post_init__(self) -> None:
        check_range("[1, inf)", width=self.width, batch_size=self.batch_size)
        check_range("[1, inf)", epochs=self.epochs, patience=self.patience)
        check_range("[0, 1)", dropout=self.dropout, forget=self.forget)
        check_range("(0, inf)", learning_rate=self.learning_rate)
        check_range("[0, inf)", weight_decay=self.weight_decay)

    def _fit(self, data: FitData) -> None:
        rng, n = np.random.default_rng(data.seed), len(data.order)
        training, validation = data.training, data.validation
        if validation is None:
            training, validation = _held_out(training, n, rng)
        deviation = np.sqrt(
            np.average((training.targets - training.mean) ** 2, weights=training.weights)
        )
        self._mean, self._scale = training.mean, float(deviation) or 1.0
        self._seen = np.zeros(n, dtype=bool)
        self._seen[training.sets.genes] = True
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(data.seed)
            network = _SetNetwork(n + 1, self.width, self.dropout)
            self._network = self._train(network, training, validation, rng, data.report)

    def _train(
        self,
        network: _SetNetwork,
        training: Part,
        validation: Part,
        rng: np.random.Generator,
        report: Report,
    ) -> _SetNetwork:
        """Return the network of the best epoch, in float64."""
        optimizer = torch.optim.AdamW(
            parameter_groups(network, self.weight_decay), lr=self.learning_rate
        )
        best, best_error, best_epoch = network, np.inf, 0
        for epoch in range(1, self.epochs + 1):
            network.train()
            rows = rng.permutation(len(training.sets))
            for start in range(0, len(rows), self.batch_size):
                part = training.take(rows[start : start + self.batch_size])
                forgotten = rng.random(len(part.sets.genes)) < self.forget
                score = network(*self._tensors(part.sets, forgotten))
                target = torch.from_numpy((part.targets - self._mean) / self._scale).float()
                weight = torch.from_numpy(part.weights).float()
                loss = (weight * (score - target) ** 2).sum() / weight.sum().clamp(min=1e-12)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            frozen = copy.deepcopy(network).double().eval()
            difference = self._run(frozen, validation.sets) - validation.targets
            error = float(np.average(difference**2, weights=validation.weights))
            report("epochs", epoch, self.epochs, mse=error)
            if error < best_error:
                best, best_error, best_epoch = frozen, error, epoch
            elif epoch - best_epoch >= self.patience:
                break
        return best

    def _score(self, cell: Cell, sets: GeneSets) -> Doubles:
        return self._run(self._network, sets)

    def _state(self) -> State:
        return {
            "mean": self._mean,
            "scale": self._scale,
            "seen": saved(self._seen),
            "network": dict(self._network.state_dict()),
        }

    def _load(self, cell: Cell, order: GeneOrder, state: State) -> None:
        self._mean, self._scale = float(state["mean"]), float(state["scale"])
        self._seen = loaded(state["seen"])
        self._network = _SetNetwork(len(order) + 1, self.width, self.dropout).double().eval()
        self._network.load_state_dict(state["network"])

    @torch.no_grad()
    def _run(self, network: _SetNetwork, sets: GeneSets) -> Doubles:
        score = np.empty(len(sets))
        for start in range(0, len(sets), _SETS_PER_BLOCK):
            block = sets.slice(start, min(start + _SETS_PER_BLOCK, len(sets)))
            score[start : start + len(block)] = network(*self._tensors(block)).numpy()
        return self._mean + self._scale * score

    def _tensors(
        self, sets: GeneSets, forgotten: Bools | None = None
    ) -> tuple[Tensor, Tensor, int]:
        known = self._seen[sets.genes]
        if forgotten is not None:
            known &= ~forgotten
        # The last vector is that of unseen genes.
        vector = np.where(known, sets.genes, len(self._seen))
        return torch.from_numpy(vector), torch.from_numpy(sets.owner), len(sets)


class _SetNetwork(nn.Module):
    def __init__(self, n_vectors: int, width: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_vectors, width)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.gene = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.set = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, vector: Tensor, owner: Tensor, n_sets: int) -> Tensor:
        """Return one score per set; ``owner`` is the set that each vector belongs to."""
        genes = self.gene(self.embedding(vector))
        pooled = genes.new_zeros(n_sets, genes.shape[1]).index_add(0, owner, genes)
        score: Tensor = self.set(pooled).squeeze(1)
        return score


def _held_out(part: Part, n_genes: int, rng: np.random.Generator) -> tuple[Part, Part]:
    """Return what to train on and what to stop by; repeats of a set stay together."""
    number, n_distinct = part.sets.distinct(n_genes)
    held = (rng.permutation(n_distinct) < _VALIDATION_SHARE * n_distinct)[number]
    if not (part.weights[held].any() and part.weights[~held].any()):
        return part, part
    return part.take(np.flatnonzero(~held)), part.take(np.flatnonzero(held))
