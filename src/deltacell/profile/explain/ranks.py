"""The rank that the others wait for, in the traces of several ranks or in the phases of a run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import polars as pl

from deltacell.profile.explain.causes import Cause, CauseKind, LateRank, Straggler
from deltacell.profile.explain.subject import CATEGORIES
from deltacell.profile.explain.view import Seconds, View
from deltacell.profile.trace.attribution import RanksAttribution

WAITING = "gradient communication"
LATE = 0.10  # a rank is late if the others wait for a larger share of a step
WORTH_NAMING = 0.05  # the share of a step that a rank spends more on something worth naming


def straggler(by_rank: pl.DataFrame) -> Straggler | None:
    """Return the rank of a run that the others wait for, if they wait long.

    The barrier makes the steps of all ranks equally long, so ranks are compared by the time until
    they reach it: the step without its communication.
    """
    if len(by_rank) < 2:
        return None
    arrival = (by_rank["ms per step"] - by_rank[WAITING]).to_numpy()
    last = int(arrival.argmax())
    late_ms = arrival[last] - np.delete(arrival, last).mean()
    if late_ms <= LATE * by_rank["ms per step"].to_numpy().mean():
        return None
    parts = [part for part in CATEGORIES if part != WAITING]
    times = by_rank.select(parts).to_numpy()
    more_ms = times[last] - np.delete(times, last, 0).mean(axis=0)
    return Straggler(
        rank=int(by_rank["rank"][last]),
        late_s=late_ms / 1e3,
        part=parts[int(more_ms.argmax())],
        more_s=more_ms.max() / 1e3,
    )


def late_rank(traces: RanksAttribution) -> Cause | None:
    """Return the rank that the others wait for most; None if it is unknown.

    The share is the time that ranks wait for it, of the time of all ranks.
    """
    if traces.alignment is None or not traces.alignment.collectives["counted"].any():
        return None
    collectives = traces.alignment.collectives.filter("counted")
    by_wait = traces.alignment.ranks.sort("waited_for", descending=True, maintain_order=True)
    worst = by_wait.row(0, named=True)
    rank = worst["rank"]
    of_all = sum(int(rank.steps.wall[rank.steps.counted].sum()) for rank in traces.ranks)
    share = worst["waited_for"] / of_all
    when_last = collectives.filter(last_rank=rank)
    latest = when_last.sort("late_by", descending=True, maintain_order=True).row(0, named=True)
    excess = _excess(traces, rank)
    evidence = LateRank(
        rank=rank,
        collective=latest["name"],
        index=latest["index"],
        late_by_s=latest["late_by"] / 1e9,
        late_before_s=latest["late_before"] / 1e9,
        first_rank=latest["first_rank"],
        category=None if excess is None else excess.category,
        operation=None if excess is None else excess.operation,
        more_s=0.0 if excess is None else excess.seconds,
        times_last=worst["last"],
        n_collectives=len(collectives),
    )
    step = float(np.mean([rank.step_times.mean() for rank in traces.ranks])) / 1e9
    return Cause(CauseKind.rank, str(rank), share * step, share, evidence)


@dataclass(frozen=True)
class _Excess:
    category: str
    operation: str
    seconds: float


def _excess(traces: RanksAttribution, rank: int) -> _Excess | None:
    """Return what a rank spends more time on than the mean of the others, per step."""
    spent = {}
    for number, attribution in traces.by_rank.items():
        view = View("", [attribution])
        computing = {("computing", name): time for name, time in view.by("operators").items()}
        spent[number] = view.host | computing
    mine = spent.pop(rank)
    more: dict[str, Seconds] = defaultdict(dict)
    for (category, name), time in mine.items():
        others = sum(of_rank.get((category, name), 0.0) for of_rank in spent.values()) / len(spent)
        if category != WAITING:
            more[category][name] = time - others
    category = max(more, key=lambda category: sum(more[category].values()), default="")
    seconds = sum(more[category].values())
    if seconds < WORTH_NAMING * sum(mine.values()):
        return None
    operation = max(more[category], key=more[category].__getitem__)
    return _Excess(category, operation, seconds)
