"""The rank that the others wait for, from the phases of a run."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from deltacell.profile.explain.run_account import CATEGORIES, CATEGORY_OF
from deltacell.profile.explain.words import seconds_text

WORTH_NAMING = 0.05
"""The share of a step by which a rank has to be late to be named."""


@dataclass(frozen=True)
class Straggler:
    """The rank that arrives last where gradients are summed.

    The barrier makes every rank's step equally long, so ranks are compared by the time until
    they arrive: the step without its communication.

    Parameters
    ----------
    rank
        Its number.
    late_s
        Seconds a step by which it arrives after the mean of the others.
    share
        Of a step.
    part
        The category in which it spends the most time more than the others.
    part_s
        How much more.
    """

    rank: int
    late_s: float
    share: float
    part: str
    part_s: float

    @property
    def sentence(self) -> str:
        """What it is, with the numbers."""
        return (
            f"rank {self.rank} arrives last at the exchange of gradients, "
            f"{seconds_text(self.late_s)} a step after the others, and spends "
            f"{seconds_text(self.part_s)} more than they do in {self.part}"
        )


def straggler(by_rank: pl.DataFrame) -> Straggler | None:
    """Return the rank that the others wait for; None where there is none worth naming.

    Parameters
    ----------
    by_rank
        Of `deltacell.profile.explain.run_account.phases_by_rank`.
    """
    if len(by_rank) < 2:
        return None
    waiting = CATEGORY_OF["communication"]
    arrival = by_rank["ms a step"] - by_rank[waiting]
    last = int(arrival.arg_max() or 0)
    others = pl.Series(range(len(by_rank))) != last
    late = float(arrival[last]) - float(arrival.filter(others).mean() or 0.0)  # type: ignore[arg-type]
    step = float(by_rank["ms a step"].mean() or 0.0)  # type: ignore[arg-type]
    if not step or late < WORTH_NAMING * step:
        return None
    more = {
        part: float(by_rank[part][last]) - float(by_rank[part].filter(others).mean() or 0.0)  # type: ignore[arg-type]
        for part in CATEGORIES
        if part != waiting
    }
    part = max(more, key=lambda name: more[name])
    return Straggler(int(by_rank["rank"][last]), late / 1e3, late / step, part, more[part] / 1e3)
