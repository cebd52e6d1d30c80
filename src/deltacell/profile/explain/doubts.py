"""Reasons for low confidence in an explanation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from deltacell.profile.explain import sentences
from deltacell.profile.explain.account import Waterfall
from deltacell.profile.explain.noise import FEW, Difference
from deltacell.profile.explain.subject import Subject
from deltacell.profile.trace.attribution import Attribution
from deltacell.profile.trace.host_names import records_nothing
from deltacell.profile.trace.trace import Kind

WITHIN = 0.01  # parts that differ from the wall time by a larger share are doubted
ONE_PROGRAM = 0.5  # traces of one program share at least this much time in operations of one name
AGAINST = 0.25  # parts of the host that change against the gap by a larger share of it are doubted
LOST = 0.02  # a larger share of launches without a kernel means that events were lost


def doubts_of_one(subject: Subject) -> Iterator[str]:
    """Yield reasons to doubt what is said of a run or a trace."""
    if subject.account.residual > WITHIN:
        yield sentences.parts_miss_doubt(subject.account)
    if subject.traces is None or subject.run is not None:
        return
    for rank in subject.traces.ranks:
        trace = rank.trace
        if trace.damage:
            yield sentences.events_lost_doubt(trace.damage)
        elif rank.device is not None:
            lost = _launches_without_kernel(rank)
            if lost > LOST:
                yield sentences.kernels_lost_doubt(lost)
        if rank.steps.how != "ProfilerStep":
            yield sentences.steps_not_marked_doubt(rank.steps.how)
        if rank.n_counted < FEW:
            yield sentences.few_steps_doubt(rank.n_counted)
        if trace.strange:
            yield sentences.strange_events_doubt(trace.strange)


def _launches_without_kernel(rank: Attribution) -> float:
    """Return the share of launches whose kernel is not in the trace; 0 without launches."""
    trace = rank.trace
    launches = trace.named(lambda name: name.endswith("LaunchKernel"))
    launches &= (trace.kind == Kind.runtime) & (trace.correlation >= 0)
    calls = np.flatnonzero(launches)
    return float((~np.isin(calls, rank.launch)).mean()) if len(calls) else 0.0


def doubts_of_two(
    a: Subject,
    b: Subject,
    fall: Waterfall,
    noise: Difference | None,
) -> Iterator[str]:
    """Yield reasons to doubt a comparison."""
    if a.account.source != b.account.source:
        yield sentences.sources_differ_doubt(a.account, b.account)
        return
    if a.account.facts.get("mode") != b.account.facts.get("mode"):
        yield sentences.modes_differ_doubt(a.account, b.account)
    if a.run is not None or a.traces is None or b.traces is None:
        return
    rank_a = a.traces.ranks[0]
    rank_b = b.traces.ranks[0]
    if min(_known(rank_a, rank_b), _known(rank_b, rank_a)) < ONE_PROGRAM:
        yield sentences.programs_differ_doubt(a.account, b.account)
    device_a = rank_a.trace.device_name
    device_b = rank_b.trace.device_name
    if device_a is not None and device_b is not None and device_a != device_b:
        yield sentences.devices_differ_doubt(device_a, device_b)
    ranks = rank_difference(a, b)
    if ranks is not None:
        yield ranks
    is_host_only = rank_a.device is None and rank_b.device is None
    is_beyond_noise = noise is not None and noise.is_beyond
    against = sum(abs(bar.change) for bar in fall.bars if bar.change * fall.gap < 0)
    if is_host_only and is_beyond_noise and against > AGAINST * abs(fall.gap):
        yield sentences.both_ways_doubt(against, abs(fall.gap))


def rank_difference(a: Subject, b: Subject) -> str | None:
    """Return which ranks are compared if they are not the same; otherwise None."""
    if a.traces is None or b.traces is None:
        return None
    ranks_a = [rank.trace.rank for rank in a.traces.ranks]
    ranks_b = [rank.trace.rank for rank in b.traces.ranks]
    if (a.traces.world_size, ranks_a) == (b.traces.world_size, ranks_b):
        return None
    which_a = sentences.which_ranks(a.traces.world_size, ranks_a)
    which_b = sentences.which_ranks(b.traces.world_size, ranks_b)
    return f"{a.name} is {which_a}, {b.name} is {which_b}"


def _known(one: Attribution, other: Attribution) -> float:
    """Return the share of the time of one trace in operations that the other has too."""
    is_named = [not records_nothing(name) for name in one.doing["name"]]
    named = one.doing.filter(pl.Series(is_named, dtype=pl.Boolean))
    known = named.join(other.doing, on="name", how="semi")
    whole = int(named["time"].sum())
    return int(known["time"].sum()) / whole if whole else 0.0
