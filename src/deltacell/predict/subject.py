"""What is ranked: a request brought together with the runs that it is made of."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np

from deltacell.arrays import Bools, Ints
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.predict.gene_sets import Combinations, GeneSets, Listed
from deltacell.predict.kept import HELD, Beyond, End, Kept, Top, taken
from deltacell.predict.request import (
    FILE,
    GeneNames,
    Request,
    gene_texts,
    read_genes,
    read_sets,
    sets_checksum,
)
from deltacell.predict.scorers import Scored
from deltacell.predict.status import LINKED, STATUSES, Linkage, Statuses, phenotypes_of
from deltacell.predict.work import Ranks, Work
from deltacell.profile.record import CHECKPOINTS
from deltacell.screen import Screen
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.loaded_run import LoadedRun, are_alike, labels_of
from deltacell.train.predictor import WHOLE_BLOCK


def run_facts(run: LoadedRun, label: str, weights: str) -> dict[str, Any]:
    """Return what a run is called, its model and the checkpoint that was loaded, as plain data.

    Parameters
    ----------
    run
        As loaded.
    label
        See `labels_of`.
    weights
        Which checkpoint: as in `load_run`.
    """
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
    genes = [np.unique(run.data.screen.genotypes.genes.numpy()) for run in runs]
    return np.unique(np.concatenate(genes))


def trained_sizes(runs: Sequence[LoadedRun]) -> set[int]:
    """Return how many genes the genotypes have that every run was trained on."""
    each = [set(_training_sizes(run).tolist()) for run in runs]
    return set.intersection(*each)


def trained_genes(runs: Sequence[LoadedRun]) -> Bools:
    """Return which genes of the cell every run had in its training part, [n_genes]."""
    seen: Bools = np.ones(runs[0].data.cell.n_genes, dtype=bool)
    for run in runs:
        mine: Bools = np.zeros(len(seen), dtype=bool)
        in_training = np.zeros(len(run.data.screen), dtype=bool)
        in_training[run.data.split.train] = True
        genotypes = run.data.screen.genotypes
        mine[genotypes.genes.numpy()[in_training[genotypes.owner.numpy()]]] = True
        seen &= mine
    return seen


def _training_sizes(run: LoadedRun) -> Ints:
    sizes: Ints = np.unique(np.diff(run.data.screen.offsets)[run.data.split.train])
    return sizes


SETS_A_BLOCK = {"dango": 64**3, "hetero_cell": 128}
"""About a second's work, or a few, by model: nothing is saved within a block."""


@dataclass(frozen=True, eq=False)
class Subject:
    """What is ranked.

    Parameters
    ----------
    request
        What was asked for.
    cell
        The wild type.
    genes
        Indices of the genes that sets are made of.
    sets
        Those that are gone through.
    linkage, statuses
        What decides which of them are kept.
    runs
        What the ranking says of them.
    identity
        All that decides the result, as JSON.
    untrained
        How many of the genes a run never had in training.
    trained_sizes
        How many genes the sets have that all runs were trained on.
    held
        Rows of an end that are held in memory where all beyond a score are kept.
    rescaled
        Whether the runs are of unlike predictors, which are brought to one scale.
    """

    request: Request
    cell: Cell
    genes: Ints
    sets: GeneSets
    linkage: Linkage
    statuses: Statuses
    runs: Sequence[Mapping[str, Any]]
    identity: Mapping[str, Any]
    untrained: int
    trained_sizes: frozenset[int]
    held: int = HELD
    rescaled: bool = False

    @property
    def width(self) -> int:
        """Genes of the largest set."""
        return max(self.sets.sizes)

    def kept(self, work: Work, ranks: Ranks | None = None) -> Kept:
        """Return what keeps the sets that were asked for, empty.

        Parameters
        ----------
        work
            Where what memory does not hold is put.
        ranks
            The process that it is of; the one of the work where not given.
        """
        return Kept([self._end(end, work, ranks or work.ranks) for end in self.request.ends])

    def chosen(self, found: Scored) -> Scored:
        """Return those of some scored sets that may be kept, by linkage and status.

        Parameters
        ----------
        found
            Sets of one size, their genes ascending.
        """
        if not self.request.keeps_linked:
            found = taken(found, self.linkage.of(found.sets) != LINKED)
        wanted = self.request.statuses
        if wanted != STATUSES:
            codes = [STATUSES.index(one) for one in wanted]
            found = taken(found, np.isin(self.statuses.of(found.sets), codes))
        return found

    def _end(self, name: str | None, work: Work, ranks: Ranks) -> End:
        limit, most = self.request.limit(name), self.request.most
        cautious = self.request.cautious
        if most is not None:
            return Top(name, most, self.width, limit=limit, cautious=cautious)
        prefix = f"{ranks.name()}.{name or 'all'}"
        return Beyond(
            name, self.width, work.folder, prefix, limit=limit, most=self.held, cautious=cautious
        )


