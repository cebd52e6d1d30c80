"""What to rank: genes by any name, files of gene sets, a request, and what it means for runs."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deltacell.arrays import Bools, Ints
from deltacell.cell import Cell, Genes
from deltacell.errors import GeneNameError, InputError, did_you_mean
from deltacell.predict.gene_sets import Combinations, GeneSets, Listed, Scored
from deltacell.predict.kept import End, Kept, Work
from deltacell.predict.ranking_file import DAMAGE, HIGHEST, KEY, LOWEST, sealed_rows
from deltacell.predict.status import LINKED, STATUSES, UNTESTED, Linkage, Statuses, phenotypes_of
from deltacell.profile.record import CHECKPOINTS
from deltacell.screen import Screen
from deltacell.table import open_text
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.loaded_run import LoadedRun, are_alike, labels_of
from deltacell.train.predictor import WHOLE_BLOCK

PAIRS, TRIPLES, WITH, FILE = "pairs", "triples", "with", "file"
TOP = 1_000  # sets of each end where nothing else is asked for
DISTANCE = 200_000  # base pairs; a cross seldom combines deletions that are nearer than this
SETS_PER_BLOCK = {"dango": 64**3, "hetero_cell": 128}
"""About a second's work, or a few, by model: nothing is saved within a block."""


class GeneNames:
    """The names of a cell's genes; ``whole`` has those of the cell before any was left out."""

    def __init__(self, genes: Genes, whole: Genes | None = None) -> None:
        self.genes, self._whole = genes, whole

    @classmethod
    def of_runs(cls, runs: Sequence[LoadedRun]) -> GeneNames:
        """Return the gene names that may be given for some runs."""
        data = runs[0].data
        return cls(data.cell.genes, None if data.whole is None else data.whole.genes)

    def index(
        self, name: str, where: str | os.PathLike[str] | None = None, line: int | None = None
    ) -> int:
        """Return the index of a gene by any of its names."""
        try:
            return self.genes.index(name)
        except GeneNameError as error:
            what, code, fix = error.what, error.code, error.fix
            if self._whole is not None and self._whole.resolve([name]).found[0]:
                label = self._whole.label(self._whole.index(name))
                what = f"the run was not trained on {label}, only on {len(self.genes):,} genes"
                code = "gene-not-in-run"
                fix = "Train with data.screen_genes_only=false to have all genes of the cell."
            raise GeneNameError(what, code=code, where=where, line=line, fix=fix) from None

    def indices(
        self,
        names: Sequence[str],
        where: str | os.PathLike[str] | None = None,
        line: int | None = None,
    ) -> Ints:
        """Return the indices of several genes, each given once."""
        found = [self.index(name, where, line) for name in names]
        twice = next((gene for gene in found if found.count(gene) > 1), None)
        if twice is not None:
            what = f"the gene {self.genes.label(twice)} is given twice"
            raise GeneNameError(what, code="gene-twice", where=where, line=line)
        return np.array(found, dtype=np.int64)


def gene_texts(genes: Genes) -> list[str]:
    """Return the standard name of each gene, or the systematic one where it has none."""
    return [a or b for a, b in zip(genes.standard, genes.systematic, strict=True)]


_HEADER = re.compile(r"(genes?|names?|orf|systematic|query|array)([ _]?(name|id|\d+|[a-d]))?", re.I)


def read_sets(path: Path, names: GeneNames) -> list[Ints]:
    """Return the sets of a file, of each size an array [m, size] of ascending genes.

    A text has one set per line: names of any kind with tabs, commas or spaces between. A first line
    that names the columns, blank lines and comments after a ``#`` are skipped. A Parquet file has
    its sets in the column ``genes``. A set that occurs twice counts once.
    """
    by_size: dict[int, list[Ints]] = {}
    for line, words in _rows(path):
        genes = names.indices(words, path, line)
        by_size.setdefault(len(genes), []).append(np.sort(genes))
    if not by_size or 0 in by_size:
        raise InputError(
            "the file holds no gene set, or an empty one",
            code="no-sets",
            where=path,
            fix="Write one set per line, such as: HO STE2 MATALPHA1",
        )
    return [np.unique(np.stack(sets), axis=0) for sets in by_size.values()]


