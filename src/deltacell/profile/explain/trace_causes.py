"""What limits the program of a trace: the device, the host, the loader, or another rank."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from deltacell.profile.explain.account import Account
from deltacell.profile.explain.trace_account import (
    DEVICE_PARTS,
    counted_steps,
    device_parts,
    kernel_seconds,
    title_of,
)
from deltacell.profile.explain.words import listed, seconds_text, share_text, short_name
from deltacell.profile.trace.attribution import Attribution, RanksAttribution

MUCH = 0.10
"""The share of a step that is worth a sentence."""


@dataclass(frozen=True)
class LateRank:
    """The rank that the others wait for.

    Parameters
    ----------
    rank, first
        Its number, and that of the one that came first to the collective it was latest to.
    late_s
        From the first arrival to the last, there.
    collective, index, step
        Which one that was: its name, the how-manieth of its kind in its step, and the step.
    doing, category
        What its host was busy with meanwhile.
    waited_share
        Of the time of all ranks: what they waited where it was last.
    last, collectives
        How often it came last, of how many.
    """

    rank: int
    first: int
    late_s: float
    collective: str
    index: int
    step: int
    doing: str | None
    category: str | None
    waited_share: float
    last: int
    collectives: int

    @property
    def sentence(self) -> str:
        """What it is, with the numbers."""
        which = "the first" if self.index == 0 else f"number {self.index + 1} of its kind of"
        busy = ""
        if self.doing is not None:
            busy = f", busy with {short_name(self.doing)}"
            if self.category is not None:
                busy += f" ({self.category})"
        return (
            f"the ranks wait for rank {self.rank}: it enters {which} {short_name(self.collective)} "
            f"{seconds_text(self.late_s)} after rank {self.first}{busy}, and comes last to "
            f"{self.last} of {self.collectives} collectives; waiting for it is "
            f"{share_text(self.waited_share)} of the time of all ranks"
        )


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
    return LateRank(
        rank=int(worst["last_rank"]),
        first=int(latest["first_rank"]),
        late_s=latest["late_by"] / 1e9,
        collective=latest["name"],
        index=int(latest["index"]),
        step=int(latest["step"]),
        doing=latest["doing"],
        category=title_of(latest["category"]),
        waited_share=worst["waited"] / wall if wall else 0.0,
        last=int(worst["last"]),
        collectives=len(rows),
    )


def trace_sentence(account: Account, traces: RanksAttribution) -> str:
    """Return the limiting cause of a trace."""
    lead = _device_lead(account, traces) or _host_lead(account)
    late = late_rank(traces)
    if late is None or late.waited_share <= MUCH / 2:
        return lead
    text = f"{late.sentence[0].upper()}{late.sentence[1:]}."
    return f"{text} {lead}" if _is_the_cause(late, traces) else f"{lead} {text}"


def trace_evidence(account: Account, traces: RanksAttribution) -> list[str]:
    """Return what else a trace shows, in sentences."""
    found = []
    first = traces.ranks[0]
    parts = device_parts(traces)
    if parts:
        wall = sum(parts.values())
        told = [
            f"{DEVICE_PARTS[part]} {seconds_text(seconds)} ({share_text(seconds / wall)})"
            for part, seconds in parts.items()
        ]
        found.append(f"In a step the device is {listed(told)}, which adds up to it.")
    if traces.shares and len(traces.ranks) > 1:
        shares = traces.shares
        found.append(
            "From the first event of the device to the last, on average over ranks: idle "
            f"{100 * shares['idle']:.1f} %, communication and copies that nothing hides "
            f"{100 * shares['non_compute']:.1f} %, compute {100 * shares['compute']:.1f} %."
        )
    found += _idle(first)
    late = late_rank(traces)
    if late is not None and 0.01 < late.waited_share <= MUCH / 2:
        text = late.sentence
        found.append(f"{text[0].upper()}{text[1:]}.")
    found += _loader(first)
    found += _syncs(first)
    found += _small(first)
    found += _other(first)
    return found


def trace_advice(account: Account, traces: RanksAttribution) -> list[str]:
    """Return what to try, by what the device waits for; categories are advised on elsewhere."""
    found = []
    device = traces.ranks[0].device
    parts = device_parts(traces)
    if device is not None and parts:
        wall = sum(parts.values())
        steps = counted_steps(traces.ranks[0])
        for reason, time in device.idle.select("reason", "time").rows():
            if time / 1e9 / steps > MUCH * wall and reason in _IDLE_ADVICE:
                found.append(f"idle device: {_IDLE_ADVICE[reason]}")
        if parts["communication"] > MUCH * wall:
            found.append(
                "communication: let it overlap with the backward (buckets), make it smaller, or "
                "find who comes late."
            )
        if parts["compute"] > 0.7 * wall:
            found.append(
                "computing: the device is busy, so only less or cheaper work helps: lower "
                "precision, torch.compile, a cheaper algorithm."
            )
    late = late_rank(traces)
    if late is not None and late.waited_share > MUCH / 2:
        found.append(
            f"rank {late.rank}: give it less work, or look at what delays it"
            + (f" ({late.category})." if late.category else ".")
        )
    return found


_IDLE_ADVICE = {
    "sync": "remove what makes the host wait for the device, such as .item() and .cpu() in a step.",
    "launch": "launch fewer and larger kernels: a larger batch, torch.compile, CUDA graphs, fused "
    "optimizers.",
    "host": "move the work of the host off the step, or to workers.",
}


def _is_the_cause(late: LateRank, traces: RanksAttribution) -> bool:
    """Return whether waiting for a rank comes before what else takes long."""
    parts = device_parts(traces)
    if not parts:
        return late.waited_share > MUCH
    return parts["communication"] >= parts["idle"]


def _device_lead(account: Account, traces: RanksAttribution) -> str | None:
    parts = device_parts(traces)
    wall = sum(parts.values())
    if not wall:
        return None
    name = account.name
    idle, computing = parts["idle"], parts["compute"]
    exposed = max(("communication", "copies"), key=lambda part: parts[part])
    if idle > MUCH * wall and idle >= parts[exposed]:
        said = (
            f"The device of {name} is idle {share_text(idle / wall)} of a step "
            f"({seconds_text(idle)} of {seconds_text(wall)})"
        )
        return f"{said}{_why_idle(traces)}."
    if parts[exposed] > MUCH * wall:
        return (
            f"{DEVICE_PARTS[exposed][0].upper()}{DEVICE_PARTS[exposed][1:]} takes "
            f"{share_text(parts[exposed] / wall)} of a step of {name} "
            f"({seconds_text(parts[exposed])} of {seconds_text(wall)})."
        )
    return (
        f"The device of {name} computes {share_text(computing / wall)} of a step "
        f"({seconds_text(computing)} of {seconds_text(wall)}), so it is the device that limits it."
    )


def _why_idle(traces: RanksAttribution) -> str:
    """Return the reasons that make up most of the idle time, over all ranks."""
    frames = [
        one.device.idle.with_columns(pl.col("time") / counted_steps(one))
        for one in traces.ranks
        if one.device is not None
    ]
    reasons = (
        pl.concat(frames)
        .group_by("reason")
        .agg(pl.col("time").sum() / len(frames))
        .sort("time", "reason", descending=[True, False])
    )
    whole = float(reasons["time"].sum())
    told = [
        f"{_WHY[reason]} ({seconds_text(time / 1e9)})"
        for reason, time in reasons.rows()
        if time >= 0.2 * whole
    ]
    return f": {', and '.join(told[:2])}" if told else ""


_WHY = {
    "data": "the host waits for the loader",
    "sync": "the host has just waited for the device and has nothing ready",
    "launch": "the host takes longer to launch kernels than they run",
    "host": "the host is busy with what is no operator",
    "device": "what was launched waits for another stream or rank",
    "end": "nothing follows in the trace",
}


def _host_lead(account: Account) -> str:
    part = max(account.parts, key=lambda name: account.parts[name])
    seconds = account.parts[part]
    return (
        f"{part[0].upper()}{part[1:]} takes {share_text(seconds / account.step_s)} of a step of "
        f"{account.name} ({seconds_text(seconds)} of {seconds_text(account.step_s)})."
    )


def _idle(one: Attribution) -> list[str]:
    device = one.device
    if device is None or not len(device.gaps):
        return []
    gap = device.gaps.row(0, named=True)
    busy = "" if gap["host"] is None else f"; meanwhile the host was in {short_name(gap['host'])}"
    return [
        f"The longest idle gap is {seconds_text(gap['length'] / 1e9)} in step {gap['step']}: "
        f"{_WHY[gap['reason']]}{busy}."
    ]


def _loader(one: Attribution) -> list[str]:
    loader = one.loader
    if not loader.names:
        return ["The trace has no range of a loader, so a wait for batches cannot be told from it."]
    return [
        f"The training waits {seconds_text(loader.per_step / 1e9)} a step for its loader "
        f"({share_text(loader.share)})."
    ]


def _syncs(one: Attribution) -> list[str]:
    if not len(one.syncs):
        return []
    steps = counted_steps(one)
    count, time = float(one.syncs["per_step"].sum()), int(one.syncs["time"].sum()) / 1e9 / steps
    top = one.syncs.row(0, named=True)
    site = "" if top["site"] is None else f" at {short_name(top['site'])}"
    return [
        f"The host waits for the device at {count:.3g} sync points a step, "
        f"{seconds_text(time)} in all; the longest are of {short_name(top['operation'])}{site}."
    ]


def _small(one: Attribution) -> list[str]:
    device = one.device
    if device is None or not len(device.small):
        return []
    steps = counted_steps(one)
    launched = int(device.steps.filter("counted")["launches"].sum())
    count = int(device.small["count"].sum())
    if not launched or count < MUCH * launched:
        return []
    return [
        f"{count / steps:,.0f} of {launched / steps:,.0f} kernels a step are shorter than the call "
        "that launches them."
    ]


def _other(one: Attribution) -> list[str]:
    if not len(one.other):
        return []
    top = [
        f"{short_name(name)} ({share_text(share)})"
        for name, share in one.other.select("operation", "share").head(3).rows()
    ]
    return [
        f"{share_text(float(one.other['share'].sum()))} of the time is in no category: mostly "
        f"{listed(top)}."
    ]


def kernels_sentence(a: RanksAttribution, b: RanksAttribution) -> str | None:
    """Return how the kernels of two compare; None where one has no device."""
    in_a, in_b = kernel_seconds(a), kernel_seconds(b)
    if in_a is None or in_b is None:
        return None
    same = abs(in_a - in_b) <= 0.02 * max(in_a, in_b)
    return (
        f"Kernels launched in a step take {seconds_text(in_a)} against {seconds_text(in_b)}"
        f"{': the work of the device is the same' if same else ''}."
    )


def loader_sentence(a: RanksAttribution, b: RanksAttribution) -> str | None:
    """Return how the waits for the loader compare; None where one does not show it."""
    loaders = (a.ranks[0].loader, b.ranks[0].loader)
    if not loaders[0].names or not loaders[1].names:
        return None
    return (
        f"Waiting for the loader takes {seconds_text(loaders[0].per_step / 1e9)} against "
        f"{seconds_text(loaders[1].per_step / 1e9)} a step."
    )