def subject_of(runs: Sequence[LoadedRun], request: Request, weights: str = "best") -> Subject:
    """Return what a request means for some runs.

    Parameters
    ----------
    runs
        One or more, of the same genes.
    request
        What was asked for.
    weights
        Which checkpoint of the runs was loaded.
    """
    if request.cautious and len(runs) < 2:
        raise InputError(
            "--cautious needs the spread of several runs, and one was given",
            fix="Give runs of several seeds: deltacell predict RUN RUN ... --cautious",
        )
    cell = runs[0].data.cell
    names = gene_names(runs)
    # A gene has many names, and the same request is the same by any of them.
    texts, given = gene_texts(cell.genes), np.sort(names.indices(request.given))
    request = replace(request, given=tuple(texts[gene] for gene in given))
    screens = _whole_screens(runs)
    phenotypes = {name for run in runs for name in phenotypes_of(run.data.screen)}
    facts = [
        run_facts(run, label, weights) for run, label in zip(runs, labels_of(runs), strict=True)
    ]
    sets, genes, checksum = _sets(runs, request, names)
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
        int((~trained_genes(runs)[genes]).sum()),
        frozenset(trained_sizes(runs)),
        rescaled=not are_alike(runs),
    )


def gene_names(runs: Sequence[LoadedRun]) -> GeneNames:
    """Return the gene names that may be typed for some runs."""
    data = runs[0].data
    return GeneNames(data.cell.genes, None if data.whole is None else data.whole.genes)


def _sets(
    runs: Sequence[LoadedRun], request: Request, names: GeneNames
) -> tuple[GeneSets, Ints, str | None]:
    """Return the sets to go through, the genes they are made of, and the checksum of a list."""
    a_block = min(SETS_A_BLOCK.get(run.config.model.name, WHOLE_BLOCK) for run in runs)
    if request.sets == FILE:
        assert request.file is not None
        by_size = read_sets(request.file, names)
        genes = np.unique(np.concatenate([sets.reshape(-1) for sets in by_size]))
        return Listed(by_size, sets_a_piece=a_block), genes, sets_checksum(by_size)
    if request.genes == "screen":
        genes = screen_genes(runs)
    elif request.genes == "all":
        genes = np.arange(runs[0].data.cell.n_genes, dtype=np.int64)
    else:
        assert not isinstance(request.genes, str)
        genes = read_genes(request.genes, names)
    given = names.indices(request.given)
    sets = Combinations(genes, request.n_genes, given.tolist(), sets_a_piece=a_block)
    if sets.n_pieces > sys.maxsize:
        raise InputError(
            f"{len(genes):,} genes make {sets.n_sets:.1e} sets of {request.n_genes}, which nobody "
            "goes through",
            fix="Ask for smaller sets, or name fewer genes with --genes.",
        )
    if not sets.n_sets:
        raise InputError(
            f"{len(genes):,} genes make no set of {request.n_genes}",
            fix="Name more genes with --genes, or ask for smaller sets.",
        )
    return sets, np.union1d(genes, given), None


def _whole_screens(runs: Sequence[LoadedRun]) -> list[Screen]:
    """Return the distinct screens of the runs, with all that any of them left out."""
    found: dict[str, Screen] = {}
    for run in runs:
        whole = run.data.screen if run.data.whole is None else run.data.whole
        found.setdefault(whole.checksum, whole)
    return [whole.on(runs[0].data.cell, on_unknown="drop") for whole in found.values()]
