"""An explanation: the answer to where the time goes, or why this is slower than that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from deltacell.profile.explain.account import Account
from deltacell.profile.explain.compare import Comparison
from deltacell.profile.explain.judge import Cause
from deltacell.profile.explain.noise import Difference
from deltacell.profile.trace.attribution import RanksAttribution


@dataclass(frozen=True, eq=False)
class Table:
    """Numbers behind an explanation.

    Parameters
    ----------
    key
        A name for programs, such as ``categories``; unique in an explanation.
    title
        What it shows.
    frame
        Its rows. Names in them come from outside and are not escaped.
    """

    key: str
    title: str
    frame: pl.DataFrame


@dataclass(frozen=True, eq=False)
class Explanation:
    """Where the time of one training goes, or why one is slower than another.

    Parameters
    ----------
    sentence
        The cause, how much it explains, and the number.
    evidence
        Where that comes from, in sentences.
    advice
        What to try, in sentences.
    confidence
        ``high`` or ``low``; why it is low is in ``doubts``.
    accounts
        The time of each in parts that add up: one, or A and B.
    comparison
        From A to B; None for one.
    tables
        Numbers, by what they show.
    facts
        What each was: settings, versions, where it was read from. One mapping for each account.
    doubts
        Every reason for a low confidence.
    causes
        What takes the time, or makes the difference, of traces; the largest first.
    noise
        How the steps of two differ beside noise; None where it is not known.
    warnings
        What a person should know before relying on it, in sentences.
    timeline
        A typical step of each rank, for a page to draw; None without a trace.
    attributions
        Where the time of the traces goes, one for each that has any; not in the JSON.
    """

    sentence: str
    evidence: tuple[str, ...]
    advice: tuple[str, ...]
    confidence: str
    accounts: tuple[Account, ...]
    comparison: Comparison | None = None
    tables: tuple[Table, ...] = ()
    facts: tuple[Mapping[str, Any], ...] = ()
    doubts: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    noise: Difference | None = None
    warnings: tuple[str, ...] = ()
    timeline: Any = field(default=None, repr=False)
    attributions: tuple[RanksAttribution, ...] = field(default=(), repr=False)

    def table(self, key: str) -> pl.DataFrame:
        """Return the rows of the table with this key."""
        for table in self.tables:
            if table.key == key:
                return table.frame
        there = ", ".join(table.key for table in self.tables)
        raise KeyError(f"there is no table '{key}'; there are {there or 'none'}")

    def to_json(self) -> dict[str, Any]:
        """Return all of it as a JSON-serialisable dict."""
        compared = None if self.comparison is None else self.comparison.to_json()
        return {
            "sentence": self.sentence,
            "evidence": list(self.evidence),
            "advice": list(self.advice),
            "confidence": self.confidence,
            "doubts": list(self.doubts),
            "causes": [cause.to_json() for cause in self.causes],
            "noise": None if self.noise is None else self.noise.to_json(),
            "accounts": [account.to_json() for account in self.accounts],
            "waterfalls": [] if compared is None else compared["waterfalls"],
            "epoch_ratio": None if compared is None else compared["epoch_ratio"],
            "unequal": [] if compared is None else compared["unequal"],
            "tables": [
                {
                    "key": table.key,
                    "title": table.title,
                    "columns": table.frame.columns,
                    "rows": [list(row) for row in table.frame.rows()],
                }
                for table in self.tables
            ],
            "facts": [dict(facts) for facts in self.facts],
            "warnings": list(self.warnings),
            "timeline": self.timeline,
        }
