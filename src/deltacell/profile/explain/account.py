"""Accounts: where the time of a training goes, in parts that add up, and how two of them differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

import polars as pl

from deltacell.base.files import JsonObject
from deltacell.base.text import ratio_text

OUTSIDE = "outside the steps: "  # prefix of a part of an epoch outside its steps
SAMPLES = "samples per step"
SAME_SAMPLES = 0.05  # the last batch of an epoch is short, so the mean depends on the steps counted
TRACE = "trace"  # the source of an account of traces
FIT = "fit"  # the source of an account of a fit in one call, which has no steps


@dataclass(frozen=True, eq=False)
class EvidenceTable:
    """Numbers behind an explanation, with a unique key. Names in the frame are not escaped."""

    key: str
    title: str
    frame: pl.DataFrame

    def to_json(self) -> JsonObject:
        """Return the table as a JSON-serialisable dict."""
        rows = [list(row) for row in self.frame.rows()]
        return {"key": self.key, "title": self.title, "columns": self.frame.columns, "rows": rows}


@dataclass(frozen=True)
class Account:
    """Where the time of a training goes, in disjoint parts.

    A step takes ``sum(parts)`` seconds, and an epoch ``steps_per_epoch`` steps plus
    ``sum(outside)`` seconds. None means unknown. A fit in one call takes ``sum(parts)`` seconds as
    a whole.
    """

    name: str  # used in sentences
    source: str  # run, fit, trace or figures
    parts: Mapping[str, float]  # seconds of a steady step by category, or of a fit by phase
    samples_per_step: float | None = None  # of all processes together
    steps_per_epoch: float | None = None
    outside: Mapping[str, float] = field(default_factory=dict)  # seconds per epoch by category
    residual: float = 0.0  # the share of the measured time in no part or in several
    facts: Mapping[str, Any] = field(default_factory=dict)  # equal in a fair comparison
    warnings: tuple[str, ...] = ()

    @property
    def step_s(self) -> float:
        """The seconds of a step, or of a fit as a whole."""
        return math.fsum(self.parts.values())

    @property
    def sample_s(self) -> float | None:
        """The seconds of a sample; None if the samples per step are unknown."""
        return self.step_s / self.samples_per_step if self.samples_per_step else None

    @property
    def outside_s(self) -> float:
        """The seconds of an epoch outside its steps."""
        return math.fsum(self.outside.values())

    @property
    def epoch_s(self) -> float | None:
        """The seconds of an epoch; None if the steps per epoch are unknown."""
        if not self.steps_per_epoch:
            return None
        return self.steps_per_epoch * self.step_s + self.outside_s

    @property
    def epoch_parts(self) -> dict[str, float]:
        """The seconds of an epoch by category, inside and outside its steps."""
        steps = self.steps_per_epoch or 0.0
        within = {part: steps * seconds for part, seconds in self.parts.items()}
        return within | {f"{OUTSIDE}{part}": seconds for part, seconds in self.outside.items()}

    def to_json(self) -> JsonObject:
        """Return the account as a JSON-serialisable dict."""
        whole = "fit_s" if self.source == FIT else "step_s"
        names = ("sample_s", "epoch_s", "samples_per_step", "steps_per_epoch", "residual")
        return {
            "name": self.name,
            "source": self.source,
            "parts_s": dict(self.parts),
            "outside_s": dict(self.outside),
            whole: self.step_s,
            **{name: getattr(self, name) for name in names},
            "facts": dict(self.facts),
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class Bar:
    """Seconds of one part in A and in B, 0 if it is missing, and the change."""

    part: str
    a: float
    b: float
    change: float
    share: float | None  # of the gap; above 1 or negative if bars cancel, None without a gap


@dataclass(frozen=True)
class Waterfall:
    """From A to B per ``sample``, ``step`` or ``epoch``, the largest change first.

    ``a + sum of changes == b``, and changes may be negative. ``ratio`` is None if A takes no time.
    """

    per: str
    a: float
    b: float
    gap: float
    ratio: float | None
    bars: tuple[Bar, ...]

    @classmethod
    def between(cls, per: str, a: Mapping[str, float], b: Mapping[str, float]) -> Waterfall:
        """Return the changes between two mappings from parts to seconds."""
        whole_a = math.fsum(a.values())
        whole_b = math.fsum(b.values())
        gap = math.fsum([*b.values(), *(-seconds for seconds in a.values())])
        bars = []
        for part in {**a, **b}:
            in_a = a.get(part, 0.0)
            in_b = b.get(part, 0.0)
            if in_a or in_b:
                share = (in_b - in_a) / gap if gap else None
                bars.append(Bar(part, in_a, in_b, in_b - in_a, share))
        bars.sort(key=lambda bar: (-abs(bar.change), bar.part))
        ratio = whole_b / whole_a if whole_a > 0 else None
        return cls(per, whole_a, whole_b, gap, ratio, tuple(bars))

    def frame(self) -> pl.DataFrame:
        """Return a row per bar: the part, its seconds in A and in B, the change, and its share."""
        numbers = dict.fromkeys(("a_s", "b_s", "change_s", "share of the gap"), pl.Float64())
        schema = {"part": pl.String(), **numbers}
        return pl.DataFrame([astuple(bar) for bar in self.bars], schema=schema, orient="row")

    def to_json(self) -> JsonObject:
        """Return the waterfall as a JSON-serialisable dict."""
        bars = self.frame().rename({"share of the gap": "share_of_gap"}).to_dicts()
        whole = {"a_s": self.a, "b_s": self.b, "gap_s": self.gap, "ratio": self.ratio}
        return {"per": self.per, **whole, "bars": bars}


@dataclass(frozen=True)
class EpochRatio:
    """Why an epoch of B takes longer than one of A, as ratios of B to A.

    ``epoch = steps * time_per_step * outside``, and ``of_steps`` is the product of the first two.
    ``outside`` compares the time of an epoch with that of its steps: it is below 1 if A spends the
    larger share outside its steps.
    """

    epoch: float
    steps: float
    time_per_step: float
    outside: float
    outside_share_a: float
    outside_share_b: float
    of_steps: float
    line: str

    @classmethod
    def between(cls, a: Account, b: Account) -> EpochRatio | None:
        """Return the ratio of two epochs; None if one of them is unknown or takes no time."""
        epochs = (a.epoch_s or 0.0, b.epoch_s or 0.0)
        if min(*epochs, a.step_s, b.step_s) <= 0:
            return None
        steps = (b.steps_per_epoch or 0) / (a.steps_per_epoch or 1)
        step = b.step_s / a.step_s
        epoch = epochs[1] / epochs[0]
        outside = epoch / (steps * step)
        line = f"epoch {ratio_text(epoch)} = steps {steps:.3g}x * time per step {step:.3g}x"
        line += f" * outside the steps {outside:.3g}x"
        shares = (a.outside_s / epochs[0], b.outside_s / epochs[1])
        return cls(epoch, steps, step, outside, *shares, steps * step, line)


@dataclass(frozen=True)
class Comparison:
    """Two accounts and the changes from A to B.

    ``steps`` is per sample if both numbers of samples are known, unless both accounts are of
    traces, and per step otherwise; ``epochs`` and ``epoch_ratio`` are None if an epoch is unknown;
    ``unequal`` lists the facts that differ.
    """

    a: Account
    b: Account
    steps: Waterfall
    epochs: Waterfall | None
    epoch_ratio: EpochRatio | None
    unequal: tuple[str, ...]

    @property
    def falls(self) -> list[Waterfall]:
        """The waterfalls that are known: per sample or step, and per epoch."""
        return [fall for fall in (self.steps, self.epochs) if fall is not None]

    def to_json(self) -> JsonObject:
        """Return the comparison as a JSON-serialisable dict."""
        return {
            "waterfalls": [fall.to_json() for fall in self.falls],
            "epoch_ratio": None if self.epoch_ratio is None else asdict(self.epoch_ratio),
            "unequal": list(self.unequal),
        }


def compare(a: Account, b: Account) -> Comparison:
    """Compare two accounts part by part."""
    # What a trace shows is part of a step.
    are_traces = a.source == b.source == TRACE
    has_samples = bool(a.samples_per_step and b.samples_per_step)
    per = "sample" if has_samples and not are_traces else "step"
    parts = []
    for account in (a, b):
        size = (account.samples_per_step or 1) if per == "sample" else 1
        parts.append({part: seconds / size for part, seconds in account.parts.items()})
    epochs = None
    if a.steps_per_epoch and b.steps_per_epoch:
        epochs = Waterfall.between("epoch", a.epoch_parts, b.epoch_parts)
    steps = Waterfall.between(per, *parts)
    return Comparison(a, b, steps, epochs, EpochRatio.between(a, b), _unequal(a, b))


def _unequal(a: Account, b: Account) -> tuple[str, ...]:
    facts_a = _compared_facts(a)
    facts_b = _compared_facts(b)
    differences = []
    for name in {**facts_a, **facts_b}:
        in_a = facts_a.get(name)
        in_b = facts_b.get(name)
        near = (
            name == SAMPLES and in_a and in_b and abs(in_a - in_b) <= SAME_SAMPLES * max(in_a, in_b)
        )
        if in_a != in_b and not near:
            differences.append(f"{name}: {_fact(in_a)} against {_fact(in_b)}")
    return tuple(differences)


def _compared_facts(account: Account) -> JsonObject:
    return {
        **account.facts,
        "steps per epoch": account.steps_per_epoch,
        SAMPLES: account.samples_per_step,
    }


def _fact(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "unknown", True: "yes", False: "no"}[value]
    return f"{round(value, 2):,.12g}" if isinstance(value, int | float) else str(value)
