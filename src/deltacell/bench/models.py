"""Cost of the models: training from end to end, ranking triples, and a step of DANGO."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
import torch

from deltacell.base.checks import check_choice
from deltacell.base.files import JsonObject
from deltacell.bench import process, subjects
from deltacell.cell import Cell
from deltacell.models.losses import DangoLoss
from deltacell.profile.phase_rows import PHASES, PhaseSummary, read_phases
from deltacell.profile.phases import PhaseTimer
from deltacell.profile.record import PHASES as PHASES_FOLDER
from deltacell.profile.record import read_run
from deltacell.ranking.ensemble import scorer_of_predictors
from deltacell.ranking.gene_sets import Combinations
from deltacell.ranking.kept import Kept
from deltacell.ranking.ranking_file import HIGHEST, LOWEST
from deltacell.ranking.search import DRAWN, SHARE_DRAWN
from deltacell.screen import Genotypes
from deltacell.train.config import Config
from deltacell.train.config.compose import compose, with_settings
from deltacell.train.data import load_data
from deltacell.train.predictor import TrainedPredictor, build_model
from deltacell.train.run import train as run_training

# --- training ---

_LATE = ("model.mutant_layers=1", "data.run_length=32")
#: The batch size of each model, and its settings in addition to the shipped config.
MODELS: dict[str, tuple[int, tuple[str, ...]]] = {
    "dango": (256, ()),
    "hetero_cell": (8, ()),
    "hetero_cell_late": (256, _LATE),
    "hetero_cell_epistasis": (256, (*_LATE, "model.epistasis=true")),
}
#: The model that the others are compared with.
REFERENCE = "dango"
#: The experiment of each model on a small cell.
QUICK_EXPERIMENTS = dict.fromkeys(MODELS, "demo_hetero") | {"dango": "demo"}
WARMUP = 3  # steps of a run that are not measured


def train(
    quick: bool = False,
    steps: int = 12,
    repeats: int = 5,
    models: Sequence[str] = tuple(MODELS),
    batch: int | None = None,
) -> JsonObject:
    """Train models for some steps, with the loop and the configs that users have.

    The models take turns, each in a separate process, and medians over the turns count.
    ``samples_per_s`` is based on the median time of a steady step, and ``data_wait_share`` on the
    phases of waiting for data and of transfer. ``phase_overhead`` is the share of a step spent in
    the phase timers, measured alone because runs with and without them differ less than the noise.
    ``component_overhead`` is the share of a training spent on recording components: what every
    switch of components costs, measured alone, and finding and hooking nodes, timed as it happens.
    """
    for model in models:
        check_choice("model", model, MODELS)
    settings = {"quick": quick, "steps": steps, "batch": batch}
    own = partial(process.in_own_process, measure_training, **settings)
    turns = process.in_turns({m: partial(own, model=m) for m in models}, repeats)
    rows = [process.median_row(of_model) for of_model in turns.values()]
    ratios = {
        f"{model}_over_dango_s_per_sample": median(
            turn["s_per_sample"] / dango["s_per_sample"]
            for turn, dango in zip(of_model, turns[REFERENCE], strict=True)
        )
        for model, of_model in turns.items()
        if model != REFERENCE and REFERENCE in turns
    }
    shares = ("data_wait_share", "phase_overhead", "component_overhead", "peak_mib")
    measured = {f"{row['model']}_{what}": row[what] for row in rows for what in shares}
    return {"rows": rows, "ratios": ratios, "measured": measured}


def measure_training(
    model: str,
    quick: bool,
    steps: int,
    batch: int | None = None,
) -> JsonObject:
    """Return the row of one training: rates and shares of its steady steps, and its sizes."""
    batches = steps + WARMUP
    n_trained = batches * (batch or MODELS[model][0])
    # Twice the genotypes trained on, and 1,000: no run reaches the end of an epoch.
    config = config_of(model, quick, 2 * n_trained + 1000, batch)
    with tempfile.TemporaryDirectory(prefix="deltacell-bench-") as folder:
        path = Path(folder) / "run"
        settings = {"directory": str(path), "mode_steps": batches, "trainer.progress": False}
        run_training(with_settings(config, settings))
        record = read_run(path)
        steady = PhaseSummary(read_phases(path / PHASES_FOLDER)).steady
    peak = process.peak_mib()
    seconds = median(steady["wall_s"])
    batch_size = record.batch_size or 1
    seconds_for_data = float(steady["data_wait_s"].sum()) + float(steady["transfer_s"].sum())
    choice = record.propagation and record.propagation["choice"]
    return {
        "model": model,
        "samples_per_s": batch_size / seconds,
        "data_wait_share": seconds_for_data / float(steady["wall_s"].sum()),
        "phase_overhead": timer_cost() / seconds,
        "component_overhead": record.component_cost,
        "s_per_step": seconds,
        "s_per_sample": seconds / batch_size,
        "peak_mib": peak,
        "batch_size": batch_size,
        "parameters": record.n_parameters,
        "propagation": choice and choice["choice"],
    }


def timer_cost(steps: int = 1000) -> float:
    """Return the seconds per step that the phase timers take, including writing their rows."""
    timer = PhaseTimer()
    with tempfile.TemporaryDirectory(prefix="deltacell-bench-") as folder:
        began = time.perf_counter()
        for step in range(steps):
            # A training step switches once per phase.
            for phase in PHASES:
                timer.switch(phase)
            timer.end_step(0, step, 1)
        timer.flush(folder, rank=0, attempt=0)
        return (time.perf_counter() - began) / steps


def config_of(model: str, quick: bool, genotypes: int, batch: int | None = None) -> Config:
    """Return the shipped config of a model, on a synthetic screen; each has a batch of its own."""
    own_batch, words = MODELS[model]
    if batch is None:
        batch = min(own_batch, 64) if quick else own_batch
    if quick:
        words += (f"experiment={QUICK_EXPERIMENTS[model]}",)
    else:
        words += (f"experiment=kuzmin2018_{model.partition('_')[0]}", "data.synthetic=yeast")
        words += ("data.folder=null", "data.screen=null", "data.screen_genes_only=false")
    sizes = (f"data.batch_size={batch}", f"data.synthetic_genotypes={genotypes}")
    return compose([*words, *sizes, "data.merge=null", "split.method=random", "seed=0"])


# --- ranking ---

TOP = 1000  # triples kept at each end
#: Number of triples of the loop, and its batch size.
LOOPS = {"dango": (40_960, 1024), "hetero_cell": (64, 8)}
#: How the loop scores genotypes, by model; those not listed are called. DANGO encodes once.
LOOP_SCORES: dict[str, Callable[[Any, Cell], Callable[[Genotypes], Any]]] = {
    "dango": lambda model, cell: partial(model.hyper_sagnn, model.encode(cell).genes),
}
#: Number of genes whose triples are all ranked, and betas of the attention layers. With betas, the
#: logits have standard deviation 1; the attention of initial weights is nearly uniform.
RANKED: dict[str, dict[str, tuple[int, tuple[float, ...]]]] = {
    "dango": {"ranked": (800, ()), "ranked_unpruned": (130, (0.25, 0.25))},
    "hetero_cell": {"ranked": (9, ())},
}


def predict(quick: bool = False, repeats: int = 3) -> JsonObject:
    """Rank the triples of some genes with both models; variants take turns, and medians count.

    A ranking keeps the 1,000 highest and lowest; the loop scores random triples and keeps none.
    Work done once per cell is in ``setup_s``. ``sets_per_cpu_s`` is based on processor time, which
    other programs hardly affect.
    """
    rows: list[JsonObject] = []
    for number, model in enumerate(LOOPS):
        process.progress(model, number, len(LOOPS))
        settings = {"model": model, "quick": quick, "repeats": repeats}
        rows += process.in_own_process(measure_ranking, **settings)["rows"]
    dango = {row["variant"]: row for row in rows if row["model"] == REFERENCE}
    measured = {
        "dango_ranked_sets_per_s": dango["ranked"]["sets_per_s"],
        "dango_ranked_over_loop": dango["ranked"]["times_the_loop"],
        "dango_unpruned_over_loop": dango["ranked_unpruned"]["times_the_loop"],
    }
    return {"rows": rows, "measured": measured}


def measure_ranking(*, model: str, quick: bool, repeats: int) -> JsonObject:
    """Return the rows of one model: a plain loop, and rankings compared with it."""
    n_triples, batch = LOOPS[model]
    if quick:
        n_triples //= 8
    torch.manual_seed(0)
    config = config_of(model, quick, 1000)
    data = load_data(config)
    predictor = TrainedPredictor(build_model(config, data).eval(), data.cell, data.standard)
    make_score = LOOP_SCORES.get(model, partial)
    ways = {"loop": partial(loop, predictor, make_score, n_triples, batch)}
    for name, (genes, betas) in RANKED[model].items():
        genes = min(genes, 60) if quick else genes
        ways[name] = partial(ranked, shaped(predictor, betas), genes)
    rows = []
    for name, turns in process.in_turns(ways, repeats).items():
        rows.append({"model": model, "variant": name, **process.median_row(turns)})
        rows[-1]["times_the_loop"] = rows[-1]["sets_per_s"] / rows[0]["sets_per_s"]
    return {"rows": rows}


def shaped(predictor: TrainedPredictor, betas: tuple[float, ...]) -> TrainedPredictor:
    """Return a copy of DANGO whose attention differs between genes, as after a training.

    Each layer has a beta. Without betas the predictor is returned as it is.
    """
    if not betas:
        return predictor
    network = cast(subjects.ReconstructingNetwork, predictor.model)
    model = network.with_spread_attention(predictor.cell, betas)
    return replace(predictor, model=model.eval())


@torch.no_grad()
def loop(
    predictor: TrainedPredictor,
    make_score: Callable[[Any, Cell], Callable[[Genotypes], Any]],
    n: int,
    batch: int,
) -> JsonObject:
    """Return the rates of scoring random triples in batches, one after the other."""
    triples = process.random_genotypes(predictor.cell, n)
    batches = [
        triples.take(torch.arange(start, min(start + batch, n))) for start in range(0, n, batch)
    ]
    began = time.perf_counter()
    score = make_score(predictor.model, predictor.cell)
    score(batches[0])
    ready = time.perf_counter()
    cpu = time.process_time()
    for genotypes in batches:
        score(genotypes)
    return _rates(n, began, ready, cpu)


def ranked(predictor: TrainedPredictor, n_genes: int) -> JsonObject:
    """Return the rates of ranking all triples of some genes."""
    rng = np.random.default_rng(0)
    genes = np.sort(rng.choice(predictor.cell.n_genes, n_genes, replace=False))
    began = time.perf_counter()
    scorer = scorer_of_predictors([predictor])
    sets = Combinations(genes, 3)
    # The first triple prepares the tables for all others.
    scorer.candidates(next(Combinations(genes[:3], 3).pieces(0, 1)), np.inf, -np.inf)
    ready = time.perf_counter()
    cpu = time.process_time()
    kept = Kept(3, {LOWEST: None, HIGHEST: None}, TOP)
    if scorer.prunes:
        kept.offer(scorer.score(sets.draw(min(DRAWN, sets.n_sets // SHARE_DRAWN), seed=0)))
    for block in sets.pieces(0, 1):
        kept.offer(scorer.candidates(block, kept.above, kept.below))
    return _rates(sets.n_sets, began, ready, cpu)


def _rates(sets: int, began: float, ready: float, cpu: float) -> JsonObject:
    rates = {"sets_per_s": sets / (time.perf_counter() - ready)}
    rates["sets_per_cpu_s"] = sets / (time.process_time() - cpu)
    return {**rates, "sets": sets, "setup_s": ready - began}


# --- a step of DANGO ---

VARIANTS = ("dense", "closed_form")


def dango(batch: int = 64, steps: int = 5, quick: bool = False) -> JsonObject:
    """Measure full DANGO steps with both forms of the loss, each in a separate process.

    A step is forward, loss, backward and AdamW on random triples of a synthetic cell, the same for
    both. The adjacencies of the dense form are made before the first step, and count neither as
    time nor as memory. The median of the steps after the first one counts.
    """
    settings = {"cell": "demo" if quick else "yeast", "batch": batch, "steps": steps}
    rows = []
    for number, variant in enumerate(VARIANTS):
        process.progress(variant, number, len(VARIANTS))
        rows.append(process.in_own_process(measure_dango, variant=variant, **settings))
    dense, closed = rows
    ratios = {
        "times_faster": dense["step_s"] / closed["step_s"],
        "part_of_the_memory": closed["peak_mib"] / max(dense["peak_mib"], 1e-9),
        "relative_difference_of_loss": abs(closed["loss"] - dense["loss"]) / abs(dense["loss"]),
    }
    return {"rows": rows, "ratios": ratios}


def measure_dango(*, variant: str, cell: str, batch: int, steps: int) -> JsonObject:
    """Return the row of one form of the loss: seconds and memory of a step, and the last loss."""
    wild_type = Cell.synthetic(cell)
    genotypes = process.random_genotypes(wild_type, batch)
    torch.manual_seed(0)
    targets = 0.05 * torch.randn(batch)
    model = subjects.network(REFERENCE, wild_type)
    if variant == "dense":
        model = cast(subjects.ReconstructingNetwork, model).with_dense_loss(wild_type)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=1e-6)
    criterion = DangoLoss()
    memory = process.PeakMemory()
    seconds = []
    for _ in range(steps + 1):
        began = time.perf_counter()
        optimizer.zero_grad()
        prediction = model(wild_type, genotypes, wanted=criterion.reads)
        loss = criterion(prediction, targets, epoch=5).total
        torch.autograd.backward(loss)
        optimizer.step()
        last = float(loss.detach())
        seconds.append(time.perf_counter() - began)
    step_s = median(seconds[1:])
    return {"variant": variant, "step_s": step_s, "peak_mib": memory.mib(), "loss": last}