def read_genes(path: Path, names: GeneNames) -> Ints:
    """Return the genes of a file as `read_sets` takes it, ascending, each once."""
    found = {names.index(word, path, line) for line, words in _rows(path) for word in words}
    if not found:
        raise InputError(
            "the file names no gene", code="no-genes", where=path, fix="Write one gene per line."
        )
    return np.array(sorted(found), dtype=np.int64)


def sets_checksum(by_size: list[Ints]) -> str:
    """Return a checksum of gene sets, whatever file they were in."""
    digest = hashlib.sha256()
    for sets in sorted(by_size, key=lambda s: s.shape[1]):
        digest.update(f"{sets.shape}".encode() + np.ascontiguousarray(sets).tobytes())
    return digest.hexdigest()


def _rows(path: Path) -> Iterator[tuple[int | None, list[str]]]:
    """Yield the names of each line, with its number."""
    if not path.is_file():
        raise InputError("no such file", code="no-such-file", where=path)
    with path.open("rb") as file:
        is_parquet = file.read(4) == b"PAR1"
    if is_parquet:
        yield from ((None, genes) for genes in _parquet_sets(path))
        return
    try:
        text = open_text(path).data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"not text in UTF-8 ({error.reason})", code="not-text", where=path
        ) from error
    if "\0" in text:
        raise InputError("not text: it holds zero bytes", code="not-text", where=path)
    first = True
    for number, line in enumerate(text.splitlines(), 1):
        words = re.split(r"[\s,;]+", line.partition("#")[0].strip().strip(",;"))
        words = [word.strip("\"'") for word in words if word.strip("\"'")]
        if words and not (first and all(_HEADER.fullmatch(word) for word in words)):
            yield number, words
        first = first and not words


def _parquet_sets(path: Path) -> list[list[str]]:
    sets: list[Any] = [None]
    try:
        held = pq.read_metadata(path)
        columns = held.schema.to_arrow_schema().names
        if KEY in (held.metadata or {}):
            sets = pa.concat_tables(sealed_rows(path))["genes"].to_pylist()
        elif "genes" in columns:
            table = pq.read_table(path, columns=["genes"], page_checksum_verification=True)
            sets = table["genes"].to_pylist()
    except DAMAGE as error:
        raise InputError(
            f"the Parquet file cannot be read ({error})", code="unreadable-parquet", where=path
        ) from error
    if not all(isinstance(one, list) and all(isinstance(g, str) for g in one) for one in sets):
        raise InputError(
            "expected a column 'genes' of lists of gene names, as `deltacell predict` writes; the "
            f"columns are {', '.join(columns)}",
            code="no-gene-column",
            where=path,
        )
    return sets


