"""What traces show beside the cause, in sentences."""

from __future__ import annotations

from deltacell.profile.explain.stragglers import late_rank
from deltacell.profile.explain.trace_account import (
    DEVICE_PARTS,
    counted_steps,
    device_parts,
    kernel_seconds,
)
from deltacell.profile.explain.words import listed, seconds_text, share_text, short_name
from deltacell.profile.trace.attribution import Attribution, RanksAttribution

MUCH = 0.10
"""The share of a step that is worth a sentence."""


def trace_evidence(traces: RanksAttribution) -> list[str]:
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
    late = late_rank(traces)
    if late is not None and 0.01 < late.waited_share <= MUCH:
        text = late.sentence
        found.append(f"{text[0].upper()}{text[1:]}.")
    found += _loader(first)
    found += _syncs(first)
    found += _small(first)
    return found


def _loader(one: Attribution) -> list[str]:
    loader = one.loader
    if not loader.names:
        return ["The trace has no range of a loader, so a wait for batches cannot be told from it."]
    return [
        f"The training waits {seconds_text(loader.per_step / 1e9)} per step for its loader "
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
        f"The host waits for the device at {count:.3g} sync points per step, "
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
        f"{count / steps:,.0f} of {launched / steps:,.0f} kernels per step are shorter than "
        "the call that launches them."
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
        f"{seconds_text(loaders[1].per_step / 1e9)} per step."
    )
