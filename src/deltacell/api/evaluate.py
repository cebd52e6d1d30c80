"""The verb `evaluate`: runs and baselines on the same rows."""

from __future__ import annotations

import os
from collections.abc import Sequence

from deltacell.base.rendering import progress_bar
from deltacell.base.text import Progress
from deltacell.evaluation.bootstrap import Bootstrap
from deltacell.evaluation.rows import EvaluationOptions
from deltacell.evaluation.runs import AnyPredictor, EvaluatedRuns, evaluate_runs
from deltacell.evaluation.tested_pairs import ZEROS
from deltacell.screen import Screen, Split


def evaluate(
    predictors: AnyPredictor | Sequence[AnyPredictor],
    screen: Screen | None = None,
    split: Split | None = None,
    *,
    baselines: Sequence[str] = (),
    weights: str = "best",
    device: str = "auto",
    on: str | os.PathLike[str] | Screen | None = None,
    samples: int | None = None,
    beyond: float | None = None,
    zeros: int = ZEROS,
    threshold: float | None = None,
    bootstrap: Bootstrap | None = None,
    covers: float = 1.0,
    progress: bool = True,
) -> EvaluatedRuns:
    """Test predictors on the same rows: metrics with intervals, and which one is best.

    The predictors are runs, directories of runs, whose ``best`` or ``last`` ``weights`` are used,
    and names of baselines such as ``boosted_trees``, which are fitted on the training part of
    the runs. Runs of one name that differ only in the seed are one predictor. ``screen`` and
    ``split`` must be those of the runs; ``samples`` draws some of the test rows.

    Networks compute on the ``device``: ``cpu``, ``cuda``, or ``auto``, a GPU if there is one.

    Beside a run, a predictor can be anybody's: a table (the path of a file, or a data frame) with
    the columns ``gene1``, ``gene2``, … and ``score``, or a function that takes gene sets as tuples
    of names and returns their scores. It must cover the share ``covers`` of the test rows; all
    predictors are tested on the rows that are covered.

    A score at or below ``threshold`` is a hit for AUROC and AUPR, by default what the screen says
    (`Screen.hit_rule`). ``on`` is another screen to test on instead of the test part, without
    training rows, and also only on its rows at least ``beyond`` from 0, by default its hits. For a
    list of hits, ``zeros`` tested pairs that are not hits are drawn, as if every query gene had
    been crossed with every array gene.
    """
    options = EvaluationOptions(on, samples, beyond, zeros, threshold, bootstrap, covers)
    with progress_bar() as bar:
        report: Progress = bar if progress else lambda what, done, total: None
        return evaluate_runs(
            predictors,
            screen,
            split,
            baselines=baselines,
            weights=weights,
            device=device,
            options=options,
            progress=report,
        )
