"""Another study as the test: runs asked about a screen that they were not trained on."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deltacell import store
from deltacell.arrays import Bools, Ints
from deltacell.cell import Cell
from deltacell.counts import UNKNOWN_GENE, Counts
from deltacell.errors import InputError
from deltacell.evaluate.bootstrap import Bootstrap
from deltacell.evaluate.positives import Threshold
from deltacell.evaluate.runs import EvaluatedRuns, compared_data, fewer, predict_runs
from deltacell.evaluate.side_by_side import Progress, evaluate
from deltacell.screen import Screen, Split
from deltacell.screen.keys import comparable_keys, repeats_a_gene
from deltacell.train.data import TrainingData
from deltacell.train.loaded_run import AnyRun, load_runs

NO_INTERACTION = "no interaction score"
ONE_GENE_TWICE = "one gene twice"
TOO_LARGE = "more genes than the run takes"
IN_TRAINING = "in training or validation"


def evaluate_on(
    paths: Sequence[AnyRun],
    on: str | os.PathLike[str] | Screen,
    *,
    baseline_names: Sequence[str] = ("global_mean", "additive", "boosted_trees"),
    which: str = "best",
    samples: int | None = None,
    threshold: Threshold | None = None,
    beyond: float = 0.08,
    bootstrap: Bootstrap | None = None,
    progress: Progress | None = None,
) -> EvaluatedRuns:
    """Evaluate runs and baselines on another screen, without the sets that they were trained on.

    Parameters
    ----------
    paths
        Run directories or loaded runs, all of one split.
    on
        A screen, its directory, or a folder that ``deltacell data import`` made with one screen.
    baseline_names
        Fitted on the runs' training part.
    which
        Weights to take: ``best`` by validation, or ``last``.
    samples
        Rows to look at, the same for all; all where not given.
    threshold
        From where on a score is a hit, for AUROC and AUPR.
    beyond
        Rows whose score is at least as far from 0 as this are also looked at by themselves.
    bootstrap
        How intervals are found.
    progress
        Called as ``progress(what, done, total)``.
    """
    runs = load_runs(paths, which)
    data = compared_data(runs)
    where = None if isinstance(on, Screen) else on
    read = on if isinstance(on, Screen) else Screen.load(screen_directory(on))
    other, split, counts = untrained(read, data, where=where)
    if samples is not None:
        split = fewer(split, samples)
    genotypes = other.genotypes.take(torch.from_numpy(np.array(split.test)))
    asked = predict_runs(runs, genotypes, baseline_names, progress)
    evaluation = evaluate(
        data.cell,
        other,
        split,
        asked.predictions,
        threshold=threshold,
        beyond=beyond,
        bootstrap=bootstrap,
        progress=progress,
    )
    left_out = ", ".join(f"{n:,} with {why}" for why, n in counts.dropped.items()) or "none"
    said = (
        f"Tested on another screen: {counts.kept:,} of its {counts.read:,} rows. Left out: "
        f"{left_out.replace('with in', 'in')}."
    )
    described: dict[str, Any] = {"screen": other.checksum, **counts.to_json()}
    evaluation = dataclasses.replace(
        evaluation, leakage=said, on=described, notes=(*evaluation.notes, *asked.notes)
    )
    shown = dataclasses.replace(data, screen=other, split=split)
    return EvaluatedRuns(evaluation, shown, split, asked.first, asked.weights(genotypes))


def screen_directory(path: str | os.PathLike[str]) -> Path:
    """Return where a screen is: the directory itself, or the only one of an import.

    Parameters
    ----------
    path
        A screen, or a folder that ``deltacell data import`` made.
    """
    folder = Path(path)
    screens = sorted(one for one in (folder / "screens").glob("*") if one.is_dir())
    if not screens:
        # A directory of another kind is refused with what it is.
        store.read_manifest(folder)
        return folder
    if len(screens) > 1:
        raise InputError(
            f"the import has {len(screens)} screens: {', '.join(one.name for one in screens)}",
            where=folder,
            fix=f"Name one: --on {screens[0]}",
        )
    return screens[0]


def untrained(
    screen: Screen, data: TrainingData, *, where: str | os.PathLike[str] | None = None
) -> tuple[Screen, Split, Counts]:
    """Return a screen over the genes of a run, with what can be tested as its test part.

    Parameters
    ----------
    screen
        Another study.
    data
        What the run was trained on.
    where
        The directory of the screen, for errors.
    """
    is_interaction: Bools = screen.column("phenotype") == "interaction"
    known = np.isfinite(screen.column("score")) | (screen.column("sign") != 0)
    usable = is_interaction & known
    if not usable.any():
        there = ", ".join(sorted(set(screen.column("phenotype").astype(str))))
        raise InputError(
            f"no row of the screen has an interaction score, which the run predicts; it has "
            f"{there} only",
            where=where,
            fix="Import a table with a column of interaction scores (gene1, gene2, score).",
        )
    dropped = {NO_INTERACTION: int((~usable).sum())}
    matched, lost = _on(screen.take(usable), data.cell, where)
    fits, trained_on = _fits(matched, data), _trained_on(matched, data)
    kept = fits & ~trained_on
    dropped |= {**lost, TOO_LARGE: int((~fits).sum()), IN_TRAINING: int((fits & trained_on).sum())}
    counts = Counts(len(screen), int(kept.sum()), dropped)
    if not kept.any():
        said = ", ".join(f"{why}: {n:,}" for why, n in counts.dropped.items())
        raise InputError(
            f"nothing is left to test on of {len(screen):,} rows ({said})",
            where=where,
            fix="Give a screen of other gene sets, over the genes of the run's cell.",
        )
    rows = np.arange(len(matched))
    genes, owner = matched.genotypes.genes.numpy(), matched.genotypes.owner.numpy()
    trained = data.screen.genotypes.take(torch.from_numpy(np.array(data.split.train)))
    seen = np.isin(np.arange(data.cell.n_genes), trained.genes.numpy())
    unseen: Ints = np.bincount(owner[~seen[genes]], minlength=len(matched))
    split = Split(
        train=rows[:0],
        validation=rows[:0],
        test=rows[kept],
        method="source",
        seed=0,
        screen_checksum=matched.checksum,
        options={"test": sorted(set(matched.column("study").astype(str))), "validation": 0.0},
        dropped=rows[~kept],
        unseen=unseen[kept],
    )
    return matched, split, counts


def _on(
    screen: Screen, cell: Cell, where: str | os.PathLike[str] | None
) -> tuple[Screen, dict[str, int]]:
    """Return the screen over the genes of a cell, by name, and what could not be kept."""
    index = cell.genes.resolve(screen.genes.systematic).index
    genes = index[screen.genotypes.genes.numpy()]
    known = np.ones(len(screen), dtype=bool)
    known[screen.genotypes.owner.numpy()[genes < 0]] = False
    twice = known & repeats_a_gene(genes, screen.offsets)
    if not (known & ~twice).any():
        raise InputError(
            f"the run's cell has the genes of none of the {len(screen):,} rows, which are of genes "
            f"such as {', '.join(screen.genes.systematic[:3])}",
            where=where,
            fix="Give a screen of the same organism, with the same kind of gene names.",
        )
    lost = {UNKNOWN_GENE: int((~known).sum()), ONE_GENE_TWICE: int(twice.sum())}
    return screen.on(cell, on_unknown="drop"), lost


def _fits(screen: Screen, data: TrainingData) -> Bools:
    fits: Bools = np.diff(screen.offsets) <= data.largest
    return fits


def _trained_on(screen: Screen, data: TrainingData) -> Bools:
    """Return which rows have a set that is in training or validation, in whatever study."""
    rows = torch.from_numpy(np.concatenate([data.split.train, data.split.validation]))
    trained = data.screen.genotypes.take(rows)
    keys, of_training = comparable_keys(
        data.cell.n_genes,
        (screen.genotypes.genes.numpy(), screen.offsets),
        (trained.genes.numpy(), trained.offsets.numpy()),
    )
    found: Bools = np.isin(keys, of_training)
    return found
