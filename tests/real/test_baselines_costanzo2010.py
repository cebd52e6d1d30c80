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
def pearson(cell, screen):
    """Pearson correlation on the test part, by the number of unseen genes."""
    targets = screen.column("score").astype(np.float64)

    def part(rows):
        return screen.genotypes.take(torch.from_numpy(rows.copy())), targets[rows]

    def measured(name, split, **options):
        fitted = baseline(name, **options).fit(
            cell, *part(split.train), validation=part(split.validation), seed=0
        )
        genotypes, truth = part(split.test)
        score = fitted(cell, genotypes).score.numpy()
        return {
            int(unseen): np.corrcoef(score[at], truth[at])[0, 1]
            for unseen in np.unique(split.unseen)
            if (at := split.unseen == unseen).sum() > 1000 and score[at].std() > 1e-6
        }

    return measured


@pytest.fixture(scope="module")
def random_split(screen):
    return Split.random(screen, seed=0)


@pytest.fixture(scope="module")
def gene_split(screen):
    return Split.gene(screen, seed=0)


def test_screen_and_networks(cell, screen):
    assert len(screen) == pytest.approx(165_700, abs=300)
    assert len(cell.relations) == 14
    assert sum(r.n_edges for r in cell.relations.values()) > 700_000


def test_additive(pearson, random_split, gene_split):
    assert pearson("additive", random_split)[0] == pytest.approx(0.226, abs=0.02)
    by_unseen = pearson("additive", gene_split)
    assert by_unseen[1] == pytest.approx(0.173, abs=0.03)
    assert 2 not in by_unseen


def test_query_pair_mean_knows_no_merged_pair(cell, screen, random_split):
    genotypes = screen.genotypes
    targets = screen.column("score").astype(np.float64)
    train, test = (
        torch.from_numpy(rows.copy()) for rows in (random_split.train, random_split.test)
    )
    scores = [
        baseline(name).fit(cell, genotypes.take(train), targets[train])(cell, genotypes.take(test))
        for name in ("query_pair_mean", "additive")
    ]
    torch.testing.assert_close(scores[0].score, scores[1].score)


def test_embedding_mlp(pearson, random_split, gene_split):
    assert pearson("embedding_mlp", random_split)[0] > 0.2
    assert pearson("embedding_mlp", gene_split)[1] > 0.14


def test_boosted_trees_random(pearson, random_split):
    # A third of the rounds takes a third of the time, and has to be enough.
    assert pearson("boosted_trees", random_split, rounds=100)[0] > 0.27


def test_boosted_trees_unseen_genes(pearson, gene_split):
    by_unseen = pearson("boosted_trees", gene_split)
    assert by_unseen[1] > 0.2
    assert by_unseen[2] > 0.05
