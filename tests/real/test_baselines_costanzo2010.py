"""The baselines on Costanzo 2010 and the real networks, which a model has to beat."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deltacell.cell import Cell
from deltacell.cell.readers import EDGE_READERS, recognise, relation_of, sgd_features
from deltacell.models.baselines import baseline
from deltacell.screen.readers import costanzo2010
from deltacell.screen.split import Split

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def cell(shared_data):
    genes, _ = sgd_features.read(shared_data / "genes" / "SGD_features.tab.gz")
    readers = {reader.NAME: reader for reader in EDGE_READERS}
    paths = sorted((shared_data / "networks").glob("*.gz"))
    edges = [e for path in paths for e in readers[str(recognise(path))].read(path)]
    return Cell(genes, [relation_of(e, genes, "drop")[0] for e in edges])


@pytest.fixture(scope="module")
def screen(shared_data, cell):
    file = "sgadata_costanzo2009_intermediateCutoff_101120.txt.gz"
    return costanzo2010.read(shared_data / "screens" / file).on(cell.genes, "drop").merge("mean")


@pytest.fixture(scope="module")
def scores(cell, screen):
    """The scores of the test part, and Pearson correlation by the number of unseen genes."""
    targets = screen.column("score").astype(np.float64)
    splits = {"random": Split.random(screen, seed=0), "gene": Split.gene(screen, seed=0)}

    def part(rows):
        return screen.genotypes.take(torch.from_numpy(rows.copy())), targets[rows]

    def measured(name, split, **options):
        split = splits[split]
        fitted = baseline(name, **options).fit(
            cell, *part(split.train), validation=part(split.validation), seed=0
        )
        genotypes, truth = part(split.test)
        score = fitted(cell, genotypes).score.numpy()
        return score, {
            int(unseen): np.corrcoef(score[at], truth[at])[0, 1]
            for unseen in np.unique(split.unseen)
            if (at := split.unseen == unseen).sum() > 1000 and score[at].std() > 1e-6
        }

    return measured


def test_screen_networks_and_the_closed_forms(cell, screen, scores):
    assert len(screen) == pytest.approx(165_700, abs=300)
    assert len(cell.relations) == 14
    assert sum(r.n_edges for r in cell.relations.values()) > 700_000
    additive, pearson = scores("additive", "random")
    assert pearson[0] == pytest.approx(0.226, abs=0.02)
    # Of a merged pair there is no other measurement.
    np.testing.assert_allclose(scores("query_pair_mean", "random")[0], additive, rtol=1e-5)
    by_unseen = scores("additive", "gene")[1]
    assert by_unseen[1] == pytest.approx(0.173, abs=0.03)
    assert 2 not in by_unseen


def test_embedding_mlp(scores):
    assert scores("embedding_mlp", "random")[1][0] > 0.2
    assert scores("embedding_mlp", "gene")[1][1] > 0.14


def test_boosted_trees(scores):
    # A third of the rounds takes a third of the time, and has to be enough.
    assert scores("boosted_trees", "random", rounds=100)[1][0] > 0.27
    by_unseen = scores("boosted_trees", "gene")[1]
    assert by_unseen[1] > 0.2
    assert by_unseen[2] > 0.05
