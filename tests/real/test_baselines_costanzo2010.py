"""The baselines on Costanzo 2010, a list of hits, and the real networks: the bar for models."""

import numpy as np
import pytest
import torch

from deltacell.cell import Cell
from deltacell.evaluation import Bootstrap, baselines, evaluate_predictions
from deltacell.models.baselines import baseline
from deltacell.report.evaluate import markdown_evaluation
from deltacell.screen import Split
from deltacell.screen.screen import lists_only_hits

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def raw(costanzo2010, genes):
    return costanzo2010.on(genes, "drop")


@pytest.fixture(scope="module")
def screen(raw):
    return raw.merge("mean")


@pytest.fixture(scope="module")
def cell(shared_data, read, genes):
    paths = sorted((shared_data / "networks").glob("*.gz"))
    return Cell(genes, [one.on(genes, "drop")[0] for path in paths for one in read(path)])


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
            cell,
            *part(split.train),
            validation=part(split.validation),
            seed=0,
        )
        genotypes, truth = part(split.test)
        score = fitted(cell, genotypes).score.numpy()
        return score, {
            int(unseen): np.corrcoef(score[at], truth[at])[0, 1]
            for unseen in np.unique(split.unseen)
            if (at := split.unseen == unseen).sum() > 1000 and score[at].std() > 1e-6
        }

    return measured


def test_signs_among_hits_the_additive_baseline_and_the_ceiling(read, genes, raw, screen):
    assert lists_only_hits(raw)
    cell, split = Cell(genes, []), Split.random(screen, seed=0)
    given = baselines(cell, screen, split, ["additive"])
    result = evaluate_predictions(cell, screen, split, given, repeats=raw, bootstrap=Bootstrap(50))
    assert result.positives.among == "hits"
    assert result.test.labelled == pytest.approx(16_559, abs=20)
    scores = result.test.scores["additive"]
    assert scores["pearson"].value == pytest.approx(0.23, abs=0.02)
    assert scores["auroc"].value == pytest.approx(0.615, abs=0.02)
    assert 0.95 < result.ceiling.pearson < 1
    assert "too high" in markdown_evaluation(result.to_json())
    labels = {group.label for group in result.groups if group.by == "perturbation"}
    assert labels == {"deletion", "deletion + ts", "deletion + damp"}
    part = read("screens/kuzmin2018_fitness_slice.tsv.gz")[0].on(genes, "drop")
    assert not lists_only_hits(part)


@pytest.mark.slow
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


@pytest.mark.slow
def test_boosted_trees(scores):
    # Few rounds that learn faster take less time, and have to be enough.
    few = {"rounds": 50, "learning_rate": 0.2}
    pearson = scores("boosted_trees", "random", **few)[1]
    assert pearson[0] > 0.27
    by_unseen = scores("boosted_trees", "gene", **few)[1]
    assert by_unseen[1] > 0.2
    assert by_unseen[2] > 0.05
