"""What a ranking is asked for."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deltacell.errors import InputError
from deltacell.predict.ranking_file import HIGHEST, LOWEST
from deltacell.predict.status import STATUSES, UNTESTED

PAIRS, TRIPLES, WITH, FILE = "pairs", "triples", "with", "file"
TOP = 1_000
"""Sets of each end where nothing else is asked for."""
DISTANCE = 200_000
"""Base pairs; a cross seldom brings deletions together that are nearer than this."""


@dataclass(frozen=True)
class Request:
    """Which sets are ranked, and what of them is kept.

    Parameters
    ----------
    sets
        ``pairs``, ``triples``, ``with`` (sets that have some given genes) or ``file``.
    given
        With ``with``: names of the genes.
    file
        With ``file``: where the sets stand.
    size
        With ``with``: genes of a set; one more than are given where not said.
    genes
        What sets are made of: the genes of the ``screen``, ``all`` of the cell, or a file.
    top
        Sets to keep at each end; 1,000 where nothing else is asked for.
    above, below
        Keep those with this score or more, or this score or less; all of them where ``top`` is
        not given.
    status
        Of the sets to keep; those that are untested, and of a file any, where not said.
    linked
        Whether sets of linked genes are kept too.
    cautious
        Whether sets are ranked by the less extreme end of their spread over runs.
    distance
        Genes on one chromosome with fewer base pairs between them are linked.
    """

    sets: str
    given: tuple[str, ...] = ()
    file: Path | None = None
    size: int | None = None
    genes: str | Path = "screen"
    top: int | None = None
    above: float | None = None
    below: float | None = None
    status: tuple[str, ...] | None = None
    linked: bool = False
    cautious: bool = False
    distance: int = DISTANCE

    def __post_init__(self) -> None:
        if self.sets == WITH and not self.given:
            raise InputError(
                "--sets with names no gene", fix="Write the genes behind it: --sets with HO STE2"
            )
        if self.sets == WITH and self.n_genes <= len(self.given):
            raise InputError(
                f"sets of {self.n_genes} genes have no place for another one beside the "
                f"{len(self.given)} given",
                fix=f"Set --size {len(self.given) + 1} or more.",
            )
        if self.sets != WITH and self.size is not None:
            raise InputError("--size is for --sets with", fix="Give --sets pairs, or triples.")
        if self.top is not None and self.top < 1:
            raise InputError(f"--top is {self.top}; expected 1 or more")
        if self.distance < 0:
            raise InputError(f"--distance is {self.distance}; expected base pairs, 0 or more")
        for name, value in (("--above", self.above), ("--below", self.below)):
            # Scores are in single precision; no number is not within it either.
            if value is not None and not abs(value) <= float(np.finfo(np.float32).max):
                raise InputError(f"{name} is {value}; expected a number that a score can be")
        if self.sets == FILE and self.genes != "screen":
            raise InputError(
                "--genes says what sets are made of, and those of a file are given",
                fix="Leave --genes out, or give --sets pairs, triples or with.",
            )
        if self.status is not None and not self.status:
            raise InputError(f"--status names none; there are {', '.join(STATUSES)}, any")
        unknown = [one for one in self.status or () if one not in STATUSES]
        if unknown:
            raise InputError(
                f"there is no status '{unknown[0]}'; there are {', '.join(STATUSES)}, any"
            )

    @property
    def n_genes(self) -> int:
        """Genes of a set, where all are of one size."""
        if self.sets == WITH:
            return len(self.given) + 1 if self.size is None else self.size
        return {PAIRS: 2, TRIPLES: 3}[self.sets]

    @property
    def statuses(self) -> tuple[str, ...]:
        """The statuses of the sets that are kept."""
        if self.status is not None:
            return tuple(one for one in STATUSES if one in self.status)
        return STATUSES if self.sets == FILE else (UNTESTED,)

    @property
    def keeps_linked(self) -> bool:
        """Whether sets of linked genes are kept: where asked for, and of a file."""
        return self.linked or self.sets == FILE

    @property
    def ends(self) -> tuple[str | None, ...]:
        """The ends that are kept; None stands for all sets of a file, in one list."""
        if self.above is None and self.below is None:
            return (None,) if self.sets == FILE and self.top is None else (LOWEST, HIGHEST)
        wanted = ((LOWEST, self.below), (HIGHEST, self.above))
        return tuple(end for end, limit in wanted if limit is not None)

    @property
    def most(self) -> int | None:
        """Sets of each end, or None for all."""
        if self.top is not None:
            return self.top
        return TOP if self.ends == (LOWEST, HIGHEST) and self.above is None else None

    def limit(self, end: str | None) -> float | None:
        """Return the score that sets must reach at an end, if any, in the precision of scores."""
        limit = self.above if end == HIGHEST else self.below
        return None if limit is None else float(np.float32(limit))

    def to_json(self) -> dict[str, Any]:
        """Return what decides which sets are kept, without what depends on the machine."""
        return {
            "sets": self.sets,
            "given": list(self.given),
            "file": None if self.file is None else self.file.name,
            "size": None if self.sets == FILE else self.n_genes,
            "genes": self.genes if isinstance(self.genes, str) else self.genes.name,
            "top": self.most,
            "above": self.above,
            "below": self.below,
            "status": list(self.statuses),
            "linked": self.keeps_linked,
            "cautious": self.cautious,
            "distance": self.distance,
        }


def read_sets_option(words: str, more: Sequence[str]) -> dict[str, Any]:
    """Return what ``--sets`` says: the fields ``sets``, ``given`` and ``file`` of a request.

    Parameters
    ----------
    words
        What stands behind it.
    more
        Words of the command that are no runs: further genes of ``with``.
    """
    first, *rest = words.replace(",", " ").split() or [""]
    if first == WITH:
        further = [gene for word in more for gene in word.replace(",", " ").split()]
        return {"sets": WITH, "given": (*rest, *further)}
    if more:
        raise InputError(
            f"'{more[0]}' is no directory",
            fix="Give directories that `deltacell train` has made; genes stand behind --sets with.",
        )
    if words in (PAIRS, TRIPLES):
        return {"sets": words}
    if Path(words).is_file():
        return {"sets": FILE, "file": Path(words)}
    near = difflib.get_close_matches(words, (PAIRS, TRIPLES, WITH), n=1)
    raise InputError(
        f"--sets is '{words}', and there is no file of that name; expected pairs, triples, "
        "with GENE..., or a file of sets",
        fix=f"Did you mean --sets {near[0]}?" if near else "Such as: --sets pairs",
    )


def read_status_option(words: str) -> tuple[str, ...]:
    """Return what ``--status`` says: statuses with commas between, or ``any``.

    Parameters
    ----------
    words
        What stands behind it.
    """
    given = tuple(word.strip() for word in words.split(",") if word.strip())
    return STATUSES if "any" in given else given


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return in what two requests differ, in words, the first few.

    Parameters
    ----------
    was, now
        As JSON.
    """
    found = []
    for name in dict.fromkeys([*was, *now]):
        before, after = was.get(name), now.get(name)
        if before != after:
            found.append(f"{name} was {_shown(before)} and is {_shown(after)}")
    return found


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or "none"
    if isinstance(value, Mapping):
        return " ".join(_shown(one) for one in value.values())
    if isinstance(value, str) and len(value) == 64:
        return value[:12]
    return "not given" if value is None else str(value)
