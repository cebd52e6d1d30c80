"""On the made-up cell it is known which relations carry the pathways, and these carry the score."""

from __future__ import annotations

import numpy as np
import pytest

from deltacell.predict.attribution import GatedModel, relation_contributions
from deltacell.train.compose import compose
from deltacell.train.loaded_run import load_run
from deltacell.train.run import train

CARRIERS = {"string_coexpression", "string_experimental", "string_database"}
"""Two thirds or more of their edges lie within a pathway; of the other channels two fifths at most.

Trained with seeds 0, 1 and 2 they get 95, 92 and 83 % of all that the relations contribute.
"""


@pytest.mark.slow
def test_the_relations_that_carry_the_pathways_carry_the_strong_interactions(tmp_path):
    train(compose(["experiment=demo", "trainer.figures_every=0", f"directory={tmp_path / 'run'}"]))
    run = load_run(tmp_path / "run")
    screen, test = run.data.screen, run.data.split.test
    strong = test[np.argsort(-np.abs(screen.column("score")[test]))][:20]
    total: dict[str, float] = {}
    for row in strong.tolist():
        genes = screen.genotypes.genes[screen.offsets[row] : screen.offsets[row + 1]].tolist()
        gated = GatedModel(run.predictor.model, run.data.cell, genes)
        values = np.abs(relation_contributions(gated, most=65).values).tolist()
        for name, size in zip(gated.relations, values, strict=True):
            total[name] = total.get(name, 0.0) + size
    assert sum(total[name] for name in CARRIERS) > 2 / 3 * sum(total.values())
