"""Cost of pair messages: computing the columns of a screen, training, and scoring every pair."""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

import numpy as np

from deltacell.base.files import JsonObject
from deltacell.bench import process, subjects
from deltacell.models.fitted.gene_sets import GeneOrder
from deltacell.models.scoring import genotypes_of
from deltacell.ranking.gene_sets import AllPairs
from deltacell.train.config import Config, DataConfig
from deltacell.train.data import draw_zeros, load_data

ZEROS = 1.0  # drawn per listed pair, as by default


def run(
    folder: Path | None = None,
    screen: str | None = None,
    quick: bool = False,
) -> JsonObject:
    """Measure pair trees on a folder of `deltacell data import`, or on a synthetic screen."""
    process.progress("columns, training, scores", 0, 1)
    result = process.in_own_process(measure, folder=folder, screen=screen, quick=quick)
    # The bars are for Costanzo 2010.
    rows = result["rows"] if folder else ()
    return {**result, "measured": {f"{row['name']}_seconds": row["seconds"] for row in rows}}


def measure(folder: Path | None, screen: str | None, quick: bool) -> JsonObject:
    """Return a row with seconds and peak memory for columns, training, and scoring all pairs."""
    where: JsonObject = {"folder": str(folder), "screen": screen}
    if folder is None:
        where = {"synthetic": "demo", "synthetic_genotypes": 1000 if quick else None}
    config = Config(data=DataConfig(**where, screen_genes_only=True, merge="mean"))
    data = load_data(config)
    rounds = 10 if quick else 400
    trees = subjects.fitted("pair_trees", data.cell, rounds=rounds)
    training = data.part(data.split.train)
    validation = data.part(data.split.validation)
    zeros = draw_zeros(data, ZEROS, config.split.seed)
    genes = GeneOrder(data.cell.genes).gene[: 64 if quick else None]
    pairs = AllPairs(genes, sets_per_piece=trees.sets_per_block)

    def make_columns() -> None:
        """Compute the columns of every pair of the screen."""
        scores = data.screen.column("score").astype(np.float64)
        cast(subjects.ReadsColumns, trees).table_of(data.cell, data.screen.genotypes, scores)

    def train() -> None:
        """Fit the trees on the training part."""
        trees.fit(data.cell, *training, validation=validation, draw_zeros=lambda ratio: zeros)

    def score_all_pairs() -> None:
        """Score every pair of the chosen genes."""
        for sets in pairs.pieces(0, 1):
            trees(data.cell, genotypes_of(sets))

    rows = []
    for name, work, n_pairs in (
        ("columns", make_columns, len(data.screen)),
        ("train", train, len(data.split.train)),
        ("score_all_pairs", score_all_pairs, pairs.n_sets),
    ):
        memory = process.PeakMemory()
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        rows.append({"name": name, "seconds": seconds, "pairs": n_pairs, "peak_mib": memory.mib()})
    return {"rows": rows, "genes": data.cell.n_genes}
