"""The context of a training: other screens and runs, checked against the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from deltacell.base.arrays import Bools
from deltacell.base.errors import InputError
from deltacell.cell import Genes
from deltacell.data.import_folder import open_screen
from deltacell.data.orthologues import on_orthologues, read_orthologues
from deltacell.models.interface import Study
from deltacell.profile.record import CHECKPOINTS, RUN_FILE
from deltacell.screen import Screen
from deltacell.screen.gene_keys import comparable_keys
from deltacell.storage import sha256_of_file
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config import DataConfig
from deltacell.train.loaded_runs import LoadedRun, load_run
from deltacell.train.places import is_name_in_folder

# Scores are printed with four digits or more, so two laboratories rarely agree to this fraction.
_RELATIVE_DIFFERENCE = 1e-4
_FEWEST_EQUAL = 3
_LARGEST_SHARE = 0.05  # of the sets in common; beyond it, and beyond chance, a study is repeated
_TIMES_CHANCE = 3


def load_context(config: DataConfig, target: Screen) -> tuple[Study, ...]:
    """Open the studies of ``data.context`` and check them against the target.

    Each is the name of a screen in ``data.folder``, or the path of a screen, of an import with one
    screen, or of a run. With ``data.orthologues``, studies of which the cell lacks most genes are
    read through this table; their predictors are not used.
    """
    studies = []
    for entry in config.context:
        if is_name_in_folder(entry, config.folder):
            assert config.folder is not None
            studies.append(Study(entry, open_screen(config.folder, entry)))
        elif (Path(entry) / RUN_FILE).is_file():
            run = load_run(entry)
            # The run may have learned from the target through its own context.
            check_not_repeated(target, run.data.context)
            studies.append(study_of_run(run))
        else:
            screen = open_screen(entry)
            studies.append(Study(_study_name(screen, Path(entry).resolve().name), screen))
    if config.orthologues is not None:
        table = config.orthologues
        studies = [_on_orthologues(study, target.genes, table) for study in studies]
    check_not_repeated(target, studies)
    return tuple(studies)


def study_of_run(run: LoadedRun) -> Study:
    """Return what a finished run measured and predicts."""
    place = run.record.path
    if not run.is_finished:
        what = "the run has not finished"
        fix = f"Finish it first: deltacell train --resume {place}"
        raise InputError(what, code="unfinished-run", where=place, fix=fix)
    checkpoints = Checkpoints(place / CHECKPOINTS)
    reached = checkpoints.best or checkpoints.last
    assert reached is not None
    return Study(
        _study_name(run.data.screen, run.record.name),
        run.data.screen,
        run.predictor,
        predictor_checksum=sha256_of_file(place / CHECKPOINTS / reached.file),
    )


def _on_orthologues(study: Study, genes: Genes, table: str) -> Study:
    """Return a study of another organism on the genes of a cell, without its predictor.

    A study of which the cell has most genes stays as it is.
    """
    measured = np.unique(study.screen.genotypes.genes.numpy())
    names = [study.screen.genes[gene] for gene in measured.tolist()]
    if 2 * (genes.resolve(names) >= 0).sum() > len(names):
        return study
    orthologues = read_orthologues(table, study.screen.genes, genes)
    return Study(study.name, on_orthologues(study.screen, genes, orthologues))


def _study_name(screen: Screen, default: str) -> str:
    """Return the name of the study of a screen, if it is of one."""
    names = set(screen.rows["study"]) - {""}
    return names.pop() if len(names) == 1 else default


@dataclass(frozen=True)
class Repeated:
    """How many sets of the target have the same score in a study."""

    n_common: int  # sets that both measured
    n_equal: int
    n_by_chance: int  # equal scores after a permutation: many in a list of signs

    @property
    def is_same_study(self) -> bool:
        limit = _LARGEST_SHARE * self.n_common + _TIMES_CHANCE * self.n_by_chance
        return self.n_equal >= _FEWEST_EQUAL and self.n_equal > limit


def check_not_repeated(target: Screen, context: Sequence[Study]) -> None:
    """Raise for a study that repeats the target's own measurements, by their equal scores.

    Such a study, like an earlier release of the target, would tell the scores of its test part.
    """
    for study in context:
        repeated = repeated_scores(target, study.screen)
        if repeated.is_same_study:
            what = (
                f"the study '{study.name}' repeats the target: {repeated.n_equal:,} of "
                f"{repeated.n_common:,} sets that both measured have the same score"
            )
            fix = "Leave it out of the context, because it would tell the scores of the test part."
            raise InputError(
                what,
                code="repeated-study",
                fix=fix,
                equal=repeated.n_equal,
                common=repeated.n_common,
            )


def repeated_scores(target: Screen, other: Screen) -> Repeated:
    """Count the sets of a target that have the same score in another screen, on any genes."""
    new_index = target.genes.resolve(other.genes.systematic)
    genes = target.genotypes.genes.numpy()
    other_genes = new_index[other.genotypes.genes.numpy()]
    keys, other_keys = comparable_keys(
        len(target.genes),
        (genes, target.offsets),
        (np.maximum(other_genes, 0), other.offsets),
    )
    is_known = np.minimum.reduceat(other_genes, other.offsets[:-1]) >= 0
    _, number = np.unique(np.concatenate([keys, other_keys]), return_inverse=True)
    of_target, of_other = np.split(number.ravel(), [len(keys)])
    here = _scores(target, of_target, np.ones(len(target), dtype=bool))
    there = _scores(other, of_other, is_known)
    common = here.join(there, on="set", suffix="_other")
    shuffled = common.with_columns(pl.col("score_other").shuffle(seed=0))
    return Repeated(
        common["set"].n_unique(),
        common.filter(_is_equal())["set"].n_unique(),
        shuffled.filter(_is_equal())["set"].n_unique(),
    )


def _scores(screen: Screen, number: np.ndarray, is_known: Bools) -> pl.DataFrame:
    """Return the measured sets by number, with their scores and the means of repeats."""
    score = screen.column("score").astype(np.float64)
    rows = is_known & np.isfinite(score) & (score != 0)
    measured = pl.DataFrame({"set": number[rows], "score": score[rows]})
    # One of the two may have been merged.
    means = measured.group_by("set").agg(pl.len(), pl.col("score").mean())
    return pl.concat([measured, means.filter(pl.col("len") > 1).select("set", "score")])


def _is_equal() -> pl.Expr:
    difference = (pl.col("score") - pl.col("score_other")).abs()
    return difference <= _RELATIVE_DIFFERENCE * pl.col("score").abs()
