"""Conditions on an explanation, such as ``slower > 10%``, for checks in continuous integration."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltacell.base.errors import InputError, did_you_mean
from deltacell.base.text import share_text
from deltacell.profile.explain.account import FIT
from deltacell.profile.explain.causes import CauseKind
from deltacell.profile.explain.noise import Difference
from deltacell.profile.explain.subject import CATEGORIES

if TYPE_CHECKING:
    from deltacell.profile.explain.explanation import Explanation

# How much slower B is than A; plain ``slower`` is per sample if samples are known.
SLOWER = ("slower", "slower per sample", "slower per step", "slower per epoch")

_SIGNS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_FORM = re.compile(r"([a-z][a-z _]{0,60}?) ?(>=|<=|>|<) ?([+-]?\d{1,12}(?:\.\d{1,12})?) ?(%|x)?")


@dataclass(frozen=True)
class Condition:
    """``what > limit`` or one of ``>= < <=``, with the limit as a share: 10 % is 0.1.

    ``what`` is one of `SLOWER`, or a category: its share of a step of the last account.
    """

    text: str
    what: str
    sign: str
    limit: float

    def check(self, explanation: Explanation) -> tuple[bool, str]:
        """Return whether the condition holds beyond noise, and a sentence."""
        noise = None
        if self.what in SLOWER:
            value = self._slower(explanation)
            noise = None if self.what == "slower per epoch" else explanation.noise
        else:
            account = explanation.accounts[-1]
            if account.source == FIT:
                what = f"'{self.text}' is about steps, and a fit in one call has none"
                raise InputError(what, code="condition-unknown")
            value = account.parts.get(self.what, 0.0) / (account.step_s or 1.0)
        asks_for_more = self.sign in (">", ">=")
        is_noise = noise is not None and not noise.is_beyond and asks_for_more
        holds = not is_noise and bool(_SIGNS[self.sign](value, self.limit))
        uniform = (CauseKind.machine, CauseKind.uniform)
        is_uniform = any(cause.kind in uniform for cause in explanation.causes[:1])
        return holds, self._sentence(value, noise, is_uniform=is_uniform)

    def _slower(self, explanation: Explanation) -> float:
        """Return how much slower B is than A, as a share."""
        compared = explanation.comparison
        ratios: dict[str, float | None] = {}
        if compared is not None and compared.a.step_s > 0:
            ratios = {"slower per step": compared.b.step_s / compared.a.step_s}
            ratios |= {f"slower per {fall.per}": fall.ratio for fall in compared.falls}
            ratios["slower"] = compared.steps.ratio
        ratio = ratios.get(self.what)
        if ratio is None:
            what = f"'{self.text}' cannot be checked here"
            fix = "It compares two runs; traces do not record samples or epochs."
            raise InputError(what, code="condition-unknown", fix=fix)
        return ratio - 1

    def _sentence(self, value: float, noise: Difference | None, *, is_uniform: bool) -> str:
        text = f"{self.text}: it is {share_text(value)}"
        if noise is None:
            return text
        if not noise.is_beyond:
            text += ", which is not beyond noise"
        elif is_uniform:
            text += ", a uniform slowdown of every part, which may come from the machine's load"
        return (
            f"{text}; a change of {share_text(noise.detectable)} or more could have been detected"
        )


def read_condition(text: str) -> Condition:
    """Read a condition such as ``slower > 10%``, ``slower per epoch < 2x`` or ``loss > 0.2``."""
    text = " ".join(text.split())
    parts = _FORM.fullmatch(text.lower())
    if parts is None or (parts[4] == "x" and parts[1] not in SLOWER):
        fix = 'Write a quantity, a sign and a number, such as --fail-if "slower > 10%".'
        raise InputError(f"'{text}' is not a condition", code="condition-form", fix=fix)
    quantity = parts[1].replace("_", " ")
    quantities = [*SLOWER, *CATEGORIES]
    if quantity not in quantities:
        what = f"'{text}' has an unknown quantity '{quantity}'"
        what += did_you_mean(quantity, quantities)
        fix = f"Use one of: {', '.join(quantities)}."
        raise InputError(what, code="condition-about", fix=fix)
    number = float(parts[3])
    limit = {"%": number / 100, "x": number - 1}.get(parts[4], number)
    return Condition(text, quantity, parts[2], limit)
