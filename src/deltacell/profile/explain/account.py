"""Accounts: where the time of a training goes, in parts that add up, and how two differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from deltacell.words import ratio_text

WITHIN = 0.01  # the share of the wall time by which parts may miss it before that is a warning
OUTSIDE = "outside the steps: "  # prefix of a part of an epoch that lies outside of its steps

SAMPLES = "samples per step"


@dataclass(frozen=True, eq=False)
class Table:
    """Numbers behind an explanation, by a unique key. Names in the frame are not escaped."""

    key: str
    title: str
    frame: pl.DataFrame

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON-serialisable dict."""
        rows = [list(row) for row in self.frame.rows()]
        return {"key": self.key, "title": self.title, "columns": self.frame.columns, "rows": rows}


@dataclass(frozen=True)
class Account:
    """Where the time of a training goes; nothing is in two parts.

    A step takes ``sum(parts)`` seconds. An epoch takes ``steps_per_epoch`` of them and
    ``sum(outside)`` seconds more. None is unknown.
    """

    name: str  # used in sentences
    source: str  # run, trace or figures
    parts: Mapping[str, float]  # seconds of a steady step by category
    samples_per_step: float | None = None  # all processes together
    steps_per_epoch: float | None = None
    outside: Mapping[str, float] = field(default_factory=dict)  # seconds per epoch by category
    measured_s: float | None = None  # a steady step by a clock
    facts: Mapping[str, Any] = field(default_factory=dict)  # to be equal for a fair comparison
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
        """Seconds per sample in the steps."""
        return self.step_s / self.samples_per_step if self.samples_per_step else None

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
    def epoch_parts(self) -> dict[str, float]:
        """Seconds of an epoch by category; nothing where its steps are unknown."""
        if not self.steps_per_epoch:
            return {}
        within = {part: self.steps_per_epoch * seconds for part, seconds in self.parts.items()}
        return within | {f"{OUTSIDE}{part}": seconds for part, seconds in self.outside.items()}

    @property
    def residual(self) -> float:
        """The share of the measured step that is in no part, or in several."""
        return abs(self.measured_s - self.step_s) / self.measured_s if self.measured_s else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON-serialisable dict."""
        names = ("step_s", "sample_s", "epoch_s", "samples_per_step", "steps_per_epoch", "residual")
        return {
            **{"name": self.name, "source": self.source},
            **{"parts_s": dict(self.parts), "outside_s": dict(self.outside)},
            **{name: getattr(self, name) for name in names},
            **{"facts": dict(self.facts), "warnings": list(self.warnings)},
        }


@dataclass(frozen=True)
class Bar:
    """Seconds of one part in A and in B; 0 where one does not have it."""

    part: str
    a: float
    b: float

    @property
    def change(self) -> float:
        """Seconds from A to B; negative where B is faster in this."""
        return self.b - self.a


@dataclass(frozen=True)
class Waterfall:
    """From A to B per ``sample``, ``step`` or ``epoch``, the largest change first.

    ``a + sum of changes == b``, negative ones included.
    """

    per: str
    bars: tuple[Bar, ...]

    @classmethod
    def between(
        cls,
        per: str,
        a: Mapping[str, float],
        b: Mapping[str, float],
        scale: tuple[float, float] = (1.0, 1.0),
    ) -> Waterfall:
        """Return the waterfall between two sets of parts, each multiplied by its scale."""
        bars = (
            Bar(part, scale[0] * a.get(part, 0.0), scale[1] * b.get(part, 0.0))
            for part in dict.fromkeys([*a, *b])
        )
        shown = [bar for bar in bars if bar.a or bar.b]
        return cls(per, tuple(sorted(shown, key=lambda bar: (-abs(bar.change), bar.part))))

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
        """The time of B by that of A; None where A takes no time."""
        return self.b / self.a if self.a > 0 else None

    def share(self, bar: Bar) -> float | None:
        """Return the share of the gap of a bar: above 1 or negative where bars cancel."""
        return bar.change / self.gap if self.gap else None

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON-serialisable dict."""
        bars = self.frame().rename({"share of the gap": "share_of_gap"}).to_dicts()[:-1]
        whole = {"a_s": self.a, "b_s": self.b, "gap_s": self.gap, "ratio": self.ratio}
        return {"per": self.per, **whole, "bars": bars}

    def frame(self) -> pl.DataFrame:
        """Return the bars and their sum as a table."""
        rows = [(x.part, x.a, x.b, x.change, self.share(x)) for x in self.bars]
        rows.append(("all", self.a, self.b, self.gap, 1.0 if self.gap else None))
        numbers = dict.fromkeys(("a_s", "b_s", "change_s", "share of the gap"), pl.Float64())
        return pl.DataFrame(rows, schema={"part": pl.String(), **numbers}, orient="row")


