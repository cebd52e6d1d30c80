"""An account: where the time of one training goes, in parts that add up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
