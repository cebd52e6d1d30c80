"""A small cell with a screen, its split, and screens made row by row."""

import numpy as np
import pytest

from deltacell.cell import Cell, Relation
from deltacell.evaluation import Bootstrap, baselines, evaluate_predictions
from deltacell.screen import Coverage, Genotypes, Screen, Split, StudyCoverage


@pytest.fixture(scope="session")
def cell():
    return Cell.synthetic("demo")


@pytest.fixture(scope="session")
def screen(cell):
    return Screen.synthetic(cell, n=1_500)


@pytest.fixture(scope="session")
def split(screen):
    return Split.gene(screen, seed=0)


@pytest.fixture(scope="session")
def predictions(cell, screen, split):
    made = dict(baselines(cell, screen, split, ["global_mean", "additive", "query_pair_mean"]))
    truth = screen.column("score")[split.test].astype(float)
    rng = np.random.default_rng(0)
    made["good"] = {s: truth + 0.1 * rng.normal(size=len(truth)) for s in (0, 5)}
    made["shuffled"] = rng.permutation(truth)
    return made


@pytest.fixture(scope="session")
def evaluation(cell, screen, split, predictions):
    return evaluate_predictions(cell, screen, split, predictions, bootstrap=Bootstrap(100))


@pytest.fixture(scope="session")
def plain_cell():
    """Ten genes and a relation of one edge."""
    relation = Relation.from_edges("r", [0], [1], n_genes=10, directed=False)
    return Cell([f"g{i}" for i in range(10)], [relation])


@pytest.fixture(scope="session")
def pairs(plain_cell):
    """A screen of the pairs 0 1, 0 2, … in order, from its columns."""

    def made(score, *, complete=None, **columns):
        sets = [(i, j) for i in range(10) for j in range(i + 1, 10)][: len(score)]
        study = StudyCoverage("s", np.arange(10), np.arange(11), np.arange(10), bool(complete))
        return Screen.build(
            plain_cell.genes,
            Genotypes.of(sets),
            coverage=None if complete is None else Coverage((study,)),
            score=np.asarray(score, dtype=np.float32),
            study="s",
            **columns,
        )

    return made
