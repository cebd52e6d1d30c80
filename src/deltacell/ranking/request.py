"""What to rank: a request, gene sets from files, and the sets and facts of given runs."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np

from deltacell.base.arrays import Bools, Ints
from deltacell.base.errors import GeneNameError, InputError, did_you_mean
from deltacell.base.plain_text import without_invisible
from deltacell.cell import Cell, Genes
from deltacell.models.fitted.gene_sets import GeneOrder
from deltacell.profile.record import CHECKPOINTS, Reached
from deltacell.ranking.gene_sets import AllPairs, Combinations, GeneSets, Listed, Scored
from deltacell.ranking.given_sets import words_of_line
from deltacell.ranking.ranking_file import HIGHEST, LOWEST
from deltacell.ranking.status import LINKED, STATUSES, UNTESTED, Linkage, Statuses, phenotypes_of
from deltacell.storage import sha256_of_file
from deltacell.storage.tables import open_text
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.predictor import LoadedRun, are_alike, labels_of

PAIRS, TRIPLES, WITH, FILE = "pairs", "triples", "with", "file"
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
        defaults = {
            "size": self._expected_size(),
            "top": TOP if self.top is None and not has_limit and not is_file else self.top,
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
        words = words_of_line(sets)
        if words[:1] == [WITH]:
            options |= {"sets": WITH, "given": tuple(words[1:])}
        elif sets in (PAIRS, TRIPLES):
            options["sets"] = sets
        elif Path(sets).is_file():
            options |= {"sets": FILE, "file": Path(sets)}
        else:
            meant = did_you_mean(sets, (PAIRS, TRIPLES, WITH))
            what = f"--sets is '{sets}'{meant}; expected pairs, triples, with GENE..., or a file"
            raise InputError(what, code="unknown-sets")
        if status is not None:
            given = tuple(word.strip() for word in status.split(",") if word.strip())
            options["status"] = STATUSES if "any" in given else given
        return cls(genes=genes if genes in ("screen", "all") else Path(genes), **options)

    @property
    def ends(self) -> tuple[str | None, ...]:
        """The ends to keep; None is the list of all sets of a file."""
        if self.above is None and self.below is None:
            return (None,) if self.sets == FILE and self.top is None else (LOWEST, HIGHEST)
        wanted = ((LOWEST, self.below), (HIGHEST, self.above))
        return tuple(end for end, limit in wanted if limit is not None)

    def limit(self, end: str | None) -> float | None:
        """Return the score that sets must reach at an end, rounded to single precision."""
        limit = self.above if end == HIGHEST else self.below
        return None if limit is None else float(np.float32(limit))

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(asdict(self), default=lambda p: p.name))
        return found


def gene_indices(
    genes: Genes,
    names: Sequence[str],
    where: Path | None = None,
    line: int | None = None,
) -> Ints:
    """Return the indices of some genes of a run, by any of their names."""
    found: list[int] = []
    for name in names:
        try:
            found.append(genes.index(name))
        except GeneNameError as e:
            fix = f"{e.fix} data.screen_genes_only=false trains on all genes of the cell."
            raise GeneNameError(e.message, code=e.code, where=where, line=line, fix=fix) from None
    if len(set(found)) < len(found):
        what = f"a gene is given twice: {' '.join(map(genes.label, found))}"
        raise GeneNameError(what, code="gene-twice", where=where, line=line)
    return np.array(found, dtype=np.int64)


def gene_texts(genes: Genes) -> list[str]:
    """Return the standard name of each gene, or the systematic one if it has none."""
    return [a or b for a, b in zip(genes.standard, genes.systematic, strict=True)]


_HEADER = re.compile(r"(genes?|names?|orf|systematic|query|array)([ _]?(name|id|\d+|[a-d]))?", re.I)


def read_sets(path: Path, genes: Genes) -> list[Ints]:
    """Return the distinct sets of a file: for each size, from the smallest, [m, size] ascending.

    There is one set per line, see `words_of_line`; blank lines, comments and a header are skipped.
    A first line that names a gene of the cell is no header.
    """
    if not path.is_file():
        raise InputError("no such file", code="no-such-file", where=path)
    text = open_text(path)[0].decode("utf-8-sig", "replace")
    if "\0" in text or "\ufffd" in text:
        raise InputError("not a text file in UTF-8", code="not-text", where=path)
    visible = without_invisible(text)

    is_first = True
    by_size: dict[int, list[Ints]] = {}
    for line, whole in enumerate(visible.splitlines(), 1):
        words = words_of_line(whole, genes.is_known)
        is_header = (
            is_first and all(map(_HEADER.fullmatch, words)) and not any(map(genes.is_known, words))
        )
        if words and not is_header:
            indices = gene_indices(genes, words, path, line)
            by_size.setdefault(len(indices), []).append(np.sort(indices))
        is_first = is_first and not words
    if not by_size:
        what = "the file has no gene sets; write one per line, such as HO STE2"
        raise InputError(what, code="no-sets", where=path)
    return [np.unique(np.stack(by_size[size]), axis=0) for size in sorted(by_size)]


def genes_of(by_size: Sequence[Ints]) -> Ints:
    return np.unique(np.concatenate([sets.reshape(-1) for sets in by_size]))


@dataclass(frozen=True)
class RunFacts:
    """What a ranking records of a run."""

    name: str
    seed: int
    model: str
    checkpoint: str  # the file of the weights
    sha256: str  # of that file
    finished: bool
    validation_pearson: float | None


@dataclass(frozen=True, eq=False)
class RequestOnRuns:
    """A request for given runs."""

    request: Request
    cell: Cell
    genes: Ints  # of the sets
    sets: GeneSets
    linkage: Linkage
    statuses: Statuses
    runs: Sequence[RunFacts]
    identity: Mapping[str, Any]  # JSON-serialisable; everything that determines the result
    untrained: int  # number of genes that are not in the training part of every run
    trained_sizes: set[int]  # sizes of sets that all runs were trained on
    rescaled: bool = False  # whether different predictors were brought to one scale

    def select(self, found: Scored) -> Scored:
        """Return the sets, of one size with ascending genes, that linkage and status allow."""
        if not self.request.linked:
            found = found.take(self.linkage.of(found.sets) != LINKED)
        if self.request.status != STATUSES:
            codes = [STATUSES.index(one) for one in self.request.status or ()]
            found = found.take(np.isin(self.statuses.of(found.sets), codes))
        return found


def subject_of(runs: Sequence[LoadedRun], request: Request, weights: str = "best") -> RequestOnRuns:
    """Return a request for runs of the same genes with these ``weights``."""
    cell = runs[0].data.cell
    # The identity of a request does not depend on which of its names a gene is given by.
    texts, given = gene_texts(cell.genes), np.sort(gene_indices(cell.genes, request.given))
    request = replace(request, given=tuple(texts[gene] for gene in given))
    whole = [run.data.screen if run.data.whole is None else run.data.whole for run in runs]
    distinct = {screen.checksum: screen for screen in whole}.values()
    screens = [screen.on(cell, on_unknown="drop") for screen in distinct]
    phenotypes = {name for run in runs for name in phenotypes_of(run.data.screen)}
    facts = [_facts(run, label, weights) for run, label in zip(runs, labels_of(runs), strict=True)]
    sets, genes, checksum = _sets(runs, request, given)
    identity = {
        **request.to_json(),
        "gene_list": hashlib.sha256(genes.tobytes()).hexdigest(),
        "set_list": checksum,
        "weights": [{"run": f.name, "seed": f.seed, "sha256": f.sha256} for f in facts],
        "cell": cell.checksum,
        "screens": [screen.checksum for screen in screens],
        "version": version("deltacell"),
    }
    return RequestOnRuns(
        *(request, cell, genes, sets, Linkage(cell.genes, request.distance)),
        *(Statuses(screens, phenotypes), facts, identity),
        untrained=int((~trained_genes(runs)[genes]).sum()),
        trained_sizes=trained_sizes(runs),
        rescaled=not are_alike(runs),
    )


def _facts(run: LoadedRun, label: str, weights: str) -> RunFacts:
    checkpoints = Checkpoints(run.record.path / CHECKPOINTS)
    named = {"best": checkpoints.best or checkpoints.last, "last": checkpoints.last}
    chosen = named.get(weights) or next(c for c in checkpoints.kept if c.file == weights)
    return RunFacts(
        name=label,
        seed=run.record.seed,
        model=run.config.model.name,
        checkpoint=chosen.file,
        sha256=sha256_of_file(checkpoints.folder / chosen.file),
        finished=run.is_finished,
        validation_pearson=_validation_pearson(run, chosen),
    )


def _validation_pearson(run: LoadedRun, checkpoint: Reached) -> float | None:
    """Return the correlation on the validation part, of a refitted run that of its first fit."""
    refitted = run.record.refitted
    return checkpoint.value if refitted is None else refitted.validation_pearson


def trained_sizes(runs: Sequence[LoadedRun]) -> set[int]:
    each = [np.diff(run.data.screen.offsets)[run.data.split.train].tolist() for run in runs]
    return set.intersection(*map(set, each))


def trained_genes(runs: Sequence[LoadedRun]) -> Bools:
    """Return which genes of the cell are in the training part of every run, [n_genes]."""
    seen: Bools = np.ones(runs[0].data.cell.n_genes, dtype=bool)
    for run in runs:
        genotypes = run.data.screen.genotypes
        mine = np.isin(genotypes.owner.numpy(), run.data.split.train)
        seen &= np.isin(np.arange(len(seen)), genotypes.genes.numpy()[mine])
    return seen


def _sets(
    runs: Sequence[LoadedRun],
    request: Request,
    given: Ints,
) -> tuple[GeneSets, Ints, str | None]:
    """Return the sets to rank, their genes, and the checksum of the sets of a file."""
    names = runs[0].data.cell.genes
    models = [run.predictor.model for run in runs]
    per_block = min(model.sets_per_block for model in models)
    if request.file is not None:
        by_size = read_sets(request.file, names)
        text = b"".join(f"{sets.shape}".encode() + sets.tobytes() for sets in by_size)
        listed = Listed(by_size, sets_per_piece=per_block)
        return listed, genes_of(by_size), hashlib.sha256(text).hexdigest()
    if isinstance(request.genes, Path):
        genes = genes_of(read_sets(request.genes, names))
    elif request.genes == "screen":
        genes = np.unique(np.concatenate([r.data.screen.genotypes.genes.numpy() for r in runs]))
    else:
        genes = np.arange(len(names), dtype=np.int64)
    size = cast(int, request.size)
    made: GeneSets = Combinations(genes, size, given.tolist(), sets_per_piece=per_block)
    by_first_gene = any(m.shares_first_gene and m.sets_per_block == per_block for m in models)
    if request.sets == PAIRS and by_first_gene:
        order = GeneOrder(names).gene
        made = AllPairs(order[np.isin(order, genes)], sets_per_piece=per_block)
    if not made.n_sets or made.n_pieces > sys.maxsize:
        what = f"{len(genes):,} genes make {made.n_sets:.3g} sets of {size}; choose other --genes"
        raise InputError(what, code="too-many-sets" if made.n_sets else "too-few-genes")
    return made, np.union1d(genes, given), None
