"""How many triples a second are ranked by both models, beside a plain loop of batches."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from deltacell.arrays import Ints
from deltacell.bench.data import random_triples
from deltacell.bench.machine import machine
from deltacell.bench.process import counted, in_own_process
from deltacell.bench.train import CONFIGS, QUICK
from deltacell.errors import InputError
from deltacell.models import Dango
from deltacell.models.hyper_sagnn import OthersAttention
from deltacell.predict.ensemble import scorer_of_predictors
from deltacell.predict.gene_sets import Combinations
from deltacell.predict.kept import Kept, Top, padded
from deltacell.predict.rank import first_sets
from deltacell.predict.ranking import HIGHEST, LOWEST
from deltacell.screen import Genotypes
from deltacell.train.build import build_model
from deltacell.train.compose import compose
from deltacell.train.data import load_data
from deltacell.train.predictor import Predictor

TOP = 1000
"""Triples that are kept at each end."""

BARS = {"sets_per_s": 200_000, "times_the_loop": 1.5}
"""What ranking with DANGO has to reach, and how much faster it has to be than a loop."""

WHAT: Mapping[tuple[str, str], str] = {
    ("dango", "loop"): "batches through Hyper-SAGNN over cached gene vectors",
    ("dango", "ranked"): "new weights: attention is nearly uniform",
    ("dango", "ranked_trained"): "betas 0.25 and 0.001, attention far from uniform",
    ("dango", "ranked_unpruned"): "betas 0.25 and 0.25, attention far from uniform",
    ("hetero_cell", "loop"): "batches through the whole model",
    ("hetero_cell", "ranked"): "the wild type cached, every mutant alone",
}
"""The variants of each model, in words."""

Progress = Callable[[str, int, int], None]
Tell = Callable[[dict[str, Any]], None]


class Amount(NamedTuple):
    """How much of a variant is measured.

    Parameters
    ----------
    genes
        All triples of so many genes are ranked.
    betas
        Of the attention layers; as they are where there are none.
    logits
        The deviation of the attention's logits; as it is where 0.
    """

    genes: int
    betas: tuple[float, ...] = ()
    logits: float = 0.0


class Took(NamedTuple):
    """What scoring took.

    Parameters
    ----------
    sets
        How many were scored or ranked.
    wall_s, cpu_s
        By the clock, and of the processor.
    setup_s
        What came before, by the clock.
    """

    sets: int
    wall_s: float
    cpu_s: float
    setup_s: float


RANKED: Mapping[str, Mapping[str, Amount]] = {
    "dango": {
        "ranked": Amount(800),
        "ranked_trained": Amount(500, (0.25, 0.001), 1.0),
        "ranked_unpruned": Amount(130, (0.25, 0.25), 1.0),
    },
    "hetero_cell": {"ranked": Amount(9)},
}
"""The variants that rank, and over how many genes."""

LOOPED: Mapping[str, tuple[int, int]] = {"dango": (40_960, 1024), "hetero_cell": (64, 8)}
"""Triples of the loop, and how many are a batch."""


def run(
    progress: Progress | None = None, quick: bool = False, *, repeats: int = 3, seed: int = 0
) -> dict[str, Any]:
    """Rank the triples of some genes by both models, the variants in turns.

    A ranking keeps the 1,000 highest and lowest. It begins with sets that give good thresholds, as
    `deltacell predict` does, and they are in its time. What is done once for a cell whatever is
    ranked is in ``setup_s``. The loop scores triples drawn at random and keeps nothing.
    ``sets_per_cpu_s`` is by the time that the processor worked, which other programs hardly
    change; of two cores, each counts.

    Parameters
    ----------
    progress
        Called as ``progress(what, done, total)``.
    quick
        Whether to take the small synthetic cell, where no bar applies.
    repeats
        Turns; the median counts.
    seed
        Of the data and the weights.
    """
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; expected at least 1")
    told = counted(progress, len(WHAT) * repeats)
    rows = []
    for model in RANKED:
        settings = {"model": model, "quick": quick, "repeats": repeats, "seed": seed}
        measured = in_own_process("deltacell.bench.predict:measure", settings, told)
        rows += [{"model": model, "variant": variant, **row} for variant, row in measured.items()]
    for row in rows:
        loop = _rate(rows, row["model"], "loop")
        row["times_the_loop"] = row["sets_per_s"] / loop
        row["what"] = WHAT[row["model"], row["variant"]]
    return {
        "benchmark": "predict",
        "command": _command(quick, repeats),
        "rows": rows,
        "bars": {} if quick else _bars(rows),
        "settings": {
            "cell": "demo" if quick else "yeast",
            "size": 3,
            "top": TOP,
            "repeats": repeats,
            "seed": seed,
        },
        "machine": machine(),
    }


def measure(
    *, model: str, quick: bool, repeats: int, seed: int, tell: Tell
) -> dict[str, dict[str, Any]]:
    """Return what the variants of one model took, in this process.

    Parameters
    ----------
    model, quick, repeats, seed
        As in `run`.
    tell
        Called with what is being done.
    """
    predictor = _predictor(model, quick, seed)
    ranked = RANKED[model]
    took: dict[str, list[Took]] = {name: [] for name in ("loop", *ranked)}
    for turn in range(repeats):
        for variant, of_turns in took.items():
            tell({"what": f"{model} {variant}, {turn + 1} of {repeats}"})
            if variant == "loop":
                of_turns.append(_loop(predictor, *LOOPED[model], quick=quick, seed=seed))
            else:
                amount = ranked[variant]
                genes = min(amount.genes, 60 if quick else amount.genes)
                of_turns.append(_ranked(shaped(predictor, amount), genes, seed))
    return {variant: _row(of_turns) for variant, of_turns in took.items()}


def shaped(predictor: Predictor, amount: Amount) -> Predictor:
    """Return a predictor whose attention is as strong as it is asked to be.

    Parameters
    ----------
    predictor
        Left as it is.
    amount
        Its betas and logits.
    """
    if not amount.betas:
        return predictor
    model = cast(Dango, copy.deepcopy(predictor.model))
    with torch.no_grad():
        genes = model.encode(predictor.cell).genes
        for part, beta in zip(model.hyper_sagnn.sets.attention, amount.betas, strict=True):
            layer = cast(OthersAttention, part)
            layer.beta.fill_(beta)
            hidden, heads = genes.shape[1], layer.heads
            query, key, _ = layer.query_key_value(genes[:512]).chunk(3, -1)
            by_head = torch.einsum(
                "ihx,jhx->hij", *(p.unflatten(-1, (heads, -1)) for p in (query, key))
            )
            logits = float(by_head.std(-1).mean()) / math.sqrt(hidden // heads)
            for weights in (layer.query_key_value.weight, layer.query_key_value.bias):
                weights[:hidden] *= amount.logits / logits
    return replace(predictor, model=model.eval())


def _row(of_turns: Sequence[Took]) -> dict[str, Any]:
    sets = of_turns[0].sets
    return {
        "sets_per_s": sets / statistics.median(took.wall_s for took in of_turns),
        "sets_per_cpu_s": sets / statistics.median(took.cpu_s for took in of_turns),
        "sets": sets,
        "setup_s": statistics.median(took.setup_s for took in of_turns),
        "sets_per_s_of_each": [sets / took.wall_s for took in of_turns],
    }


def _predictor(model: str, quick: bool, seed: int) -> Predictor:
    words = list((QUICK if quick else CONFIGS)[model])
    if not quick:
        words += ["data.folder=null", "data.screen=null", "data.synthetic=yeast"]
    config = compose(
        [
            *words,
            "data.synthetic_genotypes=1000",
            "data.screen_genes_only=false",
            "data.merge=null",
            "split.method=random",
            f"seed={seed}",
        ]
    )
    torch.manual_seed(seed)
    data = load_data(config)
    return Predictor(build_model(config, data.cell, data.largest).eval(), data.cell, data.standard)


@torch.no_grad()
def _loop(predictor: Predictor, n: int, batch: int, *, quick: bool, seed: int) -> Took:
    """Score triples in a plain loop."""
    n = n // 8 if quick else n
    triples = random_triples(predictor.cell, n, seed).genotypes
    batches = [triples.take(torch.arange(n)[at : at + batch]) for at in range(0, n, batch)]
    began = time.perf_counter()
    score: Callable[[Genotypes], Any]
    model, cell = predictor.model, predictor.cell
    if isinstance(model, Dango):
        score = partial(model.hyper_sagnn, model.encode(cell).genes)
    else:
        score = partial(model, cell)
    score(batches[0])
    ready, cpu = time.perf_counter(), time.process_time()
    for genotypes in batches:
        score(genotypes)
    return Took(n, time.perf_counter() - ready, time.process_time() - cpu, ready - began)


def _ranked(predictor: Predictor, n_genes: int, seed: int) -> Took:
    """Rank all triples of some genes."""
    rng = np.random.default_rng(seed)
    genes: Ints = np.sort(rng.choice(predictor.cell.n_genes, n_genes, replace=False))
    began = time.perf_counter()
    scorer = scorer_of_predictors([predictor])
    sets = Combinations(genes, 3)
    # What is made for triples, whichever they are, is made with the first.
    scorer.candidates(next(iter(Combinations(genes[:3], 3).pieces(0, 1))), np.inf, -np.inf)
    ready, cpu = time.perf_counter(), time.process_time()
    kept = Kept([Top(LOWEST, TOP, 3), Top(HIGHEST, TOP, 3)])
    for some in first_sets(sets, kept) if scorer.prunes else ():
        kept.offer(padded(scorer.score(some), 3))
    for block in sets.pieces(0, 1):
        kept.offer(padded(scorer.candidates(block, kept.above, kept.below), 3))
    wall, cpu = time.perf_counter() - ready, time.process_time() - cpu
    return Took(sets.n_sets, wall, cpu, ready - began)


def _rate(rows: Sequence[Mapping[str, Any]], model: str, variant: str) -> float:
    return next(
        float(row["sets_per_s"])
        for row in rows
        if (row["model"], row["variant"]) == (model, variant)
    )


def _bars(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    loop, ranked, unpruned = (
        _rate(rows, "dango", variant) for variant in ("loop", "ranked", "ranked_unpruned")
    )
    measured = {
        "dango_ranked_sets_per_s": (BARS["sets_per_s"], ranked),
        "dango_ranked_over_loop": (BARS["times_the_loop"], ranked / loop),
        "dango_unpruned_over_loop": (BARS["times_the_loop"], unpruned / loop),
    }
    return {
        name: {"at_least": bar, "measured": value, "met": value >= bar}
        for name, (bar, value) in measured.items()
    }


def _command(quick: bool, repeats: int) -> str:
    command = "deltacell bench predict"
    if repeats != 3:
        command += f" --repeats {repeats}"
    return command + (" --quick" if quick else "")
