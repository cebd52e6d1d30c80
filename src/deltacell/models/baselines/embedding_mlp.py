"""A multilayer perceptron on learned gene embeddings, without a graph."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from deltacell.arrays import Bools, Ints
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.models.baselines.baseline import (
    Doubles,
    FittedPredictor,
    Part,
    Report,
    State,
    loaded,
    saved,
)
from deltacell.models.baselines.gene_sets import GeneOrder, GeneSets
from deltacell.models.parameter_groups import parameter_groups

_SETS_A_BLOCK = 65_536
_VALIDATION_SHARE = 0.1


class EmbeddingMLP(FittedPredictor):
    r"""A sum over the genes of a set between two multilayer perceptrons.

    .. math:: \hat y(S) = \bar y + s \, \rho\Big(\sum_{g \in S} \phi(e_g)\Big)

    with a learned vector e a gene, :math:`\phi` = Linear, ReLU, :math:`\rho` = Linear, ReLU,
    Linear to one number, and the mean and standard deviation of the training scores. All genes
    never seen share one vector. It is learned by letting each gene of a training genotype stand
    for an unseen one with the probability ``forget``.

    It trains with AdamW on the squared error and keeps the epoch with the smallest error on the
    validation part; without one, a tenth of the training sets is held out for it.

    Parameters
    ----------
    width
        Of the vectors and of all layers.
    learning_rate, weight_decay
        Of AdamW.
    dropout
        Share of the pooled vector's entries that are dropped while training.
    forget
        Probability that a gene stands for an unseen one while training.
    batch_size
        Genotypes a step.
    epochs
        Most passes over the training part.
    patience
        Epochs without improvement after which it stops.
    """

    def __init__(
        self,
        width: int = 64,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.1,
        dropout: float = 0.2,
        forget: float = 0.1,
        batch_size: int = 512,
        epochs: int = 60,
        patience: int = 6,
    ) -> None:
        for name, count in (
            ("width", width),
            ("batch_size", batch_size),
            ("epochs", epochs),
            ("patience", patience),
        ):
            if count < 1:
                raise InputError(f"{name} is {count}; expected at least 1")
        for name, share in (("dropout", dropout), ("forget", forget)):
            if not 0 <= share < 1:
                raise InputError(f"{name} is {share}; expected at least 0 and below 1")
        if not learning_rate > 0 or not weight_decay >= 0:
            raise InputError(
                f"the learning rate is {learning_rate} and the weight decay {weight_decay}; "
                "expected one above 0 and one not below 0"
            )
        self.width = width
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.forget = forget
        self.batch_size = batch_size
        self.epochs = epochs
        self.patience = patience

    def _fit(
        self,
        cell: Cell,
        order: GeneOrder,
        training: Part,
        validation: Part | None,
        seed: int,
        progress: Report,
    ) -> None:
        rng = np.random.default_rng(seed)
        if validation is None:
            training, validation = _held_out(training, len(order), rng)
        deviation = np.sqrt(
            np.average((training.targets - training.mean) ** 2, weights=training.weights)
        )
        self._mean, self._scale = training.mean, float(deviation) or 1.0
        self._unseen = len(order)
        self._seen = np.zeros(len(order), dtype=bool)
        self._seen[training.sets.genes] = True
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = _SetNetwork(len(order) + 1, self.width, self.dropout)
            self._network = self._trained(network, training, validation, rng, progress)

    def _trained(
        self,
        network: _SetNetwork,
        training: Part,
        validation: Part,
        rng: np.random.Generator,
        progress: Report,
    ) -> _SetNetwork:
        """Return the network of the best epoch, in float64."""
        optimizer = torch.optim.AdamW(
            parameter_groups(network, self.weight_decay), lr=self.learning_rate
        )
        best, best_error, best_epoch = network, np.inf, 0
        for epoch in range(1, self.epochs + 1):
            network.train()
            for rows in _batches(len(training.sets), self.batch_size, rng):
                part = training.take(rows)
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
            progress("epochs", epoch, self.epochs, mse=error)
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
        self._unseen, self._seen = len(order), loaded(state["seen"])
        network = _SetNetwork(len(order) + 1, self.width, self.dropout).double().eval()
        network.load_state_dict(state["network"])
        self._network = network

    @torch.no_grad()
    def _run(self, network: _SetNetwork, sets: GeneSets) -> Doubles:
        score = np.empty(len(sets))
        for start in range(0, len(sets), _SETS_A_BLOCK):
            block = sets.slice(start, min(start + _SETS_A_BLOCK, len(sets)))
            score[start : start + len(block)] = network(*self._tensors(block)).numpy()
        return self._mean + self._scale * score

    def _tensors(
        self, sets: GeneSets, forgotten: Bools | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, int]:
        known = self._seen[sets.genes]
        if forgotten is not None:
            known &= ~forgotten
        vector = np.where(known, sets.genes, self._unseen)
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

    def forward(self, vector: torch.Tensor, owner: torch.Tensor, n_sets: int) -> torch.Tensor:
        """Return a score a set; ``owner`` is the set that each vector belongs to."""
        genes = self.gene(self.embedding(vector))
        pooled = genes.new_zeros(n_sets, genes.shape[1]).index_add(0, owner, genes)
        score: torch.Tensor = self.set(pooled).squeeze(1)
        return score


def _batches(n: int, size: int, rng: np.random.Generator) -> Iterator[Ints]:
    rows = rng.permutation(n)
    yield from (rows[start : start + size] for start in range(0, n, size))


def _held_out(part: Part, n_genes: int, rng: np.random.Generator) -> tuple[Part, Part]:
    """Return what to train on and what to stop by; repeats of a set stay together."""
    _, distinct = np.unique(part.sets.keys(n_genes), return_inverse=True)
    n_distinct = int(distinct.max()) + 1
    chosen = rng.permutation(n_distinct) < _VALIDATION_SHARE * n_distinct
    held = chosen[distinct.ravel()]
    usable = part.weights[held].any() and part.weights[~held].any()
    if not usable:
        return part, part
    return part.take(np.flatnonzero(~held)), part.take(np.flatnonzero(held))
