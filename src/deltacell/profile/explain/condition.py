"""Conditions under which a check fails, such as ``slower > 10%``: a small grammar."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from deltacell.errors import InputError
from deltacell.profile.explain.explanation import Explanation
from deltacell.profile.explain.run_account import CATEGORIES
from deltacell.profile.explain.words import share_text

SLOWER = ("slower", "slower per sample", "slower per step", "slower per epoch")
"""How much slower B is than A; plain ``slower`` is per sample where samples are known."""


@dataclass(frozen=True)
class Condition:
    """``what > limit`` or one of ``>= < <=``.

    Parameters
    ----------
    text
        As it was given.
    what
        One of `SLOWER`, or a category: its share of a step of the last one given.
    sign
        Of the comparison.
    limit
        As a share: 10 % is 0.1.
    """

    text: str
    what: str
    sign: str
    limit: float

    def value(self, explanation: Explanation) -> float:
        """Return what an explanation has for it, as a share.

        Raises
        ------
        InputError
            Where the explanation does not know it.
        """
        if self.what not in SLOWER:
            account = explanation.accounts[-1]
            return account.parts.get(self.what, 0.0) / account.step_s if account.step_s else 0.0
        compared = explanation.comparison
        if compared is None:
            raise InputError(
                f"'{self.text}' compares two, and one was given",
                fix="Give A and B, or a condition on a category, such as 'data loading > 20%'.",
            )
        per = self.what.removeprefix("slower").removeprefix(" per ")
        if per == "step":
            ratio = compared.b.step_s / compared.a.step_s if compared.a.step_s > 0 else None
        elif per == "epoch":
            ratio = None if compared.epochs is None else compared.epochs.ratio
        elif per == "sample" and compared.steps.per != "sample":
            ratio = None
        else:
            ratio = compared.steps.ratio
        if ratio is None:
            raise InputError(
                f"'{self.text}' cannot be told: the {per or 'time'} of one of the two is not known",
                fix="Traces do not say their samples or epochs: use 'slower per step'.",
            )
        return ratio - 1

    def holds(self, explanation: Explanation) -> bool:
        """Return whether it is so, and a check should fail.

        That B is slower holds only where it is more than noise, and where it is not every part of
        a program on the CPU alike, which is how a busy machine looks.
        """
        value = self.value(explanation)
        if self.what in SLOWER[:3] and self.sign in (">", ">=") and not _is_beyond(explanation):
            return False
        return {
            ">": value > self.limit,
            ">=": value >= self.limit,
            "<": value < self.limit,
            "<=": value <= self.limit,
        }[self.sign]

    def told(self, explanation: Explanation) -> str:
        """Return the condition with the value that an explanation has for it."""
        said = f"{self.text}: it is {share_text(self.value(explanation))}"
        noise = explanation.noise
        if self.what not in SLOWER[:3] or noise is None:
            return said
        beyond = "" if _is_beyond(explanation) else ", which is not beyond noise"
        if noise.is_beyond and beyond:
            beyond = ", but of every part alike, as on a busier machine"
        return f"{said}{beyond}; {share_text(noise.detectable)} or more could have been detected"


def _is_beyond(explanation: Explanation) -> bool:
    if explanation.noise is None:
        return True
    is_machine = bool(explanation.causes) and explanation.causes[0].kind == "machine"
    return explanation.noise.is_beyond and not is_machine


def read_condition(text: str) -> Condition:
    """Read a condition."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise InputError(
            f"'{text}' is not a condition",
            fix='Write what, a sign and a number, such as --fail-if "slower > 10%"',
        )
    what = " ".join(found["what"].lower().split()).replace("_", " ")
    known = [*SLOWER, *CATEGORIES]
    if what not in known:
        near = difflib.get_close_matches(what, known, 1, 0.6)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise InputError(
            f"'{text}' is about '{what}', which is unknown{hint}",
            fix=f"There are: {', '.join(known)}",
        )
    number, unit = float(found["number"]), found["unit"]
    if unit == "x" and what not in SLOWER:
        raise InputError(f"'{text}' gives a share in x", fix="Write it in %")
    limit = number / 100 if unit == "%" else number - 1 if unit == "x" else number
    return Condition(" ".join(text.split()), what, found["sign"], limit)


_CONDITION = re.compile(
    r"\s*(?P<what>[A-Za-z][A-Za-z _]{0,60}?)\s*(?P<sign>>=|<=|>|<)\s*"
    r"(?P<number>[+-]?[0-9]{1,12}(?:\.[0-9]{1,12})?)\s*(?P<unit>%|x)?\s*"
)
