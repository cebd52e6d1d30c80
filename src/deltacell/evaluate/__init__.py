"""Metrics with intervals, models and baselines side by side, and their figures.

The package is the verb too: ``deltacell.evaluate(...)`` calls `deltacell.verbs.evaluate`.
"""

import sys
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any

from deltacell.evaluate.evaluation import Evaluation, Zeros, evaluate_predictions
from deltacell.evaluate.figures import draw_figures
from deltacell.evaluate.metrics import METRICS, Bootstrap, Estimate, replicate_ceiling
from deltacell.evaluate.runs import baselines

__all__ = ["METRICS", "Bootstrap", "Estimate", "Evaluation", "Zeros"]
__all__ += ["baselines", "draw_figures", "evaluate_predictions", "replicate_ceiling"]


def __getattr__(name: str) -> Any:
    if name != "evaluate":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    text = "deltacell.evaluate.evaluate is now deltacell.evaluate.evaluate_predictions"
    warnings.warn(f"{text}; the old name goes after 0.1", DeprecationWarning, stacklevel=2)
    return evaluate_predictions


class _Verb(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        """Test runs and baselines on the same rows; see `deltacell.verbs.evaluate`."""
        return import_module("deltacell.verbs").evaluate(*args, **options)


sys.modules[__name__].__class__ = _Verb
