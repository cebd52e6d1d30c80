"""What pair messages cost: the columns of a screen, a training, and scoring every pair."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from deltacell.bench.process import PeakMemory, in_own_process, machine
from deltacell.models.baselines.baseline import Part
from deltacell.models.baselines.gene_sets import GeneOrder
from deltacell.models.pairs import Known, Measured, PairColumns, PairTrees
from deltacell.screen import Genotypes
from deltacell.train.config import Config, DataConfig
from deltacell.train.data import TrainingData, draw_zeros, load_data
from deltacell.words import Progress

BARS = {"columns": 120.0, "train": 900.0, "score_all_pairs": 600.0}
"""The most seconds that each row may take on Costanzo 2010 with two cores."""

_PAIRS_PER_CALL = 500_000


def run(
    folder: str | None = None,
    screen: str | None = None,
    *,
    rounds: int = 400,
    most_pairs: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure the parts of a pair predictor in a separate process.

    Without a folder the cell and the screen are synthetic, and no bar applies. At most
    ``most_pairs`` pairs are scored, by default all pairs of the screen's genes.
    """
    rows: list[dict[str, Any]] = []

    def told(row: dict[str, Any]) -> None:
        rows.append(row)
        if progress is not None:
            progress(row["name"], len(rows), len(BARS))

    settings = {"folder": folder, "screen": screen, "rounds": rounds, "most_pairs": most_pairs}
    about = in_own_process("deltacell.bench.pairs:_measure", settings, told)
    bars = BARS if folder is not None and most_pairs is None else {}
    return {
        "command": "deltacell bench pairs",
        "rows": rows,
        "bars": {
            f"{row['name']}_seconds": {
                "at_most": bars[row["name"]],
                "measured": row["seconds"],
                "met": row["seconds"] <= bars[row["name"]],
            }
            for row in rows
            if row["name"] in bars
        },
        "machine": {**machine(), **about},
    }


def _measure(
    folder: str | None,
    screen: str | None,
    rounds: int,
    most_pairs: int | None,
    tell: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    made_up = None if folder is not None else "demo"
    config = Config(
        data=DataConfig(
            folder=folder, screen=screen, synthetic=made_up, screen_genes_only=True, merge="mean"
        )
    )
    data = load_data(config)
    trees = PairTrees(rounds=rounds)
    training, validation = data.part(data.split.train), data.part(data.split.validation)
    zeros = draw_zeros(data, trees.zeros, config.split.seed)
    first, second = (genes[:most_pairs] for genes in np.triu_indices(data.cell.n_genes, 1))

    def score() -> None:
        for start in range(0, len(first), _PAIRS_PER_CALL):
            block = slice(start, start + _PAIRS_PER_CALL)
            genes = torch.from_numpy(np.stack([first[block], second[block]], axis=1).ravel())
            trees(data.cell, Genotypes(genes, torch.arange(0, len(genes) + 1, 2)))

    for name, pairs, work in (
        ("columns", len(data.screen), lambda: _make_columns(data)),
        (
            "train",
            len(data.split.train),
            lambda: trees.fit(data.cell, *training, validation=validation, zeros=zeros),
        ),
        ("score_all_pairs", len(first), score),
    ):
        memory, start = PeakMemory(), time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        tell({"name": name, "seconds": seconds, "pairs": pairs, "peak_mib": memory.mib()})
    return {"genes": data.cell.n_genes, "threads": torch.get_num_threads()}


def _make_columns(data: TrainingData) -> None:
    """Make the columns of every set of the screen once, from the networks on."""
    order = GeneOrder(data.cell.genes)
    sets = order.sets(data.screen.genotypes)
    part = Part(sets, data.screen.column("score").astype(np.float64), np.ones(len(sets)))
    columns = PairColumns(data.cell, order, int(sets.sizes.max()))
    votes = columns.votes(Measured.of(part, len(order)), sets)
    columns(Known.of(part, len(order), 3.0), sets, votes)
