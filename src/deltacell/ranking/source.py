"""The gene sets that a request ranks: those of a file, or all of some genes."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np

from deltacell.base.arrays import Ints
from deltacell.base.errors import InputError
from deltacell.base.plain_text import plain_name
from deltacell.cell import Genes
from deltacell.models.fitted.gene_sets import GeneOrder
from deltacell.ranking.gene_names import gene_indices
from deltacell.ranking.gene_sets import AllPairs, Combinations, GeneSets, Listed
from deltacell.ranking.given_sets import words_of_line
from deltacell.ranking.request import PAIRS, Request
from deltacell.storage.tables import open_text
from deltacell.train.loaded_runs import LoadedRun

_HEADER = re.compile(r"(genes?|names?|orf|systematic|query|array)([ _]?(name|id|\d+|[a-d]))?", re.I)


def read_sets(path: Path, genes: Genes) -> list[Ints]:
    """Return the distinct sets of a file: for each size, from the smallest, [m, size] ascending.

    There is one set per line, see `words_of_line`; blank lines, comments and a header are skipped.
    A first line that names a gene of the cell is no header.
    """
    if not path.is_file():
        raise InputError("no such file", code="no-such-file", where=path)
    content = open_text(path)[0]
    text = content.decode("utf-8-sig", "replace")
    if "\0" in text or "\ufffd" in text:
        raise InputError("not a text file in UTF-8", code="not-text", where=path)

    is_first = True
    by_size: dict[int, list[Ints]] = {}
    for number, line in enumerate(plain_name(text).splitlines(), 1):
        words = words_of_line(line, genes.is_known)
        is_header = is_first and _is_header(words, genes)
        if words and not is_header:
            indices = gene_indices(genes, words, path, number)
            by_size.setdefault(len(indices), []).append(np.sort(indices))
        is_first = is_first and not words
    if not by_size:
        message = "the file has no gene sets; write one per line, such as HO STE2"
        raise InputError(message, code="no-sets", where=path)
    return [np.unique(np.stack(by_size[size]), axis=0) for size in sorted(by_size)]


def _is_header(words: Sequence[str], genes: Genes) -> bool:
    if any(map(genes.is_known, words)):
        return False
    return all(map(_HEADER.fullmatch, words))


def genes_of(by_size: Sequence[Ints]) -> Ints:
    """Return the genes that occur in sets, ascending."""
    return np.unique(np.concatenate([sets.reshape(-1) for sets in by_size]))


def source_of(
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
        listed = Listed(by_size, sets_per_piece=per_block)
        return listed, genes_of(by_size), _checksum(by_size)
    genes = _genes_to_combine(runs, request)
    size = cast(int, request.size)
    sets: GeneSets = Combinations(genes, size, given.tolist(), sets_per_piece=per_block)
    slowest = [model for model in models if model.sets_per_block == per_block]
    by_first_gene = any(model.shares_first_gene for model in slowest)
    if request.sets == PAIRS and by_first_gene:
        order = GeneOrder(names).gene
        sets = AllPairs(order[np.isin(order, genes)], sets_per_piece=per_block)
    if not sets.n_sets or sets.n_pieces > sys.maxsize:
        message = f"{len(genes):,} genes make {sets.n_sets:.3g} sets of {size}; "
        code = "too-many-sets" if sets.n_sets else "too-few-genes"
        raise InputError(f"{message}choose other --genes", code=code)
    return sets, np.union1d(genes, given), None


def _genes_to_combine(runs: Sequence[LoadedRun], request: Request) -> Ints:
    """Return the genes of a file, those of the runs' screens, or all of the cell."""
    names = runs[0].data.cell.genes
    if isinstance(request.genes, Path):
        return genes_of(read_sets(request.genes, names))
    if request.genes == "screen":
        screens = [run.data.screen for run in runs]
        return np.unique(np.concatenate([screen.genotypes.genes.numpy() for screen in screens]))
    return np.arange(len(names), dtype=np.int64)


def _checksum(by_size: Sequence[Ints]) -> str:
    """Return the SHA-256 of sets with their shapes."""
    content = b"".join(f"{sets.shape}".encode() + sets.tobytes() for sets in by_size)
    return hashlib.sha256(content).hexdigest()
