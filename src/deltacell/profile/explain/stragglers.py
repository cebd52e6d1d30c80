"""The rank that the others wait for, from the phases of a run or from its traces."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from deltacell.profile.explain.run_account import CATEGORIES, CATEGORY_OF
from deltacell.profile.explain.trace_account import title_of
from deltacell.profile.explain.words import seconds_text, share_text, short_name
from deltacell.profile.trace.attribution import Attribution, RanksAttribution

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
    """Return the rank that the others wait for; None where there is none worth naming."""
    if len(by_rank) < 2:
        return None
    waiting = CATEGORY_OF["communication"]
    arrival = by_rank["ms per step"] - by_rank[waiting]
    last = int(arrival.arg_max() or 0)
    others = pl.Series(range(len(by_rank))) != last
    late = float(arrival[last]) - float(arrival.filter(others).mean() or 0.0)  # type: ignore[arg-type]
    step = float(by_rank["ms per step"].mean() or 0.0)  # type: ignore[arg-type]
    if not step or late < WORTH_NAMING * step:
        return None
    more = {
        part: float(by_rank[part][last]) - float(by_rank[part].filter(others).mean() or 0.0)  # type: ignore[arg-type]
        for part in CATEGORIES
        if part != waiting
    }
    part = max(more, key=lambda name: more[name])
    return Straggler(int(by_rank["rank"][last]), late / 1e3, late / step, part, more[part] / 1e3)


@dataclass(frozen=True)
class LateRank:
    """The rank that the others wait for.

    Parameters
    ----------
    rank, first
        Its number, and that of the one that came first to the collective it was latest to.
    late_s, before_s
        From the first arrival to the last, there; and what of it was before its step began.
    collective, index, step
        Which one that was: its name, the how-manieth of its kind in its step, and the step.
    doing, category, more_s
        What it spends more time with than the others do, of what kind, and how much per step.
    waited_share
        Of the time of all ranks: what they waited where it was last.
    last, collectives
        How often it came last, of how many.
    """

    rank: int
    first: int
    late_s: float
    before_s: float
    collective: str
    index: int
    step: int
    doing: str | None
    category: str | None
    more_s: float
    waited_share: float
    last: int
    collectives: int

    @property
    def sentence(self) -> str:
        """What it is, with the numbers."""
        which = "the first" if self.index == 0 else f"number {self.index + 1} of its kind of"
        busy = ""
        if self.category is not None:
            busy = f", spends {seconds_text(self.more_s)} more than they do in {self.category}"
            if self.doing is not None:
                busy += f" ({short_name(self.doing)})"
        entered = (
            f"enters {which} {short_name(self.collective)} {seconds_text(self.late_s)} after rank "
            f"{self.first}"
        )
        often = f"comes last to {self.last} of {self.collectives} collectives"
        share = f"waiting for it is {share_text(self.waited_share)} of the time of all ranks"
        if 2 * self.before_s >= self.late_s:
            return (
                f"the ranks wait for rank {self.rank}, which starts its step "
                f"{seconds_text(self.before_s)} late: it {entered} and {often}; {share}"
            )
        return f"the ranks wait for rank {self.rank}: it {entered}{busy}, and {often}; {share}"


def late_rank(traces: RanksAttribution) -> LateRank | None:
    """Return the rank that the others wait for most; None where it is not known or not much."""
    alignment = traces.alignment
    if alignment is None:
        return None
    counted = {
        int(number)
        for one in traces.ranks
        for number in one.steps.number[one.steps.counted].tolist()
    }
    rows = alignment.collectives.filter(pl.col("step").is_in(list(counted)))
    if not len(rows):
        return None
    by_rank = rows.group_by("last_rank").agg(pl.col("waited").sum(), pl.len().alias("last"))
    worst = by_rank.sort("waited", "last_rank", descending=[True, False]).row(0, named=True)
    wall = sum(int(one.steps.wall[one.steps.counted].sum()) for one in traces.ranks)
    mine = rows.filter(pl.col("last_rank") == worst["last_rank"])
    latest = mine.sort("late_by", descending=True).row(0, named=True)
    number = int(worst["last_rank"])
    doing, category, more = _excess(traces, number)
    if category is None:
        doing, category = latest["doing"], title_of(latest["category"])
    return LateRank(
        rank=number,
        first=int(latest["first_rank"]),
        late_s=latest["late_by"] / 1e9,
        before_s=latest["late_before"] / 1e9,
        collective=latest["name"],
        index=int(latest["index"]),
        step=int(latest["step"]),
        doing=doing,
        category=category,
        more_s=more,
        waited_share=worst["waited"] / wall if wall else 0.0,
        last=int(worst["last"]),
        collectives=len(rows),
    )


def _excess(traces: RanksAttribution, rank: int) -> tuple[str | None, str | None, float]:
    """Return what a rank spends more time with than the mean of the others, per step."""
    spent = [_spent(one) for one in traces.ranks]
    numbers = [
        i if one.trace.rank is None else one.trace.rank for i, one in enumerate(traces.ranks)
    ]
    mine = spent[numbers.index(rank)]
    others = [one for one, number in zip(spent, numbers, strict=True) if number != rank]
    more = {
        key: time - sum(one.get(key, 0.0) for one in others) / len(others)
        for key, time in mine.items()
    }
    by_category: dict[str, float] = {}
    for (category, _), time in more.items():
        by_category[category] = by_category.get(category, 0.0) + time
    waiting = CATEGORY_OF["communication"]
    best = max((c for c in by_category if c != waiting), key=lambda c: by_category[c], default=None)
    step = sum(mine.values())
    if best is None or by_category[best] < WORTH_NAMING * step:
        return None, None, 0.0
    name = max((key for key in more if key[0] == best), key=lambda key: more[key])[1]
    return name, best, by_category[best]


def _spent(one: Attribution) -> dict[tuple[str, str], float]:
    """Return the seconds of a step by category and name, computation of the device beside them."""
    steps = 1e9 * int(one.steps.counted.sum())
    rows = one.doing.select("category", "name", "time").iter_rows()
    found = {(category, name): time / steps for category, name, time in rows}
    if one.device is not None:
        for name, time in one.work.operators.select("name", "time").iter_rows():
            found["computing", name] = time / steps
    return found
