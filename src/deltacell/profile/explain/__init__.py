"""Explanations: where the time of a training goes, and why one is slower than another."""

from deltacell.profile.explain.account import Account, compare
from deltacell.profile.explain.explanation import Explanation, explain

__all__ = ["Account", "Explanation", "compare", "explain"]