@dataclass(frozen=True)
class Request:
    """Which sets are ranked, and what of them is kept.

    Parameters
    ----------
    sets
        ``pairs``, ``triples``, ``with`` (sets that have the ``given`` genes) or ``file``.
    size
        With ``with``: genes of a set; by default one more than given.
    genes
        What sets are made of: the genes of the ``screen``, ``all`` of the cell, or a file.
    top
        Sets to keep at each end; by default 1,000, or with ``above`` or ``below`` all.
    above, below
        Keep those with this score or more, or this score or less.
    status
        Of the sets to keep; by default untested, for a file any.
    linked
        Whether to keep sets of linked genes, which have fewer base pairs than ``distance`` between.
    cautious
        Whether to rank by the less extreme end of the spread over runs.
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
        n, with_ = len(self.given), self.sets == WITH
        limits = [limit for limit in (self.above, self.below) if limit is not None]
        # Scores are in single precision. NaN is not within its range either.
        finite = all(abs(limit) <= float(np.finfo(np.float32).max) for limit in limits)
        overlap = len(limits) == 2 and limits[0] <= limits[1]
        known = self.status is None or (self.status and set(self.status) <= set(STATUSES))
        for fine, code, what in (
            (not with_ or n, "no-gene", "--sets with needs a gene, such as --sets with HO"),
            (not with_ or self.n_genes > n, "size-too-small", f"--size must be {n + 1} or more"),
            (with_ or self.size is None, "size-without-with", "--size needs --sets with"),
            (self.top is None or self.top > 0, "top-too-small", "--top must be 1 or more"),
            (self.distance >= 0, "negative-distance", "--distance must be 0 or more base pairs"),
            (finite, "limit-not-finite", "--above and --below must be finite numbers"),
            (not overlap, "limits-overlap", "--above must be larger than --below"),
            (
                self.sets != FILE or self.genes == "screen",
                "genes-of-a-file",
                "--genes is for --sets pairs, triples or with; a file names its genes",
            ),
            (known, "unknown-status", f"--status must be some of {', '.join(STATUSES)}, or any"),
        ):
            if not fine:
                raise InputError(what, code=code)

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
    """Return the fields of a request that ``--sets`` gives; ``more`` are further genes of with."""
    first, *rest = words.replace(",", " ").split() or [""]
    if first == WITH:
        further = [gene for word in more for gene in word.replace(",", " ").split()]
        return {"sets": WITH, "given": (*rest, *further)}
    if more:
        raise InputError(
            f"'{more[0]}' is not a run directory",
            code="not-a-run",
            fix="Give directories that `deltacell train` made; genes follow --sets with.",
        )
    if words in (PAIRS, TRIPLES):
        return {"sets": words}
    if Path(words).is_file():
        return {"sets": FILE, "file": Path(words)}
    raise InputError(
        f"--sets is '{words}'{did_you_mean(words, (PAIRS, TRIPLES, WITH))}; expected pairs, "
        "triples, with GENE..., or a file of sets",
        code="unknown-sets",
    )


def read_status_option(words: str) -> tuple[str, ...]:
    """Return the statuses that ``--status`` gives, with commas between, or ``any``."""
    given = tuple(word.strip() for word in words.split(",") if word.strip())
    return STATUSES if "any" in given else given


@dataclass(frozen=True, eq=False)
class Subject:
    """A request together with the runs that it is made of."""

    request: Request
    cell: Cell
    genes: Ints  # that sets are made of
    sets: GeneSets
    linkage: Linkage
    statuses: Statuses
    runs: Sequence[Mapping[str, Any]]  # what the ranking says of them
    identity: Mapping[str, Any]  # all that decides the result, as JSON
    untrained: int  # how many of the genes a run never had in training
    trained_sizes: frozenset[int]  # of the sets that all runs were trained on
    held: int | None = None  # rows of an end in memory, see `End`
    rescaled: bool = False  # whether the runs are of unlike predictors, brought to one scale

    @property
    def width(self) -> int:
        """Genes of the largest set."""
        return int(max(self.sets.sizes))

    def kept(self, work: Work, rank: int | None = None) -> Kept:
        """Return what keeps the sets of a process, by default this one; it is empty."""
        ranks, request = work.ranks, self.request
        return Kept(
            [
                End(
                    name,
                    self.width,
                    top=request.most,
                    limit=request.limit(name),
                    cautious=request.cautious,
                    folder=work.folder,
                    prefix=f"{ranks.name(rank)}.{name or 'all'}",
                    most=self.held,
                )
                for name in request.ends
            ]
        )

    def select(self, found: Scored) -> Scored:
        """Return those of some sets of one size, genes ascending, that linkage and status allow."""
        if not self.request.keeps_linked:
            found = found.take(self.linkage.of(found.sets) != LINKED)
        if self.request.statuses != STATUSES:
            codes = [STATUSES.index(one) for one in self.request.statuses]
            found = found.take(np.isin(self.statuses.of(found.sets), codes))
        return found


def subject_of(runs: Sequence[LoadedRun], request: Request, weights: str = "best") -> Subject:
    """Return what a request means for runs of the same genes with these ``weights``."""
    if request.cautious and len(runs) < 2:
        raise InputError(
            "--cautious needs the spread of several runs, and one was given",
            code="cautious-alone",
            fix="Give runs of several seeds: deltacell predict RUN RUN ... --cautious",
        )
    cell, names = runs[0].data.cell, GeneNames.of_runs(runs)
    # A gene has many names, and the same request is the same by any of them.
    texts, given = gene_texts(cell.genes), np.sort(names.indices(request.given))
    request = replace(request, given=tuple(texts[gene] for gene in given))
    whole: dict[str, Screen] = {}
    for run in runs:
        screen = run.data.screen if run.data.whole is None else run.data.whole
        whole.setdefault(screen.checksum, screen)
    screens = [screen.on(cell, on_unknown="drop") for screen in whole.values()]
    phenotypes = {name for run in runs for name in phenotypes_of(run.data.screen)}
    facts = [
        run_facts(run, label, weights) for run, label in zip(runs, labels_of(runs), strict=True)
    ]
    sets, genes, checksum = _sets(runs, request, names, given)
    identity = {
        **request.to_json(),
        "gene_list": hashlib.sha256(genes.tobytes()).hexdigest(),
        "set_list": checksum,
        "weights": [{"run": f["name"], "seed": f["seed"], "sha256": f["sha256"]} for f in facts],
        "cell": cell.checksum,
        "screens": [screen.checksum for screen in screens],
        "version": version("deltacell"),
    }
    return Subject(
        request,
        cell,
        genes,
        sets,
        Linkage(cell.genes, request.distance),
        Statuses(screens, phenotypes),
        facts,
        identity,
        untrained=int((~trained_genes(runs)[genes]).sum()),
        trained_sizes=frozenset(trained_sizes(runs)),
        rescaled=not are_alike(runs),
    )


def run_facts(run: LoadedRun, label: str, weights: str) -> dict[str, Any]:
    """Return what a ranking says of a run and of the checkpoint that was loaded."""
    checkpoints = Checkpoints(run.record.path / CHECKPOINTS)
    named = {"best": checkpoints.best or checkpoints.last, "last": checkpoints.last}
    chosen = named.get(weights) or next(c for c in checkpoints.kept if c.file == weights)
    return {
        "name": label,
        "seed": run.record.seed,
        "model": run.config.model.name,
        "finished": run.is_finished,
        "checkpoint": chosen.file,
        "sha256": chosen.sha256,
        "validation_pearson": chosen.metric,
    }


def screen_genes(runs: Sequence[LoadedRun]) -> Ints:
    """Return the genes that some genotype of a run's screen deletes, ascending."""
    return np.unique(np.concatenate([run.data.screen.genotypes.genes.numpy() for run in runs]))


