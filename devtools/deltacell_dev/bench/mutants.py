"""What a mutant is worth: HeteroCell on the residuals of a pair predictor.

The pair predictor is fitted on each half of the training part and predicts the other, so that the
residuals of training and test rows are comparable. HeteroCell is then trained on these residuals in
three arms that differ only in the mutant: the true one, that of degree-matched wrong genes, and
none. Its prediction is added to the pair predictor's with a weight fitted on the validation part.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from deltacell.api.fit import fit
from deltacell.api.run import Run
from deltacell.base.arrays import Doubles
from deltacell.base.errors import InputError
from deltacell.bench import process
from deltacell.cell import Cell
from deltacell.evaluation import Estimate, evaluate_predictions
from deltacell.profile.record import Status
from deltacell.screen import Screen, Split
from deltacell.train.config.compose import compose
from deltacell.train.data import load_data

ARMS = ("true", "matched", "none")
ALONE = "pairs alone"
MODEL = {"hidden": 32, "layers": 2, "mutant_layers": 1, "epistasis": True, "local_heads": 4}
TRAINING = {"optimizer.lr": 3e-3, "optimizer.weight_decay": 1e-3, "data.run_length": 32}
RELATIONS = ["biogrid", "string_database", "physical", "regulatory"]


def run(
    out: Path,
    folder: Path | None = None,
    split: str = "gene",
    seeds: int = 3,
    epochs: int = 3,
    *,
    genotypes: int | None = None,
) -> dict[str, Any]:
    """Train all arms on a planted screen, or on Costanzo 2010 of a folder, and compare them.

    Runs that exist in ``out`` are not trained again. ``genotypes`` limits the planted screen.
    """
    if folder is None:
        cell = Cell.synthetic("redundancy")
        screen = Screen.synthetic(cell, n=genotypes)
        parts = getattr(Split, split)(screen, seed=0)
        model: dict[str, Any] = {**MODEL, "aggregation": "sum"}
        settings: dict[str, Any] = {**TRAINING, "data.batch_size": 64}
    else:
        named = [f"data.folder={folder}", f"split.method={split}"]
        data = load_data(compose(["experiment=costanzo2010_pairs", *named]))
        cell = data.cell
        screen = data.screen
        parts = data.split
        model = {**MODEL, "aggregation": "mean", "relations": RELATIONS}
        settings = {**TRAINING, "data.batch_size": 256, "loss.lambda_w": 0.0}
    process.progress("pair predictor", 0, 1 + len(ARMS) * seeds)
    base = cross_fitted(cell, screen, parts, out)
    residuals = screen.with_scores(screen.column("score") - base)
    target: Doubles = residuals.column("score").astype(np.float64)
    of_residuals = replace(parts, screen_checksum=residuals.checksum)
    predictions: dict[str, Any] = {ALONE: base[parts.test]}
    rows: list[dict[str, Any]] = []
    for seed in range(seeds):
        for arm in ARMS:
            process.progress(f"{arm} mutants, seed {seed}", 1 + len(rows), 1 + len(ARMS) * seeds)
            options = {**model, "mutants": arm, "seed": seed, "epochs": epochs}
            where = cell, residuals, of_residuals, out / f"{arm}{seed}"
            found = _predicted("hetero_cell", *where, **options, settings=settings)
            weight = _slope(found[parts.validation], target[parts.validation])
            predictions.setdefault(arm, {})[seed] = (base + weight * found)[parts.test]
            r = np.corrcoef(found[parts.test], target[parts.test])[0, 1]
            rows.append({"arm": arm, "seed": seed, "weight": weight, "pearson_of_residual": r})
    differences: list[dict[str, Any]] = []
    scores = {}
    for group in evaluate_predictions(cell, screen, parts, predictions).groups:
        if group.by in ("test", "unseen"):
            about = {"group": group.label, "rows": group.rows, "arm": "true"}
            for other in ("matched", "none", ALONE):
                difference = _shown(group.differences["true"][other]["pearson"])
                differences.append({**about, "less": other, **difference})
            scores[group.label] = {n: _shown(one["pearson"]) for n, one in group.scores.items()}
    return {"rows": rows, "differences": differences, "scores": scores}


def cross_fitted(cell: Cell, screen: Screen, split: Split, out: Path) -> Doubles:
    """Predict every row by a pair predictor that was not fitted on it."""
    half = np.random.default_rng(0).permutation(len(split.train)) % 2
    base = np.zeros(len(screen))
    others = np.setdiff1d(np.arange(len(screen)), split.train)
    for k in range(2):
        left_out = split.train[half != k]
        dropped = np.sort(np.concatenate([split.dropped, left_out]))
        part = replace(split, train=split.train[half == k], dropped=dropped)
        found = _predicted("pairs", cell, screen, part, out / f"base{k}")
        base[left_out] += found[left_out]
        base[others] += found[others] / 2
    return base


def _predicted(
    name: str,
    cell: Cell,
    screen: Screen,
    split: Split,
    path: Path,
    **options: Any,
) -> Doubles:
    if not path.exists():
        fit(name, cell, screen, split, directory=path, progress=False, **options)
    run = Run(path)
    if run.record.status is not Status.finished:
        what = f"the run is {run.record.status}"
        fix = f"Run deltacell train --resume {path}."
        raise InputError(what, code="unfinished-run", where=path, fix=fix)
    found = run.loaded.predictor.predict(screen.genotypes)
    values = found.among_hits
    return values.double().numpy()


def _slope(found: Doubles, target: Doubles) -> float:
    centred = found - found.mean()
    return max(0.0, float(centred @ (target - target.mean()) / max(centred @ centred, 1e-12)))


def _shown(estimate: Estimate) -> dict[str, Any]:
    return {name: getattr(estimate, name) for name in ("value", "low", "high", "seeds")}
