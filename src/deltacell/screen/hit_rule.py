"""What a hit of a screen is: a low or a high score, and significant if p-values are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Self

import numpy as np
import polars as pl

from deltacell.base.arrays import AnyArray, Bools, Doubles
from deltacell.base.errors import InputError
from deltacell.base.files import JsonObject

#: The largest p-value of a hit.
LARGEST_P = 0.05
#: The share of scores at each end that are hits if nothing is known of the scale.
END_SHARE = 0.025

# Robust standard deviations. Interactions of SGA screens are differences of relative fitness: 0.04
# in the trigenic scores of Kuzmin 2018 and 2020. S-scores are in units of their noise: 0.90 in
# Collins 2007, 0.77 in Schuldiner 2005, 1.04 in Horlbeck 2018.
_SGA_SCALE = (0.0, 0.15)
_S_SCALE = (0.5, 1.6)
_OF_A_NORMAL = 1.4826  # its standard deviation by the median distance from the median


class HitOrigin(StrEnum):
    """How it is known what a hit is."""

    GIVEN = "given"
    FORMAT = "format"  # by the reader, from a published format
    SGA_SCALE = "sga_scale"  # the scores vary as those of SGA screens do
    S_SCALE = "s_scale"  # the scores vary as S-scores do
    QUANTILES = "quantiles"  # nothing is known of the scale


class LowMeaning(StrEnum):
    """What a low score means."""

    NEGATIVE = "negative"  # less fit than expected of the single mutants
    POSITIVE = "positive"  # fitter than expected
    SICK = "sick"  # a low fitness


_MEANINGS = {
    LowMeaning.NEGATIVE: "a negative interaction: the mutant is less fit than expected",
    LowMeaning.POSITIVE: "a positive interaction: the mutant is fitter than expected",
    LowMeaning.SICK: "a sick mutant",
}
_OPPOSITES = {
    LowMeaning.NEGATIVE: "a positive interaction: the mutant is fitter than expected",
    LowMeaning.POSITIVE: "a negative interaction: the mutant is less fit than expected",
    LowMeaning.SICK: "a fit mutant",
}
_ORIGINS = {
    HitOrigin.GIVEN: "as given",
    HitOrigin.FORMAT: "as its authors define it",
    HitOrigin.SGA_SCALE: "because its scores vary as those of SGA screens do",
    HitOrigin.S_SCALE: "because its scores vary as S-scores do",
    HitOrigin.QUANTILES: (
        f"which is {END_SHARE:.1%} of the scores at each end, because nothing is known of the scale"
    ),
}


@dataclass(frozen=True)
class HitRule:
    """The thresholds of a screen; None if no score of that sign is a hit."""

    low: float | None  # scores at or below it are hits
    high: float | None  # scores at or above it are hits
    largest_p: float = LARGEST_P  # of a hit, if p-values are known
    low_means: LowMeaning = LowMeaning.NEGATIVE
    origin: HitOrigin = HitOrigin.GIVEN

    def __post_init__(self) -> None:
        limits = [limit for limit in (self.low, self.high) if limit is not None]
        is_ordered = len(limits) < 2 or limits[0] < limits[1]
        if not limits or not np.isfinite(limits).all() or not is_ordered:
            what = f"hits at or below {self.low} and at or above {self.high}"
            fix = "Give a threshold for low scores, for high ones, or both, the low one smaller."
            raise InputError(what, code="invalid-hits", fix=fix)
        if not 0 < self.largest_p <= 1:
            what = f"the largest p-value of a hit is {self.largest_p}; expected more than 0, to 1"
            raise InputError(what, code="invalid-hits")

    @classmethod
    def symmetric(cls, threshold: float) -> Self:
        """Return the rule that a score at least as far from 0 as the threshold is a hit."""
        return cls(-abs(threshold), abs(threshold))

    @classmethod
    def of_values(cls, values: Mapping[str, float | str]) -> Self:
        """Return a rule from ``low``, ``high``, ``p`` and ``low_means``, as a config has them."""
        unknown = sorted(values.keys() - {"low", "high", "p", "low_means"})
        if unknown:
            what = f"unknown key {unknown[0]!r} of hits"
            raise InputError(what, code="invalid-hits", fix="Use low, high, p and low_means.")
        try:
            low, high = (float(values[key]) if key in values else None for key in ("low", "high"))
            meaning = LowMeaning(str(values.get("low_means", LowMeaning.NEGATIVE)))
            return cls(low, high, float(values.get("p", LARGEST_P)), meaning)
        except ValueError as error:
            fix = f"low, high and p are numbers; low_means is one of {', '.join(LowMeaning)}."
            raise InputError(str(error), code="invalid-hits", fix=fix) from error

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the rule that `to_json` wrote."""
        meaning = LowMeaning(values["low_means"])
        origin = HitOrigin(values["origin"])
        return cls(values["low"], values["high"], values["largest_p"], meaning, origin)

    def to_json(self) -> JsonObject:
        """Return a JSON-serialisable dict."""
        return asdict(self)

    @classmethod
    def of_scores(cls, score: AnyArray, phenotype: pl.Series, *, only_hits: bool) -> Self:
        """Return the rule of a screen that does not say what a hit is, by the scale of its scores.

        Thresholds are those of SGA screens or of S-scores if the scores vary as these do, and
        otherwise quantiles. A list of hits has no scores around 0; its scale is their median
        distance from 0.
        """
        known = score[np.isfinite(score)].astype(np.float64)
        if not len(known):
            return replace(cls.symmetric(SGA_LIMIT), origin=HitOrigin.SGA_SCALE)
        if not (phenotype == "interaction").any():
            return cls._by_quantiles(known, LowMeaning.SICK)
        center = 0.0 if only_hits else float(np.median(known))
        scale = _OF_A_NORMAL * float(np.median(np.abs(known - center)))
        if only_hits:
            scale /= 3  # hits are beyond two or three standard deviations
        is_centred = abs(center) <= scale
        if is_centred and _SGA_SCALE[0] < scale <= _SGA_SCALE[1]:
            return replace(cls.symmetric(SGA_LIMIT), origin=HitOrigin.SGA_SCALE)
        if is_centred and _S_SCALE[0] <= scale <= _S_SCALE[1]:
            return cls(*S_LIMITS, origin=HitOrigin.S_SCALE)
        return cls._by_quantiles(known, LowMeaning.NEGATIVE)

    @classmethod
    def _by_quantiles(cls, known: Doubles, meaning: LowMeaning) -> Self:
        low, high = np.quantile(known, (END_SHARE, 1 - END_SHARE)).tolist()
        if low == high:  # most scores are equal
            low, high = float(known.min()), float(known.max())
        upper = high if low < high else None
        return cls(low, upper, low_means=meaning, origin=HitOrigin.QUANTILES)

    def is_low(self, score: AnyArray, p_value: AnyArray) -> Doubles:
        """Return 1 for a low hit, 0 for any other row, NaN for one that cannot be told, [rows].

        That is a row without a score or, if any p-value is known, without one.
        """
        reaches = np.zeros(len(score), dtype=bool)
        if self.low is not None:
            # Scores are float32, in which -0.08 differs from the threshold's float64.
            reaches = score <= np.float32(self.low)
        return self._labels(reaches, score, p_value)

    def is_hit(self, score: AnyArray, p_value: AnyArray) -> Doubles:
        """Return 1 for a hit of either sign, and otherwise as `is_low` does, [rows]."""
        return self._labels(self.reaches(score), score, p_value)

    def reaches(self, score: AnyArray) -> Bools:
        """Return which scores are at or beyond a threshold, whatever their p-values, [rows]."""
        reaches = np.zeros(len(score), dtype=bool)
        if self.low is not None:
            reaches |= score <= np.float32(self.low)
        if self.high is not None:
            reaches |= score >= np.float32(self.high)
        return reaches

    def _labels(self, reaches: Bools, score: AnyArray, p_value: AnyArray) -> Doubles:
        is_usable = np.isfinite(score)
        has_p_value = np.isfinite(p_value)
        is_hit = reaches.copy()
        if has_p_value.any():
            is_usable &= has_p_value
            is_hit &= p_value <= self.largest_p
        return np.where(is_usable, is_hit, np.nan).astype(np.float64)

    @property
    def limits_text(self) -> str:
        """The thresholds in words."""
        if self.low is not None and self.high is not None:
            if self.low == -self.high:
                return f"{self.high:g} or more from 0"
            return f"{self.low:.3g} or below, or {self.high:.3g} or above"
        return f"{self.low:.3g} or below" if self.low is not None else f"{self.high:.3g} or above"

    @property
    def sentence(self) -> str:
        """What a hit is, why, and what a low score means, in words."""
        return (
            f"A hit of this screen is a score of {self.limits_text}, {_ORIGINS[self.origin]}. "
            f"A low score means {self.meaning_of_low}."
        )

    @property
    def meaning_of_low(self) -> str:
        """What a low score means, in words."""
        return _MEANINGS[self.low_means]

    @property
    def meaning_of_high(self) -> str:
        """What a high score means, in words."""
        return _OPPOSITES[self.low_means]


#: The distance from 0 of a hit in SGA screens, as Costanzo 2010 and 2016 and Kuzmin 2018 define it.
SGA_LIMIT = 0.08
#: The thresholds of S-scores, as Collins 2007 and Schuldiner 2005 define hits.
S_LIMITS = (-2.5, 2.0)
#: The hits of the published SGA screens.
SGA_HITS = replace(HitRule.symmetric(SGA_LIMIT), origin=HitOrigin.FORMAT)
