"""An ensemble is the weighted sum of its runs on one scale, and needs no run but its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from deltacell.errors import InputError
from deltacell.train.compose import compose
from deltacell.train.loaded_run import load_run
from deltacell.train.run import fit_run

DATA = ["data.synthetic=demo", "data.synthetic_genotypes=900", "split.method=gene"]


def fitted(path: Path, *overrides: str) -> Path:
    return fit_run(compose([*overrides, f"directory={path}"])).path


def best_weights(design: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """The least-squares weights of which none but the first is negative, by trying all subsets."""
    found = []
    for kept in ([0], [0, 1], [0, 2], [0, 1, 2]):
        weights = np.zeros(3)
        weights[kept] = np.linalg.lstsq(design[:, kept], measured, rcond=None)[0]
        if (weights[1:] >= 0).all():
            found.append((((design @ weights - measured) ** 2).sum(), weights))
    return min(found, key=lambda one: one[0])[1]


@pytest.fixture
def members(tmp_path: Path) -> list[Path]:
    trees = fitted(tmp_path / "trees", *DATA, "model=boosted_trees", "model.rounds=20")
    return [trees, fitted(tmp_path / "additive", *DATA, "model=additive")]


def ensemble(path: Path, runs: list[Path]) -> Path:
    return fitted(path, "model=ensemble", f"model.runs=[{','.join(map(str, runs))}]")


def test_it_is_the_weighted_sum_and_outlives_its_runs(members: list[Path], tmp_path: Path) -> None:
    path = ensemble(tmp_path / "both", members)
    parts = [load_run(run) for run in members]
    for run in members:
        shutil.rmtree(run)
    loaded = load_run(path)
    data = loaded.data
    valid, measured = data.part(data.split.validation)
    test, _ = data.part(data.split.test)
    design, asked = [np.ones(len(valid))], [np.ones(len(test))]
    for part in parts:
        known = part.predictor(valid).double().numpy()
        design.append((known - known.mean()) / known.std())
        asked.append((part.predictor(test).double().numpy() - known.mean()) / known.std())
    weights = best_weights(np.stack(design, axis=1), measured)
    expected = torch.from_numpy(weights @ np.stack(asked)).float()
    torch.testing.assert_close(loaded.predictor(test), expected, rtol=1e-4, atol=1e-5)
    assert loaded.config.split == parts[0].config.split


def test_runs_of_another_split_are_refused(members: list[Path], tmp_path: Path) -> None:
    other = fitted(tmp_path / "other", *DATA, "model=additive", "split.seed=1")
    with pytest.raises(InputError):
        ensemble(tmp_path / "mixed", [members[0], other])


def test_one_run_is_no_ensemble(members: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 2"):
        ensemble(tmp_path / "one", members[:1])
    assert not (tmp_path / "one").exists()
