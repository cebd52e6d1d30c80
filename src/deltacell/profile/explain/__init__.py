"""Explanations: where the time of a training goes, and why one is slower than another."""

from deltacell.profile.explain.account import (
    Account,
    Bar,
    Comparison,
    EpochRatio,
    Table,
    Waterfall,
    compare,
)
from deltacell.profile.explain.explanation import Explanation, explain
from deltacell.profile.explain.reconcile import (
    Contradiction,
    Measurements,
    Reconciliation,
    read_measurements,
    reconcile,
)

__all__ = [
    "Account",
    "Bar",
    "Comparison",
    "Contradiction",
    "EpochRatio",
    "Explanation",
    "Measurements",
    "Reconciliation",
    "Table",
    "Waterfall",
    "compare",
    "explain",
    "read_measurements",
    "reconcile",
]
