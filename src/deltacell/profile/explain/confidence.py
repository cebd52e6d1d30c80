"""How far an explanation can be relied on: every reason for doubt, in a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from deltacell.profile.explain.noise import FEW
from deltacell.profile.explain.subject import Subject
from deltacell.profile.explain.words import listed, share_text, short_name
from deltacell.profile.trace.attribution import Attribution
from deltacell.profile.trace.operations import NOT_RECORDED
from deltacell.profile.trace.trace import Kind
from deltacell.words import count_text

ONE_PROGRAM = 0.5
"""Traces with less of their time in operations of the same names are of different programs."""

LOST = 0.02
"""The share of launches without a kernel from which on events of the device were lost."""


def doubts_of_one(subject: Subject) -> list[str]:
    """Return why the account of one is to be doubted."""
    found = []
    account = subject.account
    if not account.adds_up:
        found.append(
            f"the parts of {account.name} miss its wall time by {share_text(account.residual)}"
        )
    if subject.traces is not None and subject.run is None:
        found += dict.fromkeys(d for one in subject.traces.ranks for d in _of_trace(one))
    return found


def doubt_sentences(doubts: Sequence[str]) -> list[str]:
    """Return each doubt as a sentence."""
    return [f"Confidence is low: {doubt}." for doubt in doubts]


def doubts_of_two(a: Subject, b: Subject) -> list[str]:
    """Return why a comparison is to be doubted, beside what is to be doubted of either."""
    found = [
        f"{a.name} is a {a.account.source} and {b.name} a {b.account.source}, which count "
        "differently"
    ]
    if a.account.source == b.account.source:
        found = list(_unlike(a, b))
    for one in (a, b):
        found += [f"{one.name}: {doubt}" for doubt in doubts_of_one(one)]
    return found


def _unlike(a: Subject, b: Subject) -> Iterator[str]:
    modes = [one.account.facts.get("mode") for one in (a, b)]
    if modes[0] != modes[1]:
        yield (
            f"{a.name} was run in mode '{modes[0]}' and {b.name} in mode '{modes[1]}', so the gap "
            "is a marginal cost, which is a share of the step only where nothing overlaps"
        )
    if a.run is not None or a.traces is None or b.traces is None:
        return
    one, other = a.traces.ranks[0], b.traces.ranks[0]
    if in_common(one, other) < ONE_PROGRAM:
        yield f"{a.name} and {b.name} are different programs"
    devices = [view.trace.device_name for view in (one, other)]
    if devices[0] != devices[1] and None not in devices:
        yield f"the devices differ ({listed([short_name(str(name)) for name in devices])})"
    if difference := rank_difference(a, b):
        yield difference


def rank_difference(a: Subject, b: Subject) -> str | None:
    """Return that the traces of two are of unlike ranks, or of runs of unlike size."""
    if a.traces is None or b.traces is None:
        return None
    sizes = [view.world_size for view in (a.traces, b.traces)]
    numbers = [[one.trace.rank for one in view.ranks] for view in (a.traces, b.traces)]
    if sizes[0] == sizes[1] and numbers[0] == numbers[1]:
        return None
    said = [
        f"{one.name} is {_ranks(of, size)}"
        for one, of, size in zip((a, b), numbers, sizes, strict=True)
    ]
    return f"{said[0]}, {said[1]}"


def _ranks(numbers: list[int | None], size: int) -> str:
    if len(numbers) > 1:
        return f"{len(numbers)} of {count_text(size, 'rank')}"
    return f"rank {0 if numbers[0] is None else numbers[0]} of {size}"


def _of_trace(one: Attribution) -> Iterator[str]:
    trace, steps = one.trace, one.steps
    counted = int(steps.counted.sum())
    if trace.damage:
        yield f"events were lost ({trace.damage})"
    elif (lost := _lost(one)) > LOST:
        yield f"{share_text(lost)} of the launches have no kernel in the trace, so events were lost"
    if steps.how != "ProfilerStep":
        yield f"the trace does not mark its steps; they were found from {short_name(steps.how)}"
    if counted < FEW:
        yield f"only {count_text(counted, 'step was', 'steps were')} measured"
    if trace.strange:
        told = [f"{count:,} of '{short_name(name)}'" for name, count in trace.strange.items()]
        yield f"events of unknown categories were left out ({listed(told[:3])})"


def _lost(one: Attribution) -> float:
    """Return the share of kernel launches whose kernel is not there."""
    trace = one.trace
    named = np.array([name.endswith("LaunchKernel") for name in trace.names], dtype=bool)
    calls = named[trace.name] & (trace.kind == Kind.runtime) & (trace.correlation >= 0)
    if one.device is None or not calls.any():
        return 0.0
    done = trace.correlation[trace.kind == Kind.kernel]
    return 1 - float(np.isin(trace.correlation[calls], done).mean())


def in_common(a: Attribution, b: Attribution) -> float:
    """Return the share of the time of either whose operations the other has too, the smaller one.

    Names of operations are what tells one program from another.
    """
    shares = []
    for one, other in ((a, b), (b, a)):
        named = one.operations.filter(~pl.col("operation").is_in([NOT_RECORDED, "ProfilerStep"]))
        known = named.filter(pl.col("operation").is_in(other.operations["operation"].to_list()))
        whole = int(named["time"].sum())
        shares.append(int(known["time"].sum()) / whole if whole else 0.0)
    return min(shares)
