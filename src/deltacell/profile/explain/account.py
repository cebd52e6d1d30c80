"""Numbers in sentences: ratios, times, shares, and names that come from outside."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

LONGEST_NAME = 80


def ratio_text(ratio: float) -> str:
    """Return how many times something is, such as ``54x``, ``1.6x`` or ``0.25x``."""
    if not math.isfinite(ratio):
        return "?"
    if abs(ratio) >= 9.95:
        return f"{ratio:,.0f}x"
    return f"{ratio:.1f}x" if abs(ratio) >= 1.495 else f"{ratio:.3g}x"


def seconds_text(seconds: float) -> str:
    """Return a time in the unit in which it is best read, three digits of it."""
    size = abs(seconds)
    for unit, length in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if size >= 0.9995 * length:
            return f"{_digits(seconds / length)} {unit}"
    return "0 s" if size < 5e-10 else f"{_digits(seconds / 1e-9)} ns"


def change_text(seconds: float) -> str:
    """Return a difference of times with its sign."""
    return f"{'+' if seconds >= 0 else '-'}{seconds_text(abs(seconds))}"


def share_text(share: float) -> str:
    """Return a share in percent."""
    percent = 100 * share
    if 0 < abs(percent) < 0.1:
        return "under 0.1 %"
    return f"{percent:.0f} %" if abs(percent) >= 9.95 or percent == 0 else f"{percent:.1f} %"


def short_name(name: str) -> str:
    """Return a name from outside in one line, printable and of bounded length."""
    line = "".join(c if c.isprintable() else "?" for c in name)
    return line if len(line) <= LONGEST_NAME else f"{line[: LONGEST_NAME - 1]}…"


def listed(words: list[str] | tuple[str, ...]) -> str:
    """Return words as a list in a sentence."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _digits(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


WITHIN = 0.01
"""The share of the wall time by which parts may miss it before that is a warning."""


@dataclass(frozen=True)
class Account:
    """Where the time of a training goes.

    A step takes ``sum(parts)`` seconds. An epoch takes ``steps_per_epoch`` of them and
    ``sum(outside)`` seconds more. Nothing is in two parts.

    Parameters
    ----------
    name
        Of the training, as it is called in sentences.
    source
        What it was made from: ``run``, ``trace`` or ``figures``.
    parts
        Seconds of a steady step, by category.
    samples_per_step
        Of all processes together; None where it is not known.
    steps_per_epoch
        None where it is not known, and then nothing is said of epochs.
    outside
        Seconds of an epoch that lie outside of its training steps, by category.
    measured_s
        The wall time of a steady step as a clock gave it; None where the parts are all there is.
    facts
        What two trainings have to have in common to be compared, such as ``device``. A value of
        None is not known.
    warnings
        What a person should know of this account, in sentences.
    """

    name: str
    source: str
    parts: Mapping[str, float]
    samples_per_step: float | None = None
    steps_per_epoch: float | None = None
    outside: Mapping[str, float] = field(default_factory=dict)
    measured_s: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for seconds in (*self.parts.values(), *self.outside.values()):
            if not math.isfinite(seconds):
                raise ValueError(f"a part of an account is {seconds}; expected a finite number")

    @property
    def step_s(self) -> float:
        """Seconds of a step: the sum of its parts."""
        return math.fsum(self.parts.values())

    @property
    def sample_s(self) -> float | None:
        """Seconds of a step by its samples."""
        if not self.samples_per_step:
            return None
        return self.step_s / self.samples_per_step

    @property
    def outside_s(self) -> float:
        """Seconds of an epoch outside of its steps."""
        return math.fsum(self.outside.values())

    @property
    def epoch_s(self) -> float | None:
        """Seconds of an epoch: its steps, and what lies outside of them."""
        if not self.steps_per_epoch:
            return None
        return self.steps_per_epoch * self.step_s + self.outside_s

    @property
    def residual(self) -> float:
        """The share of the measured step that is in no part, or in several."""
        if not self.measured_s:
            return 0.0
        return abs(self.measured_s - self.step_s) / self.measured_s

    @property
    def adds_up(self) -> bool:
        """Whether the parts are the measured step, within 1 %."""
        return self.residual <= WITHIN

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return {
            "name": self.name,
            "source": self.source,
            "parts_s": dict(self.parts),
            "outside_s": dict(self.outside),
            "step_s": self.step_s,
            "sample_s": self.sample_s,
            "epoch_s": self.epoch_s,
            "samples_per_step": self.samples_per_step,
            "steps_per_epoch": self.steps_per_epoch,
            "residual": self.residual,
            "facts": dict(self.facts),
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True, eq=False)
class Table:
    """Numbers behind an explanation.

    Parameters
    ----------
    key
        A name for programs, such as ``categories``; unique in an explanation.
    title
        What it shows.
    frame
        Its rows. Names in them come from outside and are not escaped.
    """

    key: str
    title: str
    frame: pl.DataFrame


