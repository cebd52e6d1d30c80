"""Metrics with intervals, models and baselines side by side."""

from deltacell.evaluation.bootstrap import Bootstrap, Estimate
from deltacell.evaluation.ceiling import replicate_ceiling
from deltacell.evaluation.evaluation import Evaluation, evaluate_predictions
from deltacell.evaluation.fitted_baselines import baselines
from deltacell.evaluation.metrics import METRICS
from deltacell.evaluation.tested_pairs import TestedZeros

__all__ = [
    "METRICS",
    "Bootstrap",
    "Estimate",
    "Evaluation",
    "TestedZeros",
    "baselines",
    "evaluate_predictions",
    "replicate_ceiling",
]
