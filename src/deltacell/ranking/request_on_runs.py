"""A request for given runs: its sets, its filters, and what identifies it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

import numpy as np

from deltacell.base.arrays import Bools, Ints
from deltacell.cell import Cell
from deltacell.profile.record import CHECKPOINTS, Reached
from deltacell.ranking.ensemble import are_alike
from deltacell.ranking.filter import LINKED, STATUSES, Linkage, Statuses, phenotypes_of
from deltacell.ranking.gene_names import gene_indices, gene_texts
from deltacell.ranking.gene_sets import GeneSets, Scored
from deltacell.ranking.request import Request
from deltacell.ranking.set_intervals import SetIntervals
from deltacell.ranking.source import source_of
from deltacell.screen import Screen
from deltacell.storage import sha256_of_file
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.loaded_runs import LoadedRun, labels_of


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
    intervals: SetIntervals = field(default_factory=SetIntervals)

    def select(self, scored: Scored) -> Scored:
        """Return the sets, of one size with ascending genes, that linkage and status allow."""
        if not self.request.linked:
            scored = scored.take(self.linkage.of(scored.sets) != LINKED)
        if self.request.status != STATUSES:
            wanted = [STATUSES.index(status) for status in self.request.status or ()]
            scored = scored.take(np.isin(self.statuses.of(scored.sets), wanted))
        return scored


def subject_of(runs: Sequence[LoadedRun], request: Request, weights: str = "best") -> RequestOnRuns:
    """Return a request for runs of the same genes with these ``weights``."""
    cell = runs[0].data.cell
    # The identity of a request does not depend on which of its names a gene is given by.
    texts = gene_texts(cell.genes)
    given = np.sort(gene_indices(cell.genes, request.given))
    request = replace(request, given=tuple(texts[gene] for gene in given))
    screens = _whole_screens(runs, cell)
    labels = labels_of(runs)
    facts = [_facts(run, label, weights) for run, label in zip(runs, labels, strict=True)]
    sets, genes, checksum = source_of(runs, request, given)
    identity = {
        **request.to_json(),
        "gene_list": hashlib.sha256(genes.tobytes()).hexdigest(),
        "genes_of_cell": cell.genes.checksum,
        "set_list": checksum,
        "weights": [{"run": f.name, "seed": f.seed, "sha256": f.sha256} for f in facts],
        "cell": cell.checksum,
        "screens": [screen.checksum for screen in screens],
        "version": version("deltacell"),
    }
    is_trained = trained_genes(runs)
    return RequestOnRuns(
        request=request,
        cell=cell,
        genes=genes,
        sets=sets,
        linkage=Linkage(cell.genes, request.distance),
        statuses=Statuses(screens, _phenotypes_of_runs(runs)),
        runs=facts,
        identity=identity,
        untrained=int((~is_trained[genes]).sum()),
        trained_sizes=trained_sizes(runs),
        rescaled=not are_alike(runs),
        intervals=SetIntervals(runs),
    )


def _whole_screens(runs: Sequence[LoadedRun], cell: Cell) -> list[Screen]:
    """Return the distinct screens of runs, with the rows that a run did not learn from."""
    by_checksum: dict[str, Screen] = {}
    for run in runs:
        screen = run.data.screen if run.data.whole is None else run.data.whole
        by_checksum[screen.checksum] = screen
    return [screen.on(cell, on_unknown="drop") for screen in by_checksum.values()]


def _phenotypes_of_runs(runs: Sequence[LoadedRun]) -> set[str]:
    phenotypes: set[str] = set()
    for run in runs:
        phenotypes |= phenotypes_of(run.data.screen)
    return phenotypes


def _facts(run: LoadedRun, label: str, weights: str) -> RunFacts:
    checkpoints = Checkpoints(run.record.path / CHECKPOINTS)
    chosen = _checkpoint_of(checkpoints, weights)
    return RunFacts(
        name=label,
        seed=run.record.seed,
        model=run.config.model.name,
        checkpoint=chosen.file,
        sha256=sha256_of_file(checkpoints.folder / chosen.file),
        finished=run.is_finished,
        validation_pearson=_validation_pearson(run, chosen),
    )


def _checkpoint_of(checkpoints: Checkpoints, weights: str) -> Reached:
    """Return the best or the last checkpoint, or the one with this file."""
    by_word = {"best": checkpoints.best or checkpoints.last, "last": checkpoints.last}
    named = by_word.get(weights)
    return named or next(kept for kept in checkpoints.kept if kept.file == weights)


def _validation_pearson(run: LoadedRun, checkpoint: Reached) -> float | None:
    """Return the correlation on the validation part, of a refitted run that of its first fit."""
    refitted = run.record.refitted
    return checkpoint.value if refitted is None else refitted.validation_pearson


def trained_sizes(runs: Sequence[LoadedRun]) -> set[int]:
    """Return the sizes of sets that are in the training part of every run."""
    sizes_of_runs = []
    for run in runs:
        sizes = np.diff(run.data.screen.offsets)
        sizes_of_runs.append(set(sizes[run.data.split.train].tolist()))
    return set.intersection(*sizes_of_runs)


def trained_genes(runs: Sequence[LoadedRun]) -> Bools:
    """Return which genes of the cell are in the training part of every run, [n_genes]."""
    seen: Bools = np.ones(runs[0].data.cell.n_genes, dtype=bool)
    for run in runs:
        genotypes = run.data.screen.genotypes
        is_of_training = np.isin(genotypes.owner.numpy(), run.data.split.train)
        genes_of_training = genotypes.genes.numpy()[is_of_training]
        seen &= np.isin(np.arange(len(seen)), genes_of_training)
    return seen
