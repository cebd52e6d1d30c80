"""The result of a comparison: what each change gives alone and together, and what is left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from deltacell.base.files import JsonObject
from deltacell.models.variation import VariationKind
from deltacell.profile.explain.step_cost import StepCost
from deltacell.train.comparing.arms import ALL, SideName, TriedArm, settings_text
from deltacell.train.comparing.differences import ConfigDifference
from deltacell.train.comparing.estimate import ArmTime, TimeChange, estimate, ratio_interval
from deltacell.train.comparing.table import TrialTable

LEAST_SHARE = 0.3  # of the gap; a change with a smaller share is not its cause
TOGETHER = "together, beyond each alone"
REST = "not explained by a setting"


class StepPart(StrEnum):
    """A part of a step, as the difference of two modes."""

    data = "data"
    forward = "forward"
    backward = "backward"
    optimizer = "optimizer"


# The mode that executes a part, and the mode that leaves it out.
PART_MODES: Mapping[StepPart, tuple[str, str | None]] = {
    StepPart.data: ("data", None),
    StepPart.forward: ("forward", "data"),
    StepPart.backward: ("step", "forward"),
    StepPart.optimizer: ("train", "step"),
}


@dataclass(frozen=True)
class Effect:
    """What one difference between A and B makes of the gap, in seconds per sample.

    ``in_a`` is how much longer A takes with the value of B, and ``in_b`` how much less B takes with
    the value of A. They differ if changes depend on each other, and ``change`` is their mean.
    """

    difference: ConfigDifference
    in_a: TimeChange | None  # None if it was not measured
    in_b: TimeChange | None

    @property
    def change(self) -> TimeChange | None:
        """The mean of both, or the one that is known."""
        known = [change for change in (self.in_a, self.in_b) if change is not None]
        if not known:
            return None
        seconds = sum(change.seconds for change in known) / len(known)
        noise = math.hypot(*(change.noise for change in known)) / len(known)
        return TimeChange(seconds, noise)


@dataclass(frozen=True)
class TriedVariation:
    """What a variation of one of the trainings gives."""

    side: SideName
    kind: VariationKind
    settings: str
    is_same_model: bool
    estimate: ArmTime
    speedup: float  # the time of the training over that of its variation
    low: float
    high: float


@dataclass(frozen=True)
class FallBar:
    """A part of the gap between A and B, in seconds per sample; ``in_a`` and ``in_b`` lead to it.

    They are the effect of a change in A and in B, or what a part of a step takes in each.
    """

    part: str
    change: float
    noise: float | None = None  # None if it was not measured by itself
    share: float | None = None  # of the gap
    in_a: float | None = None
    in_b: float | None = None


@dataclass(frozen=True)
class GapCause:
    """What makes most of the gap: a change of a setting, or a part of a step."""

    kind: VariationKind | StepPart
    name: str
    share: float  # of the gap


@dataclass(frozen=True)
class FailedArm:
    """What could not be tried, and the error."""

    arm: str
    error: str


@dataclass(frozen=True, kw_only=True)
class TriedComparison:
    """Why B takes longer than A, or A than B, by trials of both and of variations of them."""

    name_a: str
    name_b: str
    a: ArmTime
    b: ArmTime
    ratio: float  # of the seconds per sample of B to those of A
    low: float
    high: float
    effects: tuple[Effect, ...]
    together: TimeChange | None  # all changes made in A; None without any
    changes: tuple[FallBar, ...]  # the gap by change
    parts: tuple[FallBar, ...]  # the gap by part of a step; empty if not measured
    variations: tuple[TriedVariation, ...]
    costs: Mapping[SideName, StepCost]  # of a step, where several batches were tried
    cause: GapCause | None  # None without a gap beyond noise
    failed: tuple[FailedArm, ...]
    missing: tuple[str, ...]  # arms for which there was no time
    seconds: float  # of all trials

    @property
    def gap(self) -> TimeChange:
        """How much longer a sample of B takes."""
        return TimeChange.between(self.a, self.b)

    @property
    def is_beyond_noise(self) -> bool:
        """Whether both differ."""
        return self.low > 1 or self.high < 1

    def to_json(self) -> JsonObject:
        """Return the result as a JSON-serialisable dict, with its sentences."""
        from deltacell.train.comparing import sentences

        texts = {
            effect.difference.name: sentences.difference_text(effect.difference)
            for effect in self.effects
        }
        return {
            "sentence": sentences.sentence(self),
            "names": [self.name_a, self.name_b],
            "per": "sample",
            "a": asdict(self.a),
            "b": asdict(self.b),
            "ratio": [self.ratio, self.low, self.high],
            "gap": asdict(self.gap),
            "cause": None if self.cause is None else asdict(self.cause),
            "effects": [sentences.effect_values(self, effect) for effect in self.effects],
            "together": None if self.together is None else asdict(self.together),
            "waterfalls": [
                self._fall("by change", ("alone, in A", "last, in B"), self.changes, texts),
                self._fall("by part of a step", ("in A", "in B"), self.parts, {}),
            ],
            "variations": [asdict(variation) for variation in self.variations],
            "costs": {side: asdict(cost) for side, cost in self.costs.items()},
            "notes": sentences.notes(self),
            "advice": sentences.advice(self),
            "failed": [asdict(arm) for arm in self.failed],
            "missing": list(self.missing),
            "seconds": self.seconds,
        }

    def _fall(
        self,
        title: str,
        heads: tuple[str, str],
        bars: Sequence[FallBar],
        texts: Mapping[str, str],
    ) -> dict[str, Any]:
        """Return a waterfall in the form of those of explanations, with texts of its parts."""
        rows = [
            {
                "part": texts.get(bar.part, bar.part),
                "a_s": bar.in_a,
                "b_s": bar.in_b,
                "change_s": bar.change,
                "noise_s": bar.noise,
                "share_of_gap": bar.share,
            }
            for bar in bars
        ]
        return {
            "title": title,
            "heads": list(heads),
            "per": "sample",
            "a_s": self.a.seconds,
            "b_s": self.b.seconds,
            "gap_s": self.gap.seconds,
            "ratio": self.ratio,
            "bars": rows,
        }


def attribute(
    names: tuple[str, str],
    changes: Sequence[ConfigDifference],
    arms: Sequence[TriedArm],
    table: TrialTable,
) -> TriedComparison:
    """Return the result of the finished trials; A and B must be among them."""
    times = {arm.name: estimate(table.of(arm.name), per_sample=True) for arm in arms}
    a = times["a"]
    b = times["b"]
    assert a is not None
    assert b is not None
    ratio, low, high = ratio_interval(a, b)
    effects = tuple(_effect(change, len(changes), arms, times) for change in changes)
    all_made = times.get(ALL)
    together = None if all_made is None else TimeChange.between(a, all_made)
    gap = TimeChange.between(a, b)
    fall = _by_change(effects, together, gap)
    parts = _by_part(times, gap)
    is_beyond = low > 1 or high < 1
    return TriedComparison(
        name_a=names[0],
        name_b=names[1],
        a=a,
        b=b,
        ratio=ratio,
        low=low,
        high=high,
        effects=effects,
        together=together,
        changes=fall,
        parts=parts,
        variations=tuple(_variations(arms, times)),
        costs=_costs(arms, table),
        cause=_cause(effects, parts, gap) if is_beyond else None,
        failed=_failed(arms, table),
        missing=tuple(arm.name for arm in arms if not table.of(arm.name)),
        seconds=table.seconds,
    )


Times = Mapping[str, ArmTime | None]


def _effect(change: ConfigDifference, n: int, arms: Sequence[TriedArm], times: Times) -> Effect:
    """Return the effect of a change; if it is the only one, making it is making all."""
    made_in: dict[SideName, TimeChange | None] = {"a": None, "b": None}
    for arm in arms:
        is_made = arm.difference is change or (n == 1 and arm.name == ALL)
        base = times[arm.side]
        varied = times[arm.name]
        if not is_made or base is None or varied is None:
            continue
        before, after = (base, varied) if arm.side == "a" else (varied, base)
        made_in[arm.side] = TimeChange.between(before, after)
    return Effect(change, made_in["a"], made_in["b"])


def _by_change(
    effects: Sequence[Effect],
    together: TimeChange | None,
    gap: TimeChange,
) -> tuple[FallBar, ...]:
    """Return the gap by change, the largest first, then what they make together, and the rest."""
    bars = []
    for effect in effects:
        change = effect.change
        if change is not None:
            in_a = None if effect.in_a is None else effect.in_a.seconds
            in_b = None if effect.in_b is None else effect.in_b.seconds
            name = effect.difference.name
            bars.append(_bar(name, change.seconds, change.noise, gap, in_a=in_a, in_b=in_b))
    bars.sort(key=lambda bar: -abs(bar.change))
    explained = math.fsum(bar.change for bar in bars)
    if together is not None and len(bars) > 1:
        bars.append(_bar(TOGETHER, together.seconds - explained, None, gap))
        explained = together.seconds
    bars.append(_bar(REST, gap.seconds - explained, gap.noise, gap))
    return tuple(bars)


def _bar(
    part: str,
    change: float,
    noise: float | None,
    gap: TimeChange,
    *,
    in_a: float | None = None,
    in_b: float | None = None,
) -> FallBar:
    share = change / gap.seconds if gap.seconds else None
    return FallBar(part, change, noise, share, in_a, in_b)


def _by_part(times: Times, gap: TimeChange) -> tuple[FallBar, ...]:
    """Return the gap by part of a step, from the modes of both; empty if one is missing."""
    bars = []
    for part in StepPart:
        in_a = part_cost(part, "a", times)
        in_b = part_cost(part, "b", times)
        if in_a is None or in_b is None:
            return ()
        change = in_b.seconds - in_a.seconds
        noise = math.hypot(in_a.noise, in_b.noise)
        part_bar = _bar(part, change, noise, gap, in_a=in_a.seconds, in_b=in_b.seconds)
        bars.append(part_bar)
    return tuple(sorted(bars, key=lambda bar: -abs(bar.change)))


def part_cost(part: StepPart, side: str, times: Times) -> TimeChange | None:
    """Return the marginal cost of a part: how much longer a mode takes that executes it."""
    with_it, without_it = PART_MODES[part]
    whole = times.get(_arm_of_mode(side, with_it))
    if whole is None:
        return None
    if without_it is None:
        return TimeChange(whole.seconds, whole.noise)
    others = times.get(_arm_of_mode(side, without_it))
    return None if others is None else TimeChange.between(others, whole)


def _arm_of_mode(side: str, mode: str) -> str:
    return side if mode == "train" else f"{side}, mode {mode}"


def _variations(arms: Sequence[TriedArm], times: Times) -> list[TriedVariation]:
    """Return what each variation gives, the largest speed-up first."""
    tried = []
    for arm in arms:
        base = times[arm.side]
        varied = times[arm.name]
        if arm.variation is None or base is None or varied is None:
            continue
        speedup, low, high = ratio_interval(varied, base)
        variation = TriedVariation(
            arm.side,
            arm.variation.kind,
            settings_text(arm.variation.settings),
            arm.variation.is_same_model,
            varied,
            speedup,
            low,
            high,
        )
        tried.append(variation)
    return sorted(tried, key=lambda variation: (variation.side, -variation.speedup))


def _costs(arms: Sequence[TriedArm], table: TrialTable) -> dict[SideName, StepCost]:
    """Return the fixed cost of a step and that of a sample, by two batches of one config."""
    costs: dict[SideName, StepCost] = {}
    for arm in arms:
        kinds = [arm.variation and arm.variation.kind, arm.difference and arm.difference.kind]
        base = estimate(table.of(arm.side), per_sample=False)
        varied = estimate(table.of(arm.name), per_sample=False)
        if VariationKind.batch not in kinds or base is None or varied is None:
            continue
        small, large = sorted((base, varied), key=lambda of_batch: of_batch.samples)
        if not large.samples > small.samples:
            continue
        per_sample = (large.seconds - small.seconds) / (large.samples - small.samples)
        if per_sample > 0:
            fixed = max(0.0, small.seconds - small.samples * per_sample)
            sizes = (round(small.samples), round(large.samples))
            costs[arm.side] = StepCost(fixed, per_sample, sizes)
    return costs


def _cause(
    effects: Sequence[Effect],
    parts: Sequence[FallBar],
    gap: TimeChange,
) -> GapCause | None:
    """Return the change with the largest share of the gap or, if that is small, the part."""
    causes = []
    for effect in effects:
        change = effect.change
        if change is not None and change.is_beyond_noise:
            share = change.seconds / gap.seconds
            causes.append(GapCause(effect.difference.kind, effect.difference.name, share))
    best = max(causes, key=lambda cause: cause.share, default=None)
    if best is not None and best.share >= LEAST_SHARE:
        return best
    of_parts = [
        GapCause(StepPart(bar.part), bar.part, bar.share)
        for bar in parts
        if bar.share is not None and bar.noise is not None and abs(bar.change) > bar.noise
    ]
    return max(of_parts, key=lambda cause: cause.share, default=best)


def _failed(arms: Sequence[TriedArm], table: TrialTable) -> tuple[FailedArm, ...]:
    failed = []
    for arm in arms:
        errors = [row.error for row in table.of(arm.name) if row.error is not None]
        if errors:
            failed.append(FailedArm(arm.name, errors[0]))
    return tuple(failed)
