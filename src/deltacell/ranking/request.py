"""What to rank: the options of a ranking with their defaults."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deltacell.base.errors import InputError, did_you_mean
from deltacell.base.files import JsonObject
from deltacell.ranking.filter import STATUSES, UNTESTED
from deltacell.ranking.given_sets import words_of_line
from deltacell.ranking.ranking_file import HIGHEST, LOWEST

PAIRS = "pairs"
TRIPLES = "triples"
WITH = "with"
FILE = "file"
TOP = 1_000  # sets kept at each end by default
DISTANCE = 200_000  # base pairs; a cross seldom combines deletions that are closer


@dataclass(frozen=True)
class Request:
    """The options of `deltacell predict`, with their defaults resolved."""

    sets: str  # pairs, triples, with (sets that contain the given genes) or file
    given: tuple[str, ...] = ()
    file: Path | None = None
    size: int | None = None
    genes: str | Path = "screen"
    top: int | None = None  # stays None if all sets of an end are kept
    above: float | None = None
    below: float | None = None
    status: tuple[str, ...] | None = None
    linked: bool = False
    distance: int = DISTANCE

    def __post_init__(self) -> None:
        self._check_sets()
        self._check_rows()
        is_file = self.sets == FILE
        has_limit = self.above is not None or self.below is not None
        status = self.status or (STATUSES if is_file else (UNTESTED,))
        needs_top = self.top is None and not has_limit and not is_file
        defaults = {
            "size": self._expected_size(),
            "top": TOP if needs_top else self.top,
            "linked": self.linked or is_file,
            "status": tuple(name for name in STATUSES if name in status),
        }
        for name, value in defaults.items():
            object.__setattr__(self, name, value)

    def _expected_size(self) -> int | None:
        """Return the number of genes per set; None for a file, whose sets may differ."""
        sizes = {PAIRS: 2, TRIPLES: 3, FILE: None}
        return sizes.get(self.sets, self.size or len(self.given) + 1)

    def _check_sets(self) -> None:
        """Raise if the sets to rank are not clear."""
        if self.sets == WITH and not self.given:
            message = "--sets with needs a gene, such as --sets with HO"
            raise InputError(message, code="no-gene")
        size = self._expected_size()
        is_other_size = self.size is not None and self.size != size
        if is_other_size or (size is not None and size <= len(self.given)):
            message = "--size can only be used with --sets 'with GENE...', and must be larger than "
            raise InputError(f"{message}the number of these genes", code="invalid-size")
        if self.sets == FILE and self.genes != "screen":
            message = "--genes cannot be used with a file of sets"
            raise InputError(message, code="genes-of-a-file")

    def _check_rows(self) -> None:
        """Raise if it is not clear which sets to keep."""
        if self.distance < 0 or (self.top is not None and self.top <= 0):
            message = "--top must be 1 or more, and --distance 0 or more"
            raise InputError(message, code="out-of-range")
        limits = [limit for limit in (self.above, self.below) if limit is not None]
        # Scores are in single precision; NaN is out of its range, too.
        largest = float(np.finfo(np.float32).max)
        are_finite = all(abs(limit) <= largest for limit in limits)
        are_apart = len(limits) < 2 or limits[0] > limits[1]
        if not (are_finite and are_apart):
            message = "--above must be finite and larger than --below"
            raise InputError(message, code="invalid-limit")
        is_known = self.status is None or (self.status and set(self.status) <= set(STATUSES))
        if not is_known:
            message = f"--status must be some of {', '.join(STATUSES)}, or any"
            raise InputError(message, code="unknown-status")

    @classmethod
    def of_words(
        cls,
        sets: str,
        *,
        genes: str = "screen",
        status: str | None = None,
        **options: Any,
    ) -> Request:
        """Return the request of a command line; ``options`` are further fields by their names."""
        words = words_of_line(sets)
        if words[:1] == [WITH]:
            options |= {"sets": WITH, "given": tuple(words[1:])}
        elif sets in (PAIRS, TRIPLES):
            options["sets"] = sets
        elif Path(sets).is_file():
            options |= {"sets": FILE, "file": Path(sets)}
        else:
            meant = did_you_mean(sets, (PAIRS, TRIPLES, WITH))
            message = f"--sets is '{sets}'{meant}; expected pairs, triples, with GENE..., or a file"
            raise InputError(message, code="unknown-sets")
        if status is not None:
            statuses = [word.strip() for word in status.split(",")]
            named = tuple(word for word in statuses if word)
            options["status"] = STATUSES if "any" in named else named
        return cls(genes=genes if genes in ("screen", "all") else Path(genes), **options)

    @property
    def ends(self) -> tuple[str | None, ...]:
        """The ends to keep; None is the list of all sets of a file."""
        if self.above is None and self.below is None:
            return (None,) if self.sets == FILE and self.top is None else (LOWEST, HIGHEST)
        limits = {LOWEST: self.below, HIGHEST: self.above}
        return tuple(end for end, limit in limits.items() if limit is not None)

    def limit(self, end: str | None) -> float | None:
        """Return the score that sets must reach at an end, rounded to single precision."""
        limit = self.above if end == HIGHEST else self.below
        return None if limit is None else float(np.float32(limit))

    def to_json(self) -> JsonObject:
        """Return the options as JSON has them: tuples are lists, a path is its name."""
        text = json.dumps(asdict(self), default=lambda path: path.name)
        options: dict[str, Any] = json.loads(text)
        return options
