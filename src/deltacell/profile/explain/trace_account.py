"""The account of traces: what the host of each rank was busy with in a step, on average."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from deltacell.profile.explain.account import Account
from deltacell.profile.explain.run_account import CATEGORY_OF
from deltacell.profile.explain.words import short_name
from deltacell.profile.trace.attribution import Attribution, RanksAttribution, attribute_ranks
from deltacell.profile.trace.decode import Progress
from deltacell.profile.trace.device import PARTS
from deltacell.profile.trace.ranks_of_run import missing_ranks
from deltacell.profile.trace.read import read_traces

DEVICE_PARTS = {
    "compute": "computing",
    "communication": "communication that nothing hides",
    "copies": "copies that nothing hides",
    "idle": "idle",
}
"""What a device's time is made of, in words."""


BEHIND = "device behind the host"
"""The part of a step in which the host is done with it and the device is not."""


def attributed(path: Path, progress: Progress | None = None) -> RanksAttribution:
    """Read the traces of a path and tell where their time goes."""
    return attribute_ranks(read_traces(path, progress=progress))


def trace_account(traces: RanksAttribution, name: str) -> Account:
    """Return the account of traces: the mean over ranks of a counted step."""
    ranks = traces.ranks
    titles = ranks[0].categories.select("category", "title").rows()
    parts = {
        title: sum(one.seconds_per_step()[category] for one in ranks) / len(ranks)
        for category, title in titles
    }
    behind = sum(one.behind for one in ranks) / len(ranks) / 1e9
    if behind:
        parts[BEHIND] = behind
    return Account(
        name,
        "trace",
        {title: seconds for title, seconds in parts.items() if seconds > 0},
        measured_s=sum(one.wall_per_step for one in ranks) / len(ranks) / 1e9,
        facts=_facts(traces),
        warnings=trace_notices(traces),
    )


def device_parts(traces: RanksAttribution) -> dict[str, float]:
    """Return the seconds of a counted step by what the device did; empty without a device."""
    found = [one.device for one in traces.ranks if one.device is not None]
    if not found:
        return {}
    means = [device.steps.filter("counted").select(pl.col(*PARTS).mean()) for device in found]
    return {part: sum(float(mean[part][0]) for mean in means) / len(means) / 1e9 for part in PARTS}


def kernel_seconds(traces: RanksAttribution) -> float | None:
    """Return the seconds of kernels that a counted step launches; None without a device."""
    found = [one.device for one in traces.ranks if one.device is not None]
    if not found:
        return None
    times = [device.steps.filter("counted")["kernels"].to_numpy().mean() for device in found]
    return float(sum(times)) / len(times) / 1e9


def counted_steps(one: Attribution) -> int:
    """Return how many steps of a trace count."""
    return int(one.steps.counted.sum())


def trace_notices(traces: RanksAttribution) -> tuple[str, ...]:
    """Return what a person should know of traces, without what would steer a terminal."""
    # The reader names missing ranks too.
    twice = set(missing_ranks([one.trace for one in traces.ranks])) if traces.missing else set()
    return tuple(
        "".join(c if c.isprintable() else "?" for c in notice)
        for notice in traces.notices
        if notice not in twice
    )


def title_of(category: str | None) -> str | None:
    """Return what a person reads for the category of an event; the device is its own."""
    if category is None:
        return None
    phase = "data_wait" if category == "data_loading" else category
    return CATEGORY_OF.get(phase, category)


def _facts(traces: RanksAttribution) -> dict[str, object]:
    first = traces.ranks[0]
    trace = first.trace
    return {
        "ranks": traces.world_size,
        "ranks with a trace": len(traces.ranks),
        "device": None if trace.device_name is None else short_name(trace.device_name),
        "has a device": first.device is not None,
        "torch": None if trace.torch_version is None else short_name(trace.torch_version),
        "steps measured": counted_steps(first),
        "steps found from": short_name(first.steps.how),
        "profiler on": True,
        "with stacks": bool(trace.settings.get("with_stack")),
        "with shapes": bool(trace.settings.get("record_shapes")),
        "with memory": bool(trace.settings.get("profile_memory")),
    }
