"""What a comparison says, made from its values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from deltacell.base.text import (
    count_text,
    duration_text,
    listed,
    ratio_text,
    seconds_text,
    share_text,
)
from deltacell.models.variation import VariationKind
from deltacell.train.comparing.arms import settings_text
from deltacell.train.comparing.differences import ConfigDifference
from deltacell.train.comparing.result import Effect, GapCause, TriedComparison, TriedVariation

MUCH = 0.1  # a change with a smaller share of the gap is not in the sentence
WORTH = 1.1  # a speed-up below which a variation is no advice
_PARTS = {
    "data": "loading, preparation and transfer of data",
    "forward": "the forward pass and the loss",
    "backward": "the backward pass and communication",
    "optimizer": "the update of the weights",
}


def sentence(result: TriedComparison) -> str:
    """Return which one takes longer, how much, and why."""
    is_b_slower = result.ratio >= 1
    slow, fast = (result.name_b, result.name_a) if is_b_slower else (result.name_a, result.name_b)
    ratios = sorted(x if is_b_slower else 1 / x for x in (result.low, result.ratio, result.high))
    interval = f"{ratio_text(ratios[0])} to {ratio_text(ratios[2])}"
    if not result.is_beyond_noise:
        return (
            f"There is no difference beyond noise between {slow} and {fast} per sample"
            f" ({ratio_text(ratios[1])}, {interval})."
        )
    took = f"{slow} takes {ratio_text(ratios[1])} as long per sample as {fast} ({interval})"
    if result.cause is None and result.missing:
        return f"{took}; the time did not suffice to try why, which a larger --minutes does."
    if result.cause is None:
        return f"{took}, and no trial tells why."
    return f"{took}: {_cause_clause(result, result.cause)}."


def _cause_clause(result: TriedComparison, cause: GapCause) -> str:
    if not isinstance(cause.kind, VariationKind):
        settings = "no setting that differs explains it" if result.effects else "their settings"
        clause = f"{settings} are the same" if not result.effects else settings
        return f"{clause}, and {share_text(cause.share)} of it is {_PARTS[cause.kind]}"
    large = []
    for effect in result.effects:
        change = effect.change
        share = 0.0 if change is None else change.seconds / result.gap.seconds
        if share >= MUCH:
            large.append((share, effect.difference))
    large.sort(key=lambda pair: -pair[0])
    first_share, first = large[0]
    clauses = [f"{difference_text(first)} makes {share_text(first_share)} of the difference"]
    clauses += [f"{difference_text(other)} {share_text(share)}" for share, other in large[1:4]]
    return listed(clauses)


def difference_text(difference: ConfigDifference) -> str:
    """Return a difference with both values, such as ``data.batch_size (64 -> 8)``."""
    texts = []
    for key in difference.a:
        before = _short(settings_text({key: difference.a[key]}), key)
        after = _short(settings_text({key: difference.b[key]}), key)
        texts.append(f"{key} ({before} -> {after})")
    return listed(texts)


def _short(text: str, key: str) -> str:
    """Return the value of a setting, without its key, of bounded length."""
    value = text.removeprefix(f"{key}=") or "null"
    return value if len(value) <= 40 else f"{value[:24]}…{value[-14:]}"


def effect_values(result: TriedComparison, effect: Effect) -> dict[str, Any]:
    """Return an effect as a JSON-serialisable dict, with its text and share."""
    change = effect.change
    gap = result.gap.seconds
    return {
        "kind": effect.difference.kind,
        "name": effect.difference.name,
        "text": difference_text(effect.difference),
        "in_a": None if effect.in_a is None else asdict(effect.in_a),
        "in_b": None if effect.in_b is None else asdict(effect.in_b),
        "change": None if change is None else asdict(change),
        "share": None if change is None or not gap else change.seconds / gap,
    }


def notes(result: TriedComparison) -> list[str]:
    """Return the cost of a step by its batch, what was not tried, and how long it took."""
    return list(_notes(result))


def _notes(result: TriedComparison) -> Iterator[str]:
    names = {"a": result.name_a, "b": result.name_b}
    for side, cost in result.costs.items():
        sizes = listed([f"{size:,}" for size in cost.sizes])
        yield (
            f"A step of {names[side]} takes {seconds_text(cost.fixed)} +"
            f" {seconds_text(cost.per_sample)} per sample, by trials with batches of {sizes}."
        )
    batches = (result.a.samples, result.b.samples)
    if len(result.costs) == 2 and round(batches[0]) != round(batches[1]):
        batch = min(batches)
        ratio = result.costs["b"].seconds(batch) / result.costs["a"].seconds(batch)
        yield (
            f"At an equal batch of {batch:,.0f}, a step of {result.name_b} takes"
            f" {ratio_text(ratio)} as long as one of {result.name_a}."
        )
    for failed in result.failed:
        yield f"Not tried: {failed.arm}, because {failed.error.splitlines()[0]}"
    if result.missing:
        yield (
            f"The time did not suffice for {count_text(len(result.missing), 'variant')}"
            f" ({listed(list(result.missing[:3]))}…); rerun with a larger --minutes to add them."
        )
    n = result.a.n_trials + result.b.n_trials
    yield (
        f"Both were tried in turns, in {n} trials together; all trials took"
        f" {duration_text(result.seconds)}."
    )


def advice(result: TriedComparison) -> list[str]:
    """Return which variations make the slower one faster, with the measured factor."""
    slower = "b" if result.ratio >= 1 else "a"
    name = result.name_b if slower == "b" else result.name_a
    texts = []
    for variation in result.variations:
        if variation.side == slower and variation.low > 1 and variation.speedup >= WORTH:
            texts.append(f"{name} with {_variation_text(variation)}.")
    return texts


def _variation_text(variation: TriedVariation) -> str:
    interval = f"{ratio_text(variation.low)} to {ratio_text(variation.high)}"
    numbers = "computes the same numbers and " if variation.is_same_model else ""
    return f"{variation.settings} {numbers}is {ratio_text(variation.speedup)} as fast ({interval})"
