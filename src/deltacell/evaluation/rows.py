"""The rows that runs are tested on: their test part, a sample of it, or another screen."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from deltacell.base.arrays import Bools
from deltacell.base.errors import InputError
from deltacell.data.import_folder import open_screen
from deltacell.evaluation.bootstrap import Bootstrap
from deltacell.evaluation.other_screen import OtherScreen, taken, untrained
from deltacell.evaluation.tested_pairs import ZEROS, TestedZeros
from deltacell.screen import Genotypes, Grid, Screen, Split
from deltacell.screen.gene_keys import comparable_keys
from deltacell.screen.hit_rule import HitRule
from deltacell.train.config import Config, DataConfig
from deltacell.train.data import TrainingData, load_data
from deltacell.train.loaded_runs import LoadedRun


@dataclass(frozen=True, eq=False)
class EvaluationOptions:
    """On which rows predictors are tested, and what counts as a hit."""

    on: str | os.PathLike[str] | Screen | None = None  # another screen to test on
    samples: int | None = None  # draw so many of the test rows; None for all
    # With another screen: also test on the rows this far from 0, or else on its hits.
    beyond: float | None = None
    zeros: int = ZEROS  # tested pairs that are not hits to draw for a list of hits
    threshold: float | None = None  # the maximum score of a hit; None for that of the screen
    bootstrap: Bootstrap | None = None
    covers: float = 1.0  # the share of the test rows that given predictions cover at least

    def hits_of(self, screen: Screen) -> HitRule:
        """Return what a hit is in a screen: by the threshold, or else what the screen says."""
        return screen.hit_rule if self.threshold is None else HitRule.symmetric(self.threshold)

    def beyond_in(self, screen: Screen) -> HitRule:
        """Return which rows of another screen are also tested by themselves."""
        return screen.hit_rule if self.beyond is None else HitRule.symmetric(self.beyond)


@dataclass(frozen=True, eq=False)
class EvaluatedRows:
    """The rows that predictors are tested on, and the pairs drawn in addition."""

    data: TrainingData  # the screen is another one if it was asked for
    split: Split  # with the rows that are used as its test part
    zeros: TestedZeros | None
    other: OtherScreen | None  # None if the rows are of the runs' own screen

    @property
    def test(self) -> Genotypes:
        """The genotypes of the test rows."""
        return taken(self.data.screen, self.split.test)

    @property
    def genotypes(self) -> Genotypes:
        """The genotypes to predict: those of the test rows, and then the zeros."""
        if self.zeros is None:
            return self.test
        return Genotypes.concat([self.test, self.zeros.genotypes])


def measured_by_context(rows: EvaluatedRows, runs: Sequence[LoadedRun]) -> Bools | None:
    """Return which test rows a study of any run's context measured; None without context."""
    studies = [study for run in runs for study in run.data.context]
    if not studies:
        return None
    genes = rows.data.cell.genes
    test = rows.test
    is_measured = np.zeros(len(test), dtype=bool)
    for study in studies:
        new_index = genes.resolve(study.screen.genes.systematic)
        of_study = new_index[study.screen.genotypes.genes.numpy()]
        is_known = np.minimum.reduceat(of_study, study.screen.offsets[:-1]) >= 0
        keys, keys_of_study = comparable_keys(
            len(genes),
            (test.genes.numpy(), test.offsets.numpy()),
            (np.maximum(of_study, 0), study.screen.offsets),
        )
        is_measured |= np.isin(keys, keys_of_study[is_known])
    return is_measured


def evaluated_rows(data: TrainingData, options: EvaluationOptions) -> EvaluatedRows:
    """Return the rows on which predictors that were trained on some data are tested."""
    other = None
    if isinstance(options.on, Screen):
        other = untrained(options.on, data)
    elif options.on is not None:
        other = untrained(open_screen(options.on), data)
    tested = data if other is None else replace(data, screen=other.screen, split=other.split)
    split = tested.split if options.samples is None else fewer(tested.split, options.samples)
    zeros = _zeros(data, split, options.zeros) if other is None else None
    return EvaluatedRows(tested, split, zeros, other)