@dataclass(frozen=True)
class Bar:
    """One part in both accounts.

    Parameters
    ----------
    part
        Its category.
    a, b
        Its seconds in either; 0 where one does not have it.
    """

    part: str
    a: float
    b: float

    @property
    def change(self) -> float:
        """Seconds from A to B; negative where B is faster in this."""
        return self.b - self.a


@dataclass(frozen=True)
class Waterfall:
    """From A to B. ``a + sum of changes == b``, negative ones included.

    Parameters
    ----------
    per
        ``sample``, ``step`` or ``epoch``.
    bars
        One for each part that either has; the largest change first.
    """

    per: str
    bars: tuple[Bar, ...]

    @property
    def a(self) -> float:
        """Seconds in A."""
        return math.fsum(bar.a for bar in self.bars)

    @property
    def b(self) -> float:
        """Seconds in B."""
        return math.fsum(bar.b for bar in self.bars)

    @property
    def gap(self) -> float:
        """Seconds from A to B."""
        return math.fsum(value for bar in self.bars for value in (bar.b, -bar.a))

    @property
    def ratio(self) -> float | None:
        """How many times as long B takes; None where A takes no time."""
        return self.b / self.a if self.a > 0 else None

    def share(self, bar: Bar) -> float | None:
        """Return the share of the gap that a bar is: above 1 or negative where bars cancel."""
        return bar.change / self.gap if self.gap else None

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return {
            "per": self.per,
            "a_s": self.a,
            "b_s": self.b,
            "gap_s": self.gap,
            "ratio": self.ratio,
            "bars": [
                {
                    "part": bar.part,
                    "a_s": bar.a,
                    "b_s": bar.b,
                    "change_s": bar.change,
                    "share_of_gap": self.share(bar),
                }
                for bar in self.bars
            ],
        }


