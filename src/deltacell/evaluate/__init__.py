"""Metrics with intervals, models and baselines side by side, and their figures."""

from deltacell.evaluate.baseline_predictions import baselines
from deltacell.evaluate.bootstrap import Bootstrap
from deltacell.evaluate.ceiling import Ceiling, replicate_ceiling
from deltacell.evaluate.evaluation import AmongTested, Estimate, Evaluation, GroupResult, Verdict
from deltacell.evaluate.figures import draw_figures
from deltacell.evaluate.metrics import METRICS, Metric
from deltacell.evaluate.positives import Positives, Threshold
from deltacell.evaluate.side_by_side import evaluate
from deltacell.evaluate.tested import Zeros

__all__ = [
    "METRICS",
    "AmongTested",
    "Bootstrap",
    "Ceiling",
    "Estimate",
    "Evaluation",
    "GroupResult",
    "Metric",
    "Positives",
    "Threshold",
    "Verdict",
    "Zeros",
    "baselines",
    "draw_figures",
    "evaluate",
    "replicate_ceiling",
]
