"""Gene names that a spreadsheet has turned into dates, numbers, truth values or errors.

Excel writes SEPT7 as ``7-Sep``, and ``9/7/2024`` or a serial number in other formats, and a
RIKEN identifier as ``2.31E+13``. The original cannot be restored with certainty, so such names are
reported with the gene that they probably were, and never repaired or taken for genes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from datetime import date, timedelta
from typing import NamedTuple

from deltacell.cell.genes import Genes
from deltacell.storage.tables import is_number

_MOST_NAMED = 10  # names in a note
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH = f"(?P<month>{'|'.join(_MONTHS)})"
_DATES = tuple(
    re.compile(pattern)
    for pattern in (
        # Lower case is left alone: sep-1 is a gene of C. elegans.
        rf"(?P<day>\d{{1,2}})[-/. ]{_MONTH}[a-z]*(?:[-/. ]\d{{2,4}})?",
        rf"{_MONTH}[a-z]*[-/. ](?P<day>\d{{2}})",
        r"(?P<first>\d{1,2})[-/.](?P<second>\d{1,2})[-/.](?:\d{2}|\d{4})",
        r"\d{4}[-/](?P<number>\d{2})[-/](?P<day>\d{2})(?:[ T]00:00:00(?:\.0+)?)?",
    )
)
_TRUTH_OR_ERROR = re.compile(r"TRUE|FALSE|True|False|#[A-Z0/]{2,}[!?]|#{3,}")
# Families of genes whose names begin with a month, by its number: the common name, if the family is
# well known, and names that count only if the cell has such a gene.
_KNOWN_FAMILIES = {3: "MARCH", 9: "SEPT", 10: "OCT", 12: "DEC"}
_OTHER_NAMES = {
    2: ("FEB",),
    3: ("MARCHF", "MARC", "MAR"),
    4: ("APR",),
    9: ("SEPTIN", "SEP"),
    11: ("NOV",),
    12: ("DELEC",),
}
_DAY_ZERO = date(1899, 12, 30)  # of Excel's serial numbers of days
_SERIAL_NUMBERS = range(30_000, 60_000)  # 1982 to 2064


def damaged_names(counts: Mapping[str, int]) -> Counter[str]:
    """Return the damaged names among those of one table, which come with their numbers.

    A number is a damaged name only among other names: a column of numbers has identifiers.
    """
    n_numbers = sum(n for name, n in counts.items() if is_number(name))
    are_names = 2 * n_numbers < sum(counts.values())
    damaged = {name: n for name, n in counts.items() if _is_damaged(name, or_number=are_names)}
    return Counter(damaged)


def note_on_damage(damaged: Counter[str], genes: Genes | None = None) -> dict[str, str]:
    """Return a note that counts damaged names and names them; empty if there are none."""
    if not damaged:
        return {}
    named = []
    most_frequent = sorted(damaged, key=lambda name: (-damaged[name], name))
    for name in most_frequent[:_MOST_NAMED]:
        likely = " or ".join(likely_genes(name, genes))
        named.append(f"{name} (probably {likely})" if likely else name)
    n_more = len(damaged) - len(named)
    more = f" and {n_more:,} more" if n_more else ""
    return {"spreadsheet_damage": f"{damaged.total():,}: {', '.join(named)}{more}"}


def likely_genes(name: str, genes: Genes | None = None) -> list[str]:
    """Return the genes that a date probably was; those of the cell, if it has any."""
    candidates = []
    for date_read in _possible_dates(name):
        family = _KNOWN_FAMILIES.get(date_read.month)
        common = [] if family is None else [f"{family}{date_read.day}"]
        others = [f"{other}{date_read.day}" for other in _OTHER_NAMES.get(date_read.month, ())]
        of_cell = [n for n in (*common, *others) if genes is not None and genes.is_known(n)]
        candidates += of_cell[:1] or common
    return candidates


def _is_damaged(name: str, *, or_number: bool) -> bool:
    """Whether a name is a date, a truth value or an error, or a number if that counts."""
    if _TRUTH_OR_ERROR.fullmatch(name) or any(known.fullmatch(name) for known in _DATES):
        return True
    return or_number and is_number(name)


class _MonthAndDay(NamedTuple):
    month: int
    day: int


def _possible_dates(name: str) -> list[_MonthAndDay]:
    """Return what a date may mean; the order of day and month differs between countries."""
    if name.isdecimal() and len(name) == 5 and int(name) in _SERIAL_NUMBERS:
        day = _DAY_ZERO + timedelta(days=int(name))
        return [_MonthAndDay(day.month, day.day)]
    for pattern in _DATES:
        match = pattern.fullmatch(name)
        if match is None:
            continue
        parts = match.groupdict()
        if "first" in parts:
            first = int(parts["first"])
            second = int(parts["second"])
            month_first = _MonthAndDay(first, second)
            day_first = _MonthAndDay(second, first)
            return [month_first] if first == second else [month_first, day_first]
        month = int(parts["number"]) if "number" in parts else _MONTHS.index(parts["month"]) + 1
        return [_MonthAndDay(month, int(parts["day"]))]
    return []
