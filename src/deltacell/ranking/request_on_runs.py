"""A request for given runs: its sets, its filters, and what identifies it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np

from deltacell.base.arrays import Bools, Ints
from deltacell.cell import Cell
from deltacell.profile.record import CHECKPOINTS, Reached
from deltacell.ranking.filter import LINKED, STATUSES, Linkage, Statuses, phenotypes_of
from deltacell.ranking.gene_names import gene_indices, gene_texts
from deltacell.ranking.gene_sets import GeneSets, Scored
from deltacell.ranking.request import Request
from deltacell.ranking.source import source_of
from deltacell.storage import sha256_of_file
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.predictor import LoadedRun, are_alike, labels_of


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
    sets, genes, checksum = source_of(runs, request, given)
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
