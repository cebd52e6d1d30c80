"""How many triples per second both models rank, beside a plain loop of batches."""

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

from deltacell.bench.data import random_triples
from deltacell.bench.process import counted, in_own_process, machine
from deltacell.bench.train import CONFIGS, QUICK
from deltacell.errors import InputError
from deltacell.models import Dango
from deltacell.models.hyper_sagnn import OthersAttention
from deltacell.predict.ensemble import scorer_of_predictors
from deltacell.predict.gene_sets import Combinations
from deltacell.predict.kept import End, Kept
from deltacell.predict.ranking_file import HIGHEST, LOWEST
from deltacell.predict.search import first_sets
from deltacell.train.build import build_model
from deltacell.train.compose import compose
from deltacell.train.data import load_data
from deltacell.train.predictor import Predictor
from deltacell.words import Progress

TOP = 1000  # triples kept at each end
BARS = {"sets_per_s": 200_000, "times_the_loop": 1.5}  # for ranking with DANGO
LOOPED = {"dango": (40_960, 1024), "hetero_cell": (64, 8)}  # triples of the loop, and of a batch


class Variant(NamedTuple):
    """A ranking to measure."""

    genes: int  # all triples of so many genes are ranked
    what: str
    betas: tuple[float, ...] = ()  # of the attention layers; as they are where empty
    logits: float = 0.0  # the deviation of the attention's logits, with betas


RANKED: Mapping[str, Mapping[str, Variant]] = {
    "dango": {
        "ranked": Variant(800, "new weights: attention is nearly uniform"),
        "ranked_trained": Variant(
            500, "betas 0.25 and 0.001, attention far from uniform", (0.25, 0.001), 1.0
        ),
        "ranked_unpruned": Variant(
            130, "betas 0.25 and 0.25, attention far from uniform", (0.25, 0.25), 1.0
        ),
    },
    "hetero_cell": {"ranked": Variant(9, "the wild type cached, every mutant alone")},
}
LOOP = {
    "dango": "batches through Hyper-SAGNN over cached gene vectors",
    "hetero_cell": "batches through the whole model",
}


class Took(NamedTuple):
    """What scoring some sets took, in seconds of the clock and of the processor."""

    sets: int
    wall_s: float
    cpu_s: float
    setup_s: float