@dataclass(frozen=True)
class EpochRatio:
    """Why an epoch of B takes longer than one of A: ``epoch = steps * step * outside``.

    Parameters
    ----------
    steps
        Steps of an epoch, B by A.
    step
        Seconds of a step, B by A.
    outside
        Seconds of an epoch by those of its steps, B by A. It is 1 where nothing, or the same
        share, lies outside of the steps; below 1 where A spends the larger share there.
    outside_a, outside_b
        The share of an epoch that lies outside of its steps.
    """

    steps: float
    step: float
    outside: float
    outside_a: float
    outside_b: float

    @property
    def of_steps(self) -> float:
        """What the steps alone predict."""
        return self.steps * self.step

    @property
    def epoch(self) -> float:
        """Seconds of an epoch, B by A."""
        return self.steps * self.step * self.outside

    @property
    def line(self) -> str:
        """The identity with its numbers."""
        return (
            f"epoch {ratio_text(self.epoch)} = steps {self.steps:.3g}x "
            f"* time per step {self.step:.3g}x * outside the steps {self.outside:.3g}x"
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return {
            "epoch": self.epoch,
            "steps": self.steps,
            "time_per_step": self.step,
            "outside": self.outside,
            "of_steps": self.of_steps,
            "outside_share_a": self.outside_a,
            "outside_share_b": self.outside_b,
            "line": self.line,
        }


@dataclass(frozen=True)
class Comparison:
    """A and B.

    Parameters
    ----------
    a, b
        The two accounts.
    steps
        The waterfall of a step: per sample where both know their samples, per step otherwise.
    epochs
        The waterfall of an epoch; None where one of them knows no epoch.
    epoch_ratio
        The ratio of the epochs and what it is made of.
    unequal
        What is not the same in both and makes the comparison unequal, in sentences.
    """

    a: Account
    b: Account
    steps: Waterfall
    epochs: Waterfall | None
    epoch_ratio: EpochRatio | None
    unequal: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        found = [self.steps] if self.epochs is None else [self.steps, self.epochs]
        return {
            "waterfalls": [waterfall.to_json() for waterfall in found],
            "epoch_ratio": None if self.epoch_ratio is None else self.epoch_ratio.to_json(),
            "unequal": list(self.unequal),
        }


def compare(a: Account, b: Account) -> Comparison:
    """Return what changes from A to B.

    Parameters
    ----------
    a, b
        Two accounts in the same categories.
    """
    return Comparison(
        a, b, _of_steps(a, b), _of_epochs(a, b), _epoch_ratio(a, b), unequal_facts(a, b)
    )


def unequal_facts(a: Account, b: Account) -> tuple[str, ...]:
    """Return the differences that make two accounts unequal, in sentences.

    A fact that only one of them knows is named too: it may differ.
    """
    facts_a, facts_b = _all_facts(a), _all_facts(b)
    found = []
    for name in dict.fromkeys([*facts_a, *facts_b]):
        in_a = facts_a.get(name)
        in_b = facts_b.get(name)
        if in_a == in_b or (name == _SAMPLES and _nearly(in_a, in_b)):
            continue
        if in_a is None or in_b is None:
            only = a.name if in_b is None else b.name
            found.append(f"{name}: known of {only} only ({_fact(in_a if in_b is None else in_b)})")
        else:
            found.append(f"{name}: {_fact(in_a)} against {_fact(in_b)}")
    return tuple(found)


def waterfall(
    per: str, a: Mapping[str, float], b: Mapping[str, float], *, scale: tuple[float, float]
) -> Waterfall:
    """Return the waterfall between two sets of parts."""
    bars = [
        Bar(part, scale[0] * _seconds(a, part), scale[1] * _seconds(b, part))
        for part in dict.fromkeys([*a, *b])
    ]
    shown = [bar for bar in bars if bar.a or bar.b]
    return Waterfall(per, tuple(sorted(shown, key=lambda bar: (-abs(bar.change), bar.part))))


OUTSIDE = "outside the steps: "
"""Begins the name of a part of an epoch that lies outside of its steps."""


def _of_steps(a: Account, b: Account) -> Waterfall:
    if a.samples_per_step and b.samples_per_step:
        scale = (1 / a.samples_per_step, 1 / b.samples_per_step)
        return waterfall("sample", a.parts, b.parts, scale=scale)
    return waterfall("step", a.parts, b.parts, scale=(1.0, 1.0))


def _of_epochs(a: Account, b: Account) -> Waterfall | None:
    if not a.steps_per_epoch or not b.steps_per_epoch:
        return None
    return waterfall("epoch", _epoch_parts(a), _epoch_parts(b), scale=(1.0, 1.0))


def _epoch_parts(account: Account) -> dict[str, float]:
    steps = account.steps_per_epoch or 0.0
    within = {part: steps * seconds for part, seconds in account.parts.items()}
    return within | {f"{OUTSIDE}{part}": seconds for part, seconds in account.outside.items()}


def _epoch_ratio(a: Account, b: Account) -> EpochRatio | None:
    if not a.steps_per_epoch or not b.steps_per_epoch or not a.step_s > 0 or not b.step_s > 0:
        return None
    in_steps_a, in_steps_b = a.steps_per_epoch * a.step_s, b.steps_per_epoch * b.step_s
    epoch_a, epoch_b = in_steps_a + a.outside_s, in_steps_b + b.outside_s
    return EpochRatio(
        steps=b.steps_per_epoch / a.steps_per_epoch,
        step=b.step_s / a.step_s,
        outside=(epoch_b / in_steps_b) / (epoch_a / in_steps_a),
        outside_a=a.outside_s / epoch_a,
        outside_b=b.outside_s / epoch_b,
    )


_SAMPLES = "samples of a step"


def _nearly(a: float | None, b: float | None) -> bool:
    # The last batch of an epoch is short, so the mean depends on which steps were counted.
    return a is not None and b is not None and abs(a - b) <= 0.05 * max(a, b)


def _all_facts(account: Account) -> dict[str, Any]:
    return {
        "steps of an epoch": account.steps_per_epoch,
        _SAMPLES: account.samples_per_step,
        **account.facts,
    }


def _fact(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return f"{int(value):,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _seconds(parts: Mapping[str, float], part: str) -> float:
    return parts.get(part, 0.0)
