"""The models learn what was planted, on genes they have never seen, and nothing from noise."""

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from deltacell import Cell, Loader, Screen, Split
from deltacell.models import Dango, DangoLoss, HeteroCell, LogCosh, PointDistributionContrast
from deltacell.models.baselines import Additive
from deltacell.models.interface import LabelledSets
from deltacell.models.pairs import PairCell, PairTrees

pytestmark = pytest.mark.slow


# One relation is enough to learn from, and every other one takes time.
def dango(cell: Cell) -> tuple[torch.nn.Module, Any]:
    return Dango(cell, ["string_coexpression"], hidden=32), DangoLoss(turn=4)


def hetero_cell(cell: Cell) -> tuple[torch.nn.Module, Any]:
    options = {"aggregation": "mean", "features": ["expression"], "local_heads": 4}
    model = HeteroCell(cell, ["string_coexpression"], hidden=16, layers=1, **options)
    # The planted scores are rare and large, so squared errors need fewer steps than log cosh.
    return model, PointDistributionContrast(lambda_w=0.0)


def pair_cell(cell: Cell) -> tuple[torch.nn.Module, Any]:
    return PairCell(cell, hidden=32, heads=4, nearest=16, nearest_both=6), LogCosh()


def pair_trees(cell: Cell) -> tuple[PairTrees, None]:
    return PairTrees(rounds=15, folds=3, gene_folds=3), None


@lru_cache
def problem(seed: int) -> tuple[Cell, Screen, np.ndarray, np.ndarray]:
    """A cell, its screen, and the rows to train on and to test."""
    cell = Cell.synthetic("demo", seed=seed)
    screen = Screen.synthetic(cell, seed=seed)
    # The genes that no genotype deletes would double the time and change nothing else.
    cell = cell.subset(np.unique(screen.genotypes.genes.numpy()))
    screen = screen.on(cell)
    split = Split.gene(screen, seed=seed)
    # Nothing is chosen by validation here, so its rows are trained on.
    return cell, screen, np.union1d(split.train, split.validation), split.test[:1_000]


def difference(make: Any, epochs: int, batch: int, rate: float, seed: int, shuffled: bool) -> float:
    """Pearson of the model less that of the additive baseline, on test genotypes."""
    cell, screen, train, test = problem(seed)
    train = train[::3] if shuffled else train
    score = screen.column("score").astype(np.float32)
    labels = np.random.default_rng(seed).permutation(score) if shuffled else score
    labels = (labels - labels[train].mean()) / labels[train].std()
    genotypes, targets = screen.genotypes.take(torch.tensor(train)), torch.tensor(labels[train])
    torch.manual_seed(seed)
    model, criterion = make(cell)
    if isinstance(model, PairTrees):
        model.fit(cell, genotypes, targets, seed=seed)
    else:
        if isinstance(model, PairCell):
            model.begin(cell, LabelledSets(genotypes, targets))
        loader = Loader(screen, train, batch_size=batch, seed=seed, targets=labels)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-3, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
        for epoch, part in ((epoch, part) for epoch in range(epochs) for part in loader):
            optimizer.zero_grad()
            prediction = model(cell, part.genotypes, wanted=criterion.reads)
            criterion(prediction, part.targets, part.weights, epoch=epoch).total.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            schedule.step()
        model.eval()
    held_out = screen.genotypes.take(torch.tensor(test))
    with torch.no_grad():
        mine, additive = (
            np.corrcoef(predictor(cell, held_out).score.numpy(), score[test])[0, 1]
            for predictor in (model, Additive().fit(cell, genotypes, targets))
        )
    return float(mine - additive)


def interval(level: float, seeds: int, *how: Any, shuffled: bool) -> tuple[float, float]:
    """The interval of the mean over seeds."""
    found = np.array([difference(*how, seed, shuffled) for seed in range(seeds)])
    half = stats.t.ppf((1 + level) / 2, len(found) - 1) * stats.sem(found)
    return float(found.mean() - half), float(found.mean() + half)


# To learn nothing takes fewer rows and epochs than to learn something.
models = pytest.mark.parametrize(
    ("make", "seeds", "epochs", "few", "batch", "rate"),
    [
        (dango, 4, 10, 3, 128, 2e-2),
        (hetero_cell, 4, 10, 2, 128, 1e-2),
        # These differ little from seed to seed.
        (pair_cell, 3, 2, 2, 128, 5e-3),
        (pair_trees, 3, 0, 0, 0, 0.0),
    ],
)


@models
def test_a_model_beats_the_additive_baseline_on_unseen_genes(make, seeds, epochs, few, batch, rate):
    low, high = interval(0.95, seeds, make, epochs, batch, rate, shuffled=False)
    assert low > 0.05, f"model - additive in Pearson: {low:.3f} to {high:.3f}"


@models
def test_nothing_is_learned_from_shuffled_labels(make, seeds, epochs, few, batch, rate):
    # Rounding differs between processors: at 95 %, one in twenty would reject a right model.
    low, high = interval(0.99, seeds, make, few, batch, rate, shuffled=True)
    assert low < 0 < high, f"model - additive in Pearson: {low:.3f} to {high:.3f}"
