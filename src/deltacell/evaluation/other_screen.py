"""The rows of another screen that runs can be tested on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from deltacell.base.arrays import Bools, Ints
from deltacell.base.errors import InputError
from deltacell.base.files import JsonObject
from deltacell.screen import Genotypes, Screen, Split
from deltacell.screen.gene_keys import comparable_keys
from deltacell.screen.genotypes import repeats_a_gene, sets_with
from deltacell.screen.outliers import beyond_any_scale
from deltacell.screen.screen import ONE_GENE_TWICE
from deltacell.storage.provenance import UNKNOWN_GENE, Counts
from deltacell.train.data import TrainingData

# Reasons to leave out rows of another screen.
NO_INTERACTION = "no interaction score"
TOO_LARGE = "more genes than the run takes"
IN_TRAINING = "in training or validation"
BEYOND_ANY_SCALE = "a score beyond any scale"


@dataclass(frozen=True, eq=False)
class OtherScreen:
    """Another screen over the genes of a run's cell, whose test part can be tested."""

    screen: Screen
    split: Split
    counts: Counts  # rows read, kept and dropped by reason

    @property
    def sentence(self) -> str:
        """How many rows are tested, and why the others are left out."""
        reasons = [f"{n:,} {_as_clause(why)}" for why, n in self.counts.dropped.items()]
        kept = f"{self.counts.kept:,} of its {self.counts.read:,} rows"
        left_out = ", ".join(reasons) or "none"
        return f"Tested on another screen: {kept}. Left out: {left_out}."

    def to_json(self) -> JsonObject:
        """Return the checksum of the screen and the counts."""
        return {"screen": self.screen.checksum, **self.counts.to_json()}


def _as_clause(reason: str) -> str:
    return reason if reason == IN_TRAINING else f"with {reason}"


def untrained(screen: Screen, data: TrainingData) -> OtherScreen:
    """Return the rows of another screen that can be tested, over the genes of a run's cell."""
    counts, is_kept = _kept_rows(screen, data)
    if not is_kept.any():
        raise _nothing_to_test(counts, data)
    matched = screen.take(is_kept).on(data.cell)
    rows = np.arange(len(matched))
    studies = sorted(set(matched.column("study").astype(str)))
    split = Split(
        rows[:0],
        rows[:0],
        rows,
        "source",
        0,
        matched.checksum,
        options={"test": studies, "validation": 0.0},
        unseen=_n_unseen(matched, data),
    )
    return OtherScreen(matched, split, counts)


def _kept_rows(screen: Screen, data: TrainingData) -> tuple[Counts, Bools]:
    """Return which rows can be tested, and how many cannot for each reason."""
    is_kept: Bools = np.ones(len(screen), dtype=bool)
    dropped: dict[str, int] = {}
    for reason, rows in _reasons(screen, data).items():
        dropped[reason] = int((is_kept & rows).sum())
        is_kept &= ~rows
    return Counts(len(screen), int(is_kept.sum()), dropped), is_kept


def _reasons(screen: Screen, data: TrainingData) -> Mapping[str, Bools]:
    """Return the rows to leave out by reason; a row may have several."""
    offsets = screen.offsets
    genes = data.cell.genes.resolve(screen.genes.systematic)[screen.genotypes.genes.numpy()]
    has_score = np.isfinite(screen.column("score")) | (screen.column("sign") != 0)
    is_interaction = screen.column("phenotype") == "interaction"
    trained = taken(data.screen, np.concatenate([data.split.train, data.split.validation]))
    keys, keys_of_training = comparable_keys(
        data.cell.n_genes,
        (genes, offsets),
        (trained.genes.numpy(), trained.offsets.numpy()),
    )
    return {
        NO_INTERACTION: ~has_score | ~is_interaction,
        UNKNOWN_GENE: sets_with(genes < 0, offsets),
        ONE_GENE_TWICE: repeats_a_gene(genes, offsets),
        TOO_LARGE: np.diff(offsets) > data.largest,
        BEYOND_ANY_SCALE: beyond_any_scale(screen.column("score")),
        IN_TRAINING: np.isin(keys, keys_of_training),
    }


def _nothing_to_test(counts: Counts, data: TrainingData) -> InputError:
    reasons = ", ".join(f"{why}: {n:,}" for why, n in counts.dropped.items())
    what = f"none of {counts.read:,} rows can be tested on ({reasons})"
    examples = ", ".join(data.cell.genes.systematic[:3])
    fix = f"Give interaction scores of other sets of the run's genes, such as {examples}."
    return InputError(what, code="nothing-to-test", fix=fix, dropped=dict(counts.dropped))


def _n_unseen(screen: Screen, data: TrainingData) -> Ints:
    """Return how many genes of each row are in no training row, [rows]."""
    trained = taken(data.screen, data.split.train).genes
    is_unseen = ~torch.isin(screen.genotypes.genes, trained)
    owner = screen.genotypes.owner[is_unseen].numpy()
    return np.bincount(owner, minlength=len(screen))


def taken(screen: Screen, rows: Ints) -> Genotypes:
    """Return the genotypes of some rows of a screen."""
    return screen.genotypes.take(torch.from_numpy(np.array(rows)))
