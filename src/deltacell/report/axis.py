"""Axes of small drawings: where a value is drawn, and which values are written beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """A range of values on a stretch of a drawing.

    Parameters
    ----------
    low, high
        The values at its ends.
    begin, end
        Where in the drawing these are.
    """

    low: float
    high: float
    begin: float
    end: float

    @classmethod
    def over(cls, values: Iterable[float], begin: float, end: float) -> Axis:
        """Return an axis that holds all values, with a little room on both sides."""
        held = list(values)
        low, high = min(held, default=0.0), max(held, default=1.0)
        room = 0.04 * (high - low) or 0.1 * abs(high) or 0.5
        return cls(low - room, high + room, begin, end)

    def at(self, value: float) -> float:
        """Return where a value is drawn, to a tenth."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.begin + share * (self.end - self.begin), 1)

    def ticks(self, about: int = 5) -> list[tuple[float, str]]:
        """Return where round values are, and how they are written.

        Parameters
        ----------
        about
            How many are wanted.
        """
        wanted = (self.high - self.low) / about
        power = 10.0 ** math.floor(math.log10(wanted))
        step = next(power * x for x in (1, 2, 5, 10) if power * x >= 0.999 * wanted)
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [
            (self.at(i * step), f"{i * step + 0.0:,.{decimals}f}".replace("-", "−"))
            for i in range(first, last + 1)
        ]
