"""What may be asked for: genes by any name, files of gene sets, and what is kept."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deltacell.arrays import Ints
from deltacell.cell import Genes
from deltacell.errors import GeneNameError, InputError
from deltacell.predict.ranking import DAMAGE, HIGHEST, LOWEST, is_ranking, sealed_rows
from deltacell.predict.status import STATUSES, UNTESTED
from deltacell.table import open_text


class GeneNames:
    """The names that may be typed.

    Parameters
    ----------
    genes
        Of the cell that the runs were trained on.
    whole
        Those of the cell before any was left out, where some were.
    """

    def __init__(self, genes: Genes, whole: Genes | None = None) -> None:
        self.genes = genes
        self._whole = whole

    def index(
        self, name: str, where: str | os.PathLike[str] | None = None, line: int | None = None
    ) -> int:
        """Return the index of a gene, or raise an error that says which name is near.

        Parameters
        ----------
        name
            Systematic, standard or an alias.
        where, line
            Where it stands, if in a file.
        """
        try:
            return self.genes.index(name)
        except GeneNameError as error:
            what, fix = error.what, error.fix
            if self.genes.resolve([name]).index[0] == -1:
                what, fix = self._unknown(name)
            raise GeneNameError(what, where=where, line=line, fix=fix) from None

    def indices(self, names: Sequence[str]) -> Ints:
        """Return the indices of several genes, each given once."""
        found: list[int] = []
        for name in names:
            gene = self.index(name)
            if gene in found:
                raise GeneNameError(f"the gene {self.genes.label(gene)} was given twice")
            found.append(gene)
        return np.array(found, dtype=np.int64)

    def _unknown(self, name: str) -> tuple[str, str]:
        """Return what is wrong with a name and what to do."""
        if self._whole is not None and self._whole.resolve([name]).found[0]:
            label = self._whole.label(self._whole.index(name))
            return (
                f"the gene {label} is not among the {len(self.genes):,} that the run was trained "
                "on",
                "Train with data.screen_genes_only=false to have all genes of the cell.",
            )
        near = self._near(name)
        meant = f"Did you mean {' or '.join(near)}? " if near else ""
        return (
            f"no gene is called '{name}'",
            f"{meant}Give systematic names, standard names or aliases.",
        )

    def _near(self, name: str) -> list[str]:
        known: dict[str, str] = {}
        for i in range(len(self.genes)):
            for one in (*self.genes.aliases[i], self.genes.standard[i], self.genes.systematic[i]):
                if one:
                    known[one.upper()] = one
        close = difflib.get_close_matches(name.strip().upper(), known, n=3, cutoff=0.75)
        return [known[one] for one in close]


def gene_texts(genes: Genes) -> list[str]:
    """Return the name that people use of each gene: the standard one where it has one."""
    return [
        standard or systematic
        for standard, systematic in zip(genes.standard, genes.systematic, strict=True)
    ]


_PARQUET = b"PAR1"
_HEADER = re.compile(r"(genes?|names?|orf|systematic|query|array)([ _]?(name|id|\d+|[a-d]))?", re.I)


def read_sets(path: Path, names: GeneNames) -> list[Ints]:
    """Return the sets of a file, of each size an array [m, size] of ascending genes.

    A text has one set a line: names of any kind with tabs, commas or spaces between. A first line
    that names the columns, blank lines and what comes after a ``#`` are passed over. A Parquet
    file has its sets in the column ``genes``. A set that is there twice counts once.

    Parameters
    ----------
    path
        The file.
    names
        Of the genes.
    """
    by_size: dict[int, list[list[int]]] = {}
    for line, words in _rows(path):
        if not words:
            raise InputError("a set of the file has no gene", where=path, line=line)
        genes = _looked_up(words, names, path, line)
        if len(genes) != len(set(genes)):
            twice = next(gene for gene in genes if genes.count(gene) > 1)
            raise InputError(
                f"the set names the gene {names.genes.label(twice)} twice", where=path, line=line
            )
        by_size.setdefault(len(genes), []).append(sorted(genes))
    if not by_size:
        raise InputError(
            "there is no gene set in the file",
            where=path,
            fix="Write one set a line, such as: HO STE2 MATALPHA1",
        )
    return [np.unique(np.array(sets, dtype=np.int64), axis=0) for sets in by_size.values()]


def read_genes(path: Path, names: GeneNames) -> Ints:
    """Return the genes of a file, ascending: all names that stand in it, each gene once.

    Parameters
    ----------
    path
        A file as `read_sets` takes it.
    names
        Of the genes.
    """
    found: set[int] = set()
    for line, words in _rows(path):
        found.update(_looked_up(words, names, path, line))
    if not found:
        raise InputError("there is no gene in the file", where=path, fix="Write one gene a line.")
    return np.array(sorted(found), dtype=np.int64)


def sets_checksum(by_size: list[Ints]) -> str:
    """Return a checksum of gene sets, whatever file they stood in."""
    digest = hashlib.sha256()
    for sets in sorted(by_size, key=lambda s: s.shape[1]):
        digest.update(f"{sets.shape}".encode() + np.ascontiguousarray(sets).tobytes())
    return digest.hexdigest()


def _rows(path: Path) -> Iterator[tuple[int | None, list[str]]]:
    """Give the names of each line, with its number."""
    if not path.is_file():
        raise InputError("there is no such file", where=path)
    with path.open("rb") as file:
        if file.read(4) == _PARQUET:
            yield from _parquet_rows(path)
            return
    try:
        text = open_text(path).data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"this is not text in UTF-8 ({error.reason})", where=path) from error
    if "\0" in text:
        raise InputError("this is no text: it holds zero bytes", where=path)
    first = True
    for number, line in enumerate(text.splitlines(), 1):
        words = re.split(r"[\s,;]+", line.partition("#")[0].strip().strip(",;"))
        words = [word.strip("\"'") for word in words]
        if not any(words):
            continue
        if first and all(_HEADER.fullmatch(word) for word in words):
            first = False
            continue
        first = False
        yield number, [word for word in words if word]


def _parquet_rows(path: Path) -> Iterator[tuple[None, list[str]]]:
    try:
        schema = pq.read_schema(path)
        if "genes" not in schema.names:
            raise InputError(
                f"the Parquet file has no column 'genes'; it has {', '.join(schema.names)}",
                where=path,
            )
        if is_ranking(schema):
            column = pa.concat_tables(sealed_rows(path))["genes"].to_pylist()
        else:
            column = pq.read_table(path, columns=["genes"], page_checksum_verification=True)[
                "genes"
            ].to_pylist()
    except DAMAGE as error:
        raise InputError(f"this Parquet file cannot be read ({error})", where=path) from error
    for genes in column:
        if not isinstance(genes, list) or not all(isinstance(gene, str) for gene in genes):
            raise InputError(
                "the column 'genes' must hold lists of gene names, as `deltacell predict` writes",
                where=path,
            )
        yield None, genes


def _looked_up(words: list[str], names: GeneNames, path: Path, line: int | None) -> list[int]:
    try:
        return [names.index(word, path, line) for word in words]
    except GeneNameError as error:
        if line == 1 and not any(names.genes.resolve(words).found):
            raise GeneNameError(
                error.what,
                where=path,
                line=line,
                fix=f"{error.fix} A line with the names of columns begins with #.",
            ) from None
        raise


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
        if self.above is not None and self.below is not None and self.above <= self.below:
            raise InputError(
                f"--above {self.above:g} and --below {self.below:g} overlap, and no set may be in "
                "both ends",
                fix="Give a larger --above than --below.",
            )
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
