"""Sentences about two runs of this program, made from values."""

from __future__ import annotations

from collections.abc import Sequence

from deltacell.base.text import (
    capital,
    change_text,
    fitting_text,
    listed,
    ratio_text,
    seconds_text,
    share_text,
)
from deltacell.profile.explain import sentences
from deltacell.profile.explain.account import Waterfall
from deltacell.profile.explain.causes import Cause, NoSetting
from deltacell.profile.explain.noise import Difference
from deltacell.profile.explain.run_components import ComponentGap
from deltacell.profile.explain.runs import OtherSamples, OutsideSteps, RatioReason, SlowSteps
from deltacell.profile.explain.setting_sentences import differing_clause
from deltacell.profile.explain.settings import SettingChange
from deltacell.profile.explain.step_cost import EqualBatch

SMALL_REST = 0.05  # a component that exceeds the gap by a larger share is set against the others


def slower_sentence(fall: Waterfall, ratio: float, cause: Cause, a: str, b: str) -> str:
    """Return how many times as long B takes, and why, in at most two lines."""
    clause = sentences.cause_clause(cause, a)
    named = f"{b} takes {ratio_text(ratio)} as long per {fall.per} as {a}"
    numbered = f"The second run takes {ratio_text(ratio)} as long per {fall.per} as the first"
    return fitting_text(
        f"{named} {_times(fall)}: {clause}.",
        f"{named}: {clause}.",
        f"{numbered}: {clause}.",
        f"{numbered}: {_clause_in_short(cause, clause)}.",
    )


def _clause_in_short(cause: Cause, clause: str) -> str:
    """Return a clause without the names of settings that do not explain a gap."""
    match cause.evidence:
        case NoSetting(part, changes) if changes:
            return f"{sentences.gap_share(part)}; their settings do not explain it"
    return clause


def _times(fall: Waterfall) -> str:
    return f"({seconds_text(fall.b)} against {seconds_text(fall.a)})"


def same_sentence(
    fall: Waterfall,
    changes: Sequence[SettingChange],
    a: str,
    b: str,
    *,
    is_recorded: bool,
) -> str:
    """Return that there is no difference, and which settings differ nevertheless."""
    clause = differing_clause(changes, is_recorded=is_recorded)
    none = "There is no difference beyond noise between"
    return fitting_text(
        f"{none} {b} and {a} per {fall.per} {_times(fall)}{clause}.",
        f"{none} the two runs per {fall.per} {_times(fall)}{clause}.",
    )


def component_sentence(gap: ComponentGap) -> str:
    """Return the component that makes most of a gap, and how much of it is forward and backward."""
    change = seconds_text(abs(gap.change))
    more, less = ("more", "less") if gap.gap > 0 else ("less", "more")
    forward = change_text(gap.forward)
    backward = change_text(gap.backward)
    passes = f"({forward} in the forward, {backward} in the backward)"
    name = capital(gap.component)
    rest = abs(gap.change) - abs(gap.gap)
    if rest > SMALL_REST * abs(gap.gap):
        others = f"all others together {seconds_text(rest)} {less}"
        return f"{name}: {change} {more} per {gap.per} {passes}, and {others}."
    whole = seconds_text(abs(gap.gap))
    return f"{name}: {change} of the {whole} {more} per {gap.per} {passes}."


def equal_batch_sentence(equal: EqualBatch, a: str, b: str) -> str:
    """Return the ratio of two runs at an equal batch, and what it was computed from."""
    cost = equal.cost
    return (
        f"At an equal batch of {equal.samples:,.0f}, a step of {b} would take"
        f" {ratio_text(equal.ratio)} as long as one of {a}: a step of {equal.run} takes"
        f" {seconds_text(cost.fixed)} + {seconds_text(cost.per_sample)} per sample, by its steps of"
        f" {listed([f'{size:,}' for size in cost.sizes])} samples."
    )


NO_DIFFERENCE_PER_SAMPLE = "Their steps take the same time per sample, up to noise."


def reason_sentence(reason: RatioReason) -> str:
    """Return why the ratio of medians or of epochs differs from the one that leads."""
    match reason:
        case SlowSteps(run, 1, _, first, share):
            return (
                f"Medians have another ratio, because one slow step of {run}, step {first:,}, takes"
                f" {share_text(share)} of its time."
            )
        case SlowSteps(run, count, steps, first, share):
            of_steps = f"{count:,} of {steps:,} steps of {run}, from step {first:,} on,"
            take = f"take {share_text(share)} of its time"
            return f"Medians have another ratio, because {of_steps} {take}."
        case OtherSamples(a, b, samples_a, samples_b):
            return (
                f"Epochs have another ratio, because one of {b} has {samples_b:,} samples, and one"
                f" of {a} {samples_a:,}."
            )
        case OutsideSteps(run, share, part):
            return (
                f"Epochs have another ratio, because {run} spends {share_text(share)} of an epoch"
                f" outside its steps, mostly in {part}."
            )


def interval_sentence(noise: Difference) -> str:
    """Return the ratio of medians or means with its interval, and what would have shown."""
    return f"{sentences.bootstrap_sentence(noise)} {sentences.detectable_sentence(noise)}"
