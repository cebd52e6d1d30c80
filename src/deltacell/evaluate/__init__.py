"""Metrics with intervals, models and baselines side by side, and their figures."""

from deltacell.evaluate.baseline_predictions import baselines
from deltacell.evaluate.bootstrap import Bootstrap
from deltacell.evaluate.ceiling import Ceiling, replicate_ceiling
from deltacell.evaluate.evaluation import Estimate, Evaluation, GroupResult, Verdict
from deltacell.evaluate.figure_set import draw_figures
from deltacell.evaluate.metrics import METRICS, Metric
from deltacell.evaluate.positives import Positives, Threshold
from deltacell.evaluate.side_by_side import evaluate

__all__ = [
    "METRICS",
    "Bootstrap",
    "Ceiling",
    "Estimate",
    "Evaluation",
    "GroupResult",
    "Metric",
    "Positives",
    "Threshold",
    "Verdict",
    "baselines",
    "draw_figures",
    "evaluate",
    "replicate_ceiling",
]
