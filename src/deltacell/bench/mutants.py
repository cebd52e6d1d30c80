"""What a mutant is worth: HeteroCell on what a pair predictor leaves unexplained.

The pair predictor is fitted on either half of the training part and predicts the other, so that
the residuals of training and test rows are alike. HeteroCell is then trained on these residuals in
three arms that differ in nothing but the mutant: the true one, that of degree-matched wrong genes,
and none. Its prediction is added to the pair predictor's with the weight that validation gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from deltacell.arrays import Doubles
from deltacell.bench.process import machine
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.evaluate.evaluation import Estimate
from deltacell.evaluate.side_by_side import evaluate
from deltacell.profile.record import Status
from deltacell.screen import Screen, Split
from deltacell.train.compose import compose
from deltacell.train.data import load_data
from deltacell.verbs import Run, fit
from deltacell.words import Progress

ARMS = ("true", "matched", "none")
ALONE = "pairs alone"
MODEL = {"hidden": 32, "layers": 2, "mutant_layers": 1, "epistasis": True, "local_heads": 4}
TRAINING = {"optimizer.lr": 3e-3, "optimizer.weight_decay": 1e-3, "data.run_length": 32}
RELATIONS = ["biogrid", "string_database", "physical", "regulatory"]


def run(
    directory: Path,
    *,
    folder: str | None = None,
    method: str = "gene",
    seeds: Sequence[int] = (0, 1, 2),
    epochs: int = 3,
    genotypes: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train all arms on a planted screen, or on Costanzo 2010 of a folder, and compare them.

    Runs that ``directory`` already has are not trained again. ``genotypes`` makes the planted
    screen smaller.
    """
    if folder is None:
        cell = Cell.synthetic("redundancy")
        screen = Screen.synthetic(cell, n=genotypes)
        split = getattr(Split, method)(screen, seed=0)
        options: dict[str, Any] = {"aggregation": "sum"}
        settings: dict[str, Any] = {"data.batch_size": 64}
    else:
        named = [f"data.folder={folder}", f"split.method={method}"]
        data = load_data(compose(["experiment=costanzo2010_pairs", *named]))
        cell, screen, split = data.cell, data.screen, data.split
        options = {"aggregation": "mean", "relations": RELATIONS}
        settings = {"data.batch_size": 256, "loss.lambda_w": 0.0}
    tell = progress or (lambda what, done, total: None)
    steps = 1 + len(ARMS) * len(seeds)
    tell("pair predictor", 0, steps)
    base = _cross_fitted(cell, screen, split, directory)
    residuals = screen.with_scores(screen.column("score") - base)
    target: Doubles = residuals.column("score").astype(np.float64)
    of_residuals = replace(split, screen_checksum=residuals.checksum)
    predictions: dict[str, Any] = {ALONE: base[split.test]}
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        for arm in ARMS:
            tell(f"{arm} mutants, seed {seed}", len(rows) + 1, steps)
            path = directory / f"{arm}{seed}"
            made = {"mutants": arm, "seed": seed, "epochs": epochs, **MODEL, **options}
            made["settings"] = {**TRAINING, **settings}
            found = _predicted("hetero_cell", cell, residuals, of_residuals, path, made)
            weight = _slope(found[split.validation], target[split.validation])
            predictions.setdefault(arm, {})[seed] = (base + weight * found)[split.test]
            r = np.corrcoef(found[split.test], target[split.test])[0, 1]
            rows.append({"arm": arm, "seed": seed, "weight": weight, "pearson_of_residual": r})
    evaluation = evaluate(cell, screen, split, predictions)
    return {
        "rows": rows,
        "differences": [
            {"group": group.label, "rows": group.rows, "arm": arm, "less": other, **estimate}
            for group in evaluation.groups
            if group.by in ("test", "unseen")
            for arm, other in (("true", "matched"), ("true", "none"), ("true", ALONE))
            for estimate in [_shown(group.differences[arm][other]["pearson"])]
        ],
        "scores": {
            group.label: {
                name: _shown(of_name["pearson"]) for name, of_name in group.scores.items()
            }
            for group in evaluation.groups
            if group.by in ("test", "unseen")
        },
        "bars": {},
        "machine": machine(),
        "command": "deltacell bench mutants",
    }


def _cross_fitted(cell: Cell, screen: Screen, split: Split, directory: Path) -> Doubles:
    """Predict every row by a pair predictor that was not fitted on it."""
    half = np.random.default_rng(0).permutation(len(split.train)) % 2
    base = np.zeros(len(screen))
    others = np.setdiff1d(np.arange(len(screen)), split.train)
    for k in range(2):
        left_out = split.train[half != k]
        dropped = np.sort(np.concatenate([split.dropped, left_out]))
        part = replace(split, train=split.train[half == k], dropped=dropped)
        found = _predicted("pairs", cell, screen, part, directory / f"base{k}", {})
        base[left_out] += found[left_out]
        base[others] += found[others] / 2
    return base


def _predicted(
    name: str, cell: Cell, screen: Screen, split: Split, path: Path, options: dict[str, Any]
) -> Doubles:
    """Predict all rows with a run, which is trained where it does not exist yet."""
    if not path.exists():
        fit(name, cell, screen, split, directory=path, progress=False, **options)
    run = Run(path)
    if run.record.status is not Status.finished:
        raise InputError(
            f"the run is {run.record.status}",
            code="unfinished-run",
            where=path,
            fix=f"Finish it with: deltacell train --resume {path}",
        )
    found = run.loaded.predictor.predict(screen.genotypes)
    values = found.score if found.given_hit is None else found.given_hit
    return values.double().numpy()


def _slope(found: Doubles, target: Doubles) -> float:
    """Return the least-squares weight of a prediction, at least 0."""
    centred = found - found.mean()
    return max(0.0, float(centred @ (target - target.mean()) / max(centred @ centred, 1e-12)))


def _shown(estimate: Estimate) -> dict[str, Any]:
    return {name: getattr(estimate, name) for name in ("value", "low", "high", "seeds")}
