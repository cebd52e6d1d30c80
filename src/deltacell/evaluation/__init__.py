"""Metrics with intervals, models and baselines side by side, and their figures."""

from deltacell.evaluation.evaluation import Evaluation, TestedZeros, evaluate_predictions
from deltacell.evaluation.figures import draw_figures
from deltacell.evaluation.metrics import METRICS, Bootstrap, Estimate, replicate_ceiling
from deltacell.evaluation.runs import baselines

__all__ = ["METRICS", "Bootstrap", "Estimate", "Evaluation", "TestedZeros"]
__all__ += ["baselines", "draw_figures", "evaluate_predictions", "replicate_ceiling"]