def _zeros(data: TrainingData, used: Split, n: int) -> TestedZeros | None:
    """Draw tested pairs that are not hits, which represent as many pairs as the used rows do."""
    grid = Grid.of(data.screen, whole=data.whole) if n > 0 else None
    if grid is None or not grid.count("test", data.split):
        return None
    zeros = TestedZeros.draw(grid, data.split, n, seed=data.split.seed)
    # If only some of the hits are used, the zeros represent correspondingly fewer pairs.
    share = len(used.test) / len(data.split.test)
    return replace(zeros, weight=share * zeros.weight)


def only(rows: EvaluatedRows, is_used: Bools, *, with_zeros: bool) -> EvaluatedRows:
    """Return some of the test rows, [test rows]; the others are dropped from the split."""
    split = rows.split
    restricted = replace(
        split,
        test=split.test[is_used],
        unseen=split.unseen[is_used] if len(split.unseen) else split.unseen,
        dropped=np.concatenate([split.dropped, split.test[~is_used]]),
    )
    return replace(rows, split=restricted, zeros=rows.zeros if with_zeros else None)


def fewer(split: Split, samples: int) -> Split:
    """Return a split with a random sample of the test rows; the others are dropped."""
    n_rows = len(split.test)
    order = np.random.default_rng(split.seed).permutation(n_rows)
    kept = np.sort(order[: max(samples, 0)])
    note = f"{len(kept):,} of {n_rows:,} test rows were drawn, with seed {split.seed}."
    return replace(
        split,
        test=split.test[kept],
        unseen=split.unseen[kept] if len(split.unseen) else split.unseen,
        dropped=np.concatenate([split.dropped, np.delete(split.test, kept)]),
        notes=(*split.notes, note),
    )


def compared_data(runs: Sequence[LoadedRun]) -> TrainingData:
    """Return the data to compare runs on, with the relations of all runs' data."""
    first = runs[0]
    for run in runs:
        if run.config.data.residual != first.config.data.residual:
            what = f"the run predicts other scores than {first.record.path}: data.residual is "
            what += f"{run.config.data.residual} and not {first.config.data.residual}"
            fix = "Evaluate them one by one, or train both with the same data.residual."
            raise InputError(what, code="other-residual", where=run.record.path, fix=fix)
        if not run.data.split.equals(first.data.split):
            what = f"the run was trained on another split or screen than {first.record.path}"
            fix = "Evaluate it alone, or train it with the same data.* and split.* settings."
            raise InputError(what, code="other-split", where=run.record.path, fix=fix)
    settings = _joined_settings([_relevant(run.config.data) for run in runs])
    for run in runs:
        if _relevant(run.config.data) == settings:
            return run.data
    return load_data(Config(data=settings, split=first.config.split), first.data.split)


def _joined_settings(settings: Sequence[DataConfig]) -> DataConfig:
    """Return settings with the relations of all; the order of the settings does not matter."""
    first = min(settings, key=repr)
    joined = first
    if any(other.relations != first.relations for other in settings):
        named = [other.relations for other in settings if other.relations is not None]
        every_name = sorted(set().union(*named))
        joined = replace(joined, relations=every_name if len(named) == len(settings) else None)
    if any(other.merge_relations != first.merge_relations for other in settings):
        # Relations that only some runs merged stay unmerged for all.
        joined = replace(joined, merge_relations={})
    return joined


def _relevant(data: DataConfig) -> DataConfig:
    """Return the settings of the data that determine what a fitted predictor sees."""
    irrelevant = ("batch_size", "samples_per_epoch", "standardise")
    return replace(data, **{name: getattr(DataConfig(), name) for name in irrelevant})
