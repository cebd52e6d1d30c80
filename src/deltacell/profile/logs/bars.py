"""Progress bars of tqdm, Lightning and rich, line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

_TIME = r"\d{1,6}:\d\d(?::\d\d)?"
_NUMBER = r"\d{1,15}(?:\.\d{1,15})?(?:e[+-]?\d{1,2})?"
# 92%|#####    | 932/1016 [00:33<00:03, 27.70it/s, v_num=0]
_TQDM = re.compile(
    rf"\d{{1,3}}%\|[^|]{{0,500}}\|\s{{0,20}}(?P<done>\d{{1,15}})/(?P<total>\d{{1,15}})\s?"
    rf"\[(?P<elapsed>{_TIME})<[^,\]]{{1,20}}"
    rf"(?:,\s{{0,20}}(?:\?|(?P<rate>{_NUMBER}))\s?(?P<unit>[^\s,\]\d]{{1,30}}))?[^\]]{{0,2000}}\]?"
)
# 932it [00:33, 27.70it/s]
_TQDM_OPEN = re.compile(
    rf"(?<![\d.])(?P<done>\d{{1,15}})(?P<counts>[a-zA-Z]{{1,20}}) \[(?P<elapsed>{_TIME}),"
    rf"\s{{0,20}}(?:\?|(?P<rate>{_NUMBER}))\s?(?P<unit>[^\s,\]\d]{{1,30}})[^\]]{{0,2000}}\]?"
)
# Epoch 0/9 ━━━━━━━━ 100/100 0:00:03 • 0:00:00 28.5it/s
_RICH = re.compile(
    rf"(?<!\d)(?P<done>\d{{1,15}})/(?P<total>\d{{1,15}})\s{{1,20}}(?P<elapsed>{_TIME})"
    rf"\s{{1,20}}\S\s{{1,20}}(?:{_TIME}|-[-:]{{1,9}})\s{{1,20}}(?P<rate>{_NUMBER})\s?(?P<unit>it/s)"
)
_FORMATS = (_TQDM, _RICH, _TQDM_OPEN)
_UNITS_OF_STEPS = {"it", "step", "steps", "batch", "batches", "ba"}

_SANITY = re.compile(r"sanity", re.IGNORECASE)
_EVALUATION = re.compile(r"\b(?:val|valid\w*|test\w*|predict\w*|eval\w*)\b", re.IGNORECASE)
_TRAINING = re.compile(r"\b(?:epochs?|train\w*)\b", re.IGNORECASE)
_EPOCH = re.compile(r"\bepochs?\W{0,3}(\d{1,9})", re.IGNORECASE)


class Role(Enum):
    """What a progress bar is of, by its description."""

    training = "training"
    sanity_check = "sanity check"
    evaluation = "evaluation"
    unknown = "unknown"


@dataclass(frozen=True)
class BarLine:
    """One state of a progress bar."""

    line: int
    name: str  # its description without numbers
    role: Role
    epoch: int | None
    done: int
    total: int | None
    elapsed_s: int  # since the bar began, rounded down
    rate: float | None  # as displayed, per second
    counts_steps: bool


def bar_lines(number: int, text: str) -> Iterator[BarLine]:
    """Yield the states of progress bars on a line; several if their line ends were lost."""
    if "[" not in text and ":" not in text:
        return
    for pattern in _FORMATS:
        end = 0
        for match in pattern.finditer(text):
            yield _bar_line(number, text[end : match.start()], match)
            end = match.end()
        if end:
            return


def _bar_line(number: int, description: str, match: re.Match[str]) -> BarLine:
    fields = match.groupdict()
    epoch = _EPOCH.search(description)
    name = " ".join(re.sub(r"[\d/]+|[^\w\s]", " ", description).split())[-80:]
    total = fields.get("total")
    rate, counted = _rate(fields["rate"], fields["unit"] or "")
    counted = fields.get("counts") or counted
    return BarLine(
        number,
        name,
        _role(description),
        int(epoch[1]) if epoch else None,
        int(fields["done"]),
        int(total) if total else None,
        _seconds(fields["elapsed"]),
        rate,
        counted in _UNITS_OF_STEPS,
    )


def _role(description: str) -> Role:
    if _SANITY.search(description):
        return Role.sanity_check
    if _EVALUATION.search(description):
        return Role.evaluation
    return Role.training if _TRAINING.search(description) else Role.unknown


def _rate(number: str | None, unit: str) -> tuple[float | None, str]:
    """Return the rate per second, and what it counts; it/s if a bar displays no rate."""
    value = float(number) if number else 0.0
    if unit.startswith("s/"):
        return (1 / value if value else None), unit.removeprefix("s/")
    return (value or None), (unit.removesuffix("/s") or "it")


def _seconds(elapsed: str) -> int:
    seconds = 0
    for part in elapsed.split(":"):
        seconds = 60 * seconds + int(part)
    return seconds
