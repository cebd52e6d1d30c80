"""Runs, cells and screens that earlier versions saved are loaded and predict what they predicted.

Each folder of tests/saved has the runs of one version; ``python -m deltacell_dev.saved_runs`` wrote
it.
"""

import json
import shutil
from pathlib import Path

import pytest

import deltacell as dc
from deltacell.train.config.saved import saved_yaml
from deltacell.train.places import for_disk
from deltacell_dev.saved_runs import RUNS, scores_of

SAVED = Path(__file__).parents[1] / "saved"
VERSIONS = sorted(folder.name for folder in SAVED.iterdir())


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_run_of_an_earlier_version_predicts_what_it_predicted(version: str, run: str) -> None:
    predictions = json.loads((SAVED / version / "predictions.json").read_text())
    scores = scores_of(SAVED / version / run)
    assert scores == pytest.approx(predictions[run], rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("version", VERSIONS)
def test_saved_runs_have_every_kind_of_model_and_different_scores(version: str) -> None:
    predictions = json.loads((SAVED / version / "predictions.json").read_text())
    assert set(predictions) == set(RUNS)
    assert len({tuple(scores) for scores in predictions.values()}) == len(RUNS)
    models = {dc.Run(SAVED / version / run).config.model.name for run in RUNS}
    assert models >= {"boosted_trees", "dango", "hetero_cell", "pair_cell", "pair_trees"}


@pytest.mark.parametrize("run", ["hetero_delta", "hetero_late"])
def test_settings_that_have_moved_keep_their_values(run: str) -> None:
    model = dc.Run(SAVED / "f62252d6" / run).config.model
    assert model.propagation == run.removeprefix("hetero_")
    assert model.max_bytes == (1_000_000 if run == "hetero_delta" else None)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_network_of_an_earlier_version_is_trained_on(version: str, tmp_path: Path) -> None:
    shutil.copytree(SAVED / version / "data", tmp_path / "data")
    shutil.copytree(SAVED / version / "dango", tmp_path / "dango")
    run = dc.Run(tmp_path / "dango").resume(progress=False, epochs=2)
    assert [row["epoch"] for row in run.history] == [1, 2]
    # What it saved is of the present format.
    text = (run.path / "config.yaml").read_text()
    assert saved_yaml(for_disk(run.config, run.path)) in text
