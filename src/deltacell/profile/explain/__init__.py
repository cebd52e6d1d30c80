"""Explanations: where the time of a training goes, and why one is slower than another."""

from deltacell.profile.explain.account import Account
from deltacell.profile.explain.compare import Bar, Comparison, EpochRatio, Waterfall, compare
from deltacell.profile.explain.contradictions import Contradiction
from deltacell.profile.explain.explaining import explain
from deltacell.profile.explain.explanation import Explanation, Table
from deltacell.profile.explain.measurements import Measurements, read_measurements
from deltacell.profile.explain.reconcile import Reconciliation, reconcile

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
