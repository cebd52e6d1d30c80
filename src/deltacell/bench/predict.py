"""How many triples per second both models rank, beside a plain loop of batches."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from deltacell.bench import process
from deltacell.bench.data import random_triples
from deltacell.bench.process import silent
from deltacell.bench.train import CONFIGS, QUICK
from deltacell.models import Dango
from deltacell.models.base import check_range
from deltacell.models.hyper_sagnn import OthersAttention
from deltacell.predict.ensemble import scorer_of_predictors
from deltacell.predict.gene_sets import Combinations
from deltacell.predict.ranking_file import HIGHEST, LOWEST
from deltacell.predict.search import Kept, first_sets
from deltacell.train.compose import compose
from deltacell.train.data import load_data
from deltacell.train.predictor import Predictor, build_model
from deltacell.words import Progress

TOP = 1000  # triples kept at each end
#: Triples of the loop, and its batch.
LOOPS = {"dango": (40_960, 1024), "hetero_cell": (64, 8)}
#: Genes whose triples are all ranked, and betas of the attention layers, whose logits then have
#: deviation 1: far from uniform, where new weights are nearly uniform.
RANKED: dict[str, dict[str, tuple[int, tuple[float, ...]]]] = {
    "dango": {
        "ranked": (800, ()),
        "ranked_trained": (500, (0.25, 0.001)),
        "ranked_unpruned": (130, (0.25, 0.25)),
    },
    "hetero_cell": {"ranked": (9, ())},
}


def run(quick: bool = False, repeats: int = 3, *, progress: Progress = silent) -> dict[str, Any]:
    """Rank the triples of some genes by both models, the variants in turns; medians count.

    A ranking keeps the 1,000 highest and lowest; the loop scores random triples and keeps nothing.
    What is done once per cell is in ``setup_s``. ``sets_per_cpu_s`` is by the time that the
    processor worked, which other programs hardly change.
    """
    check_range("[1, inf)", repeats=repeats)
    rows: list[dict[str, Any]] = []
    for number, model in enumerate(LOOPS):
        progress(model, number, len(LOOPS))
        rows += process.in_own_process(measure, model=model, quick=quick, repeats=repeats)["rows"]
    dango = {row["variant"]: row for row in rows if row["model"] == "dango"}
    measured = {
        "dango_ranked_sets_per_s": dango["ranked"]["sets_per_s"],
        "dango_ranked_over_loop": dango["ranked"]["times_the_loop"],
        "dango_unpruned_over_loop": dango["ranked_unpruned"]["times_the_loop"],
    }
    return {"rows": rows, "measured": measured}


def measure(*, model: str, quick: bool, repeats: int) -> dict[str, Any]:
    predictor, (triples, batch) = _predictor(model, quick), LOOPS[model]
    ways = {"loop": partial(loop, predictor, triples // (8 if quick else 1), batch)}
    for name, (genes, betas) in RANKED[model].items():
        genes = min(genes, 60) if quick else genes
        ways[name] = partial(ranked, shaped(predictor, betas), genes)
    rows = []
    for name, turns in process.in_turns(ways, repeats).items():
        rows.append({"model": model, "variant": name, **process.median_row(turns)})
        rows[-1]["times_the_loop"] = rows[-1]["sets_per_s"] / rows[0]["sets_per_s"]
    return {"rows": rows}


def shaped(predictor: Predictor, betas: tuple[float, ...]) -> Predictor:
    if not betas:
        return predictor
    model = cast(Dango, copy.deepcopy(predictor.model))
    with torch.no_grad():
        genes = model.encode(predictor.cell).genes
        for part, beta in zip(model.hyper_sagnn.sets.attention, betas, strict=True):
            layer = cast(OthersAttention, part)
            layer.beta.fill_(beta)
            hidden, heads = genes.shape[1], layer.heads
            query, key, _ = layer.query_key_value(genes[:512]).chunk(3, -1)
            by_head = torch.einsum(
                "ihx,jhx->hij", *(p.unflatten(-1, (heads, -1)) for p in (query, key))
            )
            deviation = float(by_head.std(-1).mean()) / math.sqrt(hidden // heads)
            for weights in (layer.query_key_value.weight, layer.query_key_value.bias):
                weights[:hidden] /= deviation
    return replace(predictor, model=model.eval())


def _predictor(name: str, quick: bool) -> Predictor:
    words = list((QUICK if quick else CONFIGS)[name])
    if not quick:
        words += ["data.folder=null", "data.screen=null", "data.synthetic=yeast"]
    words += ["data.synthetic_genotypes=1000", "data.screen_genes_only=false", "data.merge=null"]
    config = compose([*words, "split.method=random", "seed=0"])
    torch.manual_seed(0)
    data = load_data(config)
    return Predictor(build_model(config, data).eval(), data.cell, data.standard)


@torch.no_grad()
def loop(predictor: Predictor, n: int, batch: int) -> dict[str, Any]:
    triples = random_triples(predictor.cell, n).genotypes
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
    return _rates(n, began, ready, cpu)


def ranked(predictor: Predictor, n_genes: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    genes = np.sort(rng.choice(predictor.cell.n_genes, n_genes, replace=False))
    began = time.perf_counter()
    scorer = scorer_of_predictors([predictor])
    sets = Combinations(genes, 3)
    # What is made for all triples is made with the first.
    scorer.candidates(next(Combinations(genes[:3], 3).pieces(0, 1)), np.inf, -np.inf)
    ready, cpu = time.perf_counter(), time.process_time()
    kept = Kept(3, {LOWEST: None, HIGHEST: None}, TOP)
    for some in first_sets(sets, kept) if scorer.prunes else ():
        kept.offer(scorer.score(some))
    for block in sets.pieces(0, 1):
        kept.offer(scorer.candidates(block, kept.above, kept.below))
    return _rates(sets.n_sets, began, ready, cpu)


def _rates(sets: int, began: float, ready: float, cpu: float) -> dict[str, Any]:
    rates = {"sets_per_s": sets / (time.perf_counter() - ready)}
    rates["sets_per_cpu_s"] = sets / (time.process_time() - cpu)
    return {**rates, "sets": sets, "setup_s": ready - began}