def run(
    progress: Progress | None = None, quick: bool = False, *, repeats: int = 3, seed: int = 0
) -> dict[str, Any]:
    """Rank the triples of some genes by both models, the variants in turns; medians count.

    A ranking keeps the 1,000 highest and lowest. It begins with sets that give good thresholds, as
    `deltacell predict` does, and they are in its time. What is done once per cell whatever is
    ranked is in ``setup_s``. The loop scores random triples and keeps nothing. ``sets_per_cpu_s``
    is by the time that the processor worked, which other programs hardly change. With ``quick`` it
    is the small synthetic cell, and no bar applies.
    """
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; expected at least 1", code="too-few-repeats")
    told = counted(progress, repeats * sum(1 + len(variants) for variants in RANKED.values()))
    rows: list[dict[str, Any]] = []
    for model, variants in RANKED.items():
        settings = {"model": model, "quick": quick, "repeats": repeats, "seed": seed}
        measured = in_own_process("deltacell.bench.predict:measure", settings, told)
        for variant, row in measured.items():
            what = LOOP[model] if variant == "loop" else variants[variant].what
            row["times_the_loop"] = row["sets_per_s"] / measured["loop"]["sets_per_s"]
            rows.append({"model": model, "variant": variant, **row, "what": what})
    repeated = "" if repeats == 3 else f" --repeats {repeats}"
    return {
        "benchmark": "predict",
        "command": f"deltacell bench predict{repeated}{' --quick' if quick else ''}",
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
    *, model: str, quick: bool, repeats: int, seed: int, tell: Callable[[dict[str, Any]], None]
) -> dict[str, dict[str, Any]]:
    """Return what the variants of one model took, in this process."""
    predictor = _predictor(model, quick, seed)
    took: dict[str, list[Took]] = {name: [] for name in ("loop", *RANKED[model])}
    for turn in range(repeats):
        for name, of_turns in took.items():
            tell({"what": f"{model} {name}, {turn + 1} of {repeats}"})
            if name == "loop":
                n, batch = LOOPED[model]
                of_turns.append(_loop(predictor, n // 8 if quick else n, batch, seed))
            else:
                variant = RANKED[model][name]
                genes = min(variant.genes, 60) if quick else variant.genes
                of_turns.append(_ranked(shaped(predictor, variant), genes, seed))
    return {name: _row(of_turns) for name, of_turns in took.items()}


def shaped(predictor: Predictor, variant: Variant) -> Predictor:
    """Return a predictor whose attention is as strong as a variant has it."""
    if not variant.betas:
        return predictor
    model = cast(Dango, copy.deepcopy(predictor.model))
    with torch.no_grad():
        genes = model.encode(predictor.cell).genes
        for part, beta in zip(model.hyper_sagnn.sets.attention, variant.betas, strict=True):
            layer = cast(OthersAttention, part)
            layer.beta.fill_(beta)
            hidden, heads = genes.shape[1], layer.heads
            query, key, _ = layer.query_key_value(genes[:512]).chunk(3, -1)
            by_head = torch.einsum(
                "ihx,jhx->hij", *(p.unflatten(-1, (heads, -1)) for p in (query, key))
            )
            logits = float(by_head.std(-1).mean()) / math.sqrt(hidden // heads)
            for weights in (layer.query_key_value.weight, layer.query_key_value.bias):
                weights[:hidden] *= variant.logits / logits
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
    words += ["data.synthetic_genotypes=1000", "data.screen_genes_only=false", "data.merge=null"]
    config = compose([*words, "split.method=random", f"seed={seed}"])
    torch.manual_seed(seed)
    data = load_data(config)
    return Predictor(build_model(config, data.cell, data.largest).eval(), data.cell, data.standard)


@torch.no_grad()
def _loop(predictor: Predictor, n: int, batch: int, seed: int) -> Took:
    """Score triples in a plain loop."""
    triples = random_triples(predictor.cell, n, seed).genotypes
    batches = [triples.take(torch.arange(n)[at : at + batch]) for at in range(0, n, batch)]
    began = time.perf_counter()
    model, cell = predictor.model, predictor.cell
    score: Callable[[Any], Any] = partial(model, cell)
    if isinstance(model, Dango):
        score = partial(model.hyper_sagnn, model.encode(cell).genes)
    score(batches[0])
    ready, cpu = time.perf_counter(), time.process_time()
    for genotypes in batches:
        score(genotypes)
    return Took(n, time.perf_counter() - ready, time.process_time() - cpu, ready - began)


def _ranked(predictor: Predictor, n_genes: int, seed: int) -> Took:
    """Rank all triples of some genes."""
    rng = np.random.default_rng(seed)
    genes = np.sort(rng.choice(predictor.cell.n_genes, n_genes, replace=False))
    began = time.perf_counter()
    scorer = scorer_of_predictors([predictor])
    sets = Combinations(genes, 3)
    # What is made for all triples is made with the first.
    scorer.candidates(next(Combinations(genes[:3], 3).pieces(0, 1)), np.inf, -np.inf)
    ready, cpu = time.perf_counter(), time.process_time()
    kept = Kept([End(LOWEST, 3, top=TOP), End(HIGHEST, 3, top=TOP)])
    for some in first_sets(sets, kept) if scorer.prunes else ():
        kept.offer(scorer.score(some).padded(3))
    for block in sets.pieces(0, 1):
        kept.offer(scorer.candidates(block, kept.above, kept.below).padded(3))
    wall, cpu = time.perf_counter() - ready, time.process_time() - cpu
    return Took(sets.n_sets, wall, cpu, ready - began)


def _bars(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    dango = {row["variant"]: row["sets_per_s"] for row in rows if row["model"] == "dango"}
    measured = {
        "dango_ranked_sets_per_s": (BARS["sets_per_s"], dango["ranked"]),
        "dango_ranked_over_loop": (BARS["times_the_loop"], dango["ranked"] / dango["loop"]),
        "dango_unpruned_over_loop": (
            BARS["times_the_loop"],
            dango["ranked_unpruned"] / dango["loop"],
        ),
    }
    return {
        name: {"at_least": bar, "measured": value, "met": value >= bar}
        for name, (bar, value) in measured.items()
    }