@dataclass(frozen=True)
class EpochRatio:
    """Why an epoch of B takes longer than one of A: ``epoch = steps * step * outside``, B by A.

    ``outside`` is the time of an epoch by that of its steps: below 1 where A spends the larger
    share outside of its steps. ``outside_a`` and ``outside_b`` are these shares.
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
        return self.of_steps * self.outside

    @property
    def line(self) -> str:
        """The identity with its numbers."""
        return (
            f"epoch {ratio_text(self.epoch)} = steps {self.steps:.3g}x "
            f"* time per step {self.step:.3g}x * outside the steps {self.outside:.3g}x"
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON-serialisable dict."""
        factors = {"steps": self.steps, "time_per_step": self.step, "outside": self.outside}
        shares = {"outside_share_a": self.outside_a, "outside_share_b": self.outside_b}
        said = {"of_steps": self.of_steps, "line": self.line}
        return {"epoch": self.epoch, **factors, **shares, **said}


@dataclass(frozen=True)
class Comparison:
    """Two accounts, and what changes from A to B.

    ``steps`` is per sample where both know their samples, per step otherwise; ``epochs`` and
    ``epoch_ratio`` are None where either knows no epoch; ``unequal`` names the facts that differ.
    """

    a: Account
    b: Account
    steps: Waterfall
    epochs: Waterfall | None
    epoch_ratio: EpochRatio | None
    unequal: tuple[str, ...]

    @property
    def falls(self) -> list[Waterfall]:
        """The waterfalls that are known."""
        return [fall for fall in (self.steps, self.epochs) if fall is not None]

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON-serialisable dict."""
        return {
            "waterfalls": [fall.to_json() for fall in self.falls],
            "epoch_ratio": None if self.epoch_ratio is None else self.epoch_ratio.to_json(),
            "unequal": list(self.unequal),
        }


def compare(a: Account, b: Account) -> Comparison:
    """Return what changes from A to B."""
    if a.samples_per_step and b.samples_per_step:
        scale = (1 / a.samples_per_step, 1 / b.samples_per_step)
        steps = Waterfall.between("sample", a.parts, b.parts, scale)
    else:
        steps = Waterfall.between("step", a.parts, b.parts)
    epochs, ratio = None, None
    if a.steps_per_epoch and b.steps_per_epoch:
        epochs = Waterfall.between("epoch", a.epoch_parts, b.epoch_parts)
        within_a, within_b = a.step_s * a.steps_per_epoch, b.step_s * b.steps_per_epoch
        whole_a, whole_b = within_a + a.outside_s, within_b + b.outside_s
        if min(within_a, within_b, whole_a, whole_b) > 0:
            ratio = EpochRatio(
                b.steps_per_epoch / a.steps_per_epoch,
                b.step_s / a.step_s,
                (whole_b / within_b) / (whole_a / within_a),
                a.outside_s / whole_a,
                b.outside_s / whole_b,
            )
    return Comparison(a, b, steps, epochs, ratio, _unequal(a, b))


def _unequal(a: Account, b: Account) -> tuple[str, ...]:
    facts_a, facts_b = (
        {"steps per epoch": one.steps_per_epoch, SAMPLES: one.samples_per_step, **one.facts}
        for one in (a, b)
    )
    found = []
    for name in {**facts_a, **facts_b}:
        in_a, in_b = facts_a.get(name), facts_b.get(name)
        # The last batch of an epoch is short, so the mean depends on which steps were counted.
        near = name == SAMPLES and in_a and in_b and abs(in_a - in_b) <= 0.05 * max(in_a, in_b)
        if in_a == in_b or near:
            continue
        if in_a is None or in_b is None:
            only, value = (a, in_a) if in_b is None else (b, in_b)
            found.append(f"{name}: known for {only.name} only ({_fact(value)})")
        else:
            found.append(f"{name}: {_fact(in_a)} against {_fact(in_b)}")
    return tuple(found)


def _fact(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return f"{int(value):,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