def trained_sizes(runs: Sequence[LoadedRun]) -> set[int]:
    """Return how many genes the genotypes have that every run was trained on."""
    each = [np.diff(run.data.screen.offsets)[run.data.split.train].tolist() for run in runs]
    return set.intersection(*map(set, each))


def trained_genes(runs: Sequence[LoadedRun]) -> Bools:
    """Return which genes of the cell every run had in its training part, [n_genes]."""
    seen: Bools = np.ones(runs[0].data.cell.n_genes, dtype=bool)
    for run in runs:
        in_training = np.zeros(len(run.data.screen), dtype=bool)
        in_training[run.data.split.train] = True
        genotypes = run.data.screen.genotypes
        mine = genotypes.genes.numpy()[in_training[genotypes.owner.numpy()]]
        seen &= np.isin(np.arange(len(seen)), mine)
    return seen


def _sets(
    runs: Sequence[LoadedRun], request: Request, names: GeneNames, given: Ints
) -> tuple[GeneSets, Ints, str | None]:
    """Return the sets to rank, the genes they are made of, and the checksum of a list."""
    per_block = min(SETS_PER_BLOCK.get(run.config.model.name, WHOLE_BLOCK) for run in runs)
    if request.file is not None:
        by_size = read_sets(request.file, names)
        genes = np.unique(np.concatenate([sets.reshape(-1) for sets in by_size]))
        return Listed(by_size, sets_per_piece=per_block), genes, sets_checksum(by_size)
    if isinstance(request.genes, Path):
        genes = read_genes(request.genes, names)
    elif request.genes == "screen":
        genes = screen_genes(runs)
    else:
        genes = np.arange(runs[0].data.cell.n_genes, dtype=np.int64)
    sets = Combinations(genes, request.n_genes, given.tolist(), sets_per_piece=per_block)
    if not sets.n_sets or sets.n_pieces > sys.maxsize:
        raise InputError(
            f"{len(genes):,} genes make {sets.n_sets:.3g} sets of {request.n_genes}, which cannot "
            "be ranked",
            code="too-many-sets" if sets.n_pieces > sys.maxsize else "too-few-genes",
            fix="Ask for smaller sets, or choose other genes with --genes.",
        )
    return sets, np.union1d(genes, given), None
