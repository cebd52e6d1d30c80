"""What a demonstration came to: all that its page shows."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from deltacell.demo.recovered import FIRST, Recovered, recovered
from deltacell.demo.steps import (
    EVALUATION,
    EXPERIMENTS,
    EXPLANATION,
    EXPLANATION_PAGE,
    FIGURES,
    RANKING,
    RANKING_PAGE,
    steps,
)
from deltacell.predict.ranking import LOWEST
from deltacell.profile.record import SPLIT, RunRecord, read_run
from deltacell.train.data import load_data
from deltacell.train.run_directory import resumed_config

TITLES = {"pairs": "Pair trees", "dango": "DANGO", "hetero_cell": "HeteroCell"}


def results(
    folder: str | os.PathLike[str], seed: int, seconds: float | None = None
) -> dict[str, Any]:
    """Return what the steps left in a folder, as `report.demo_page.demo_page` takes it.

    Parameters
    ----------
    folder
        That all `steps` were done in.
    seed
        Of all that was drawn.
    seconds
        How long it took.
    """
    folder = Path(folder)
    evaluation, explanation = _read(folder / EVALUATION), _read(folder / EXPLANATION)
    run = folder / next(iter(EXPERIMENTS))
    data = load_data(resumed_config(run), run / SPLIT)
    head = head_of_ranking(folder)
    truth = recovered(data.cell, data.screen, [row["genes"] for row in head], seed)
    records = {model: read_run(folder / model) for model in EXPERIMENTS}
    scores = evaluation["groups"][0]["scores"]
    names = {record.name for record in records.values()}
    kinds = data.screen.stats()["kinds"]
    return {
        "seed": seed,
        "seconds": seconds,
        "cell": {
            "screened genes": data.cell.n_genes,
            "relations": len(data.cell.relations),
            "edges": sum(r.n_edges for r in data.cell.relations.values()),
        },
        "screen": {"genotypes": len(data.screen), **kinds},
        "models": [_model(model, record, evaluation) for model, record in records.items()],
        "baselines": [
            {"name": name, "pearson": _interval(score["pearson"])}
            for name, score in scores.items()
            if name not in names
        ],
        "best_baseline": _best_baseline(scores, {r.name: TITLES[m] for m, r in records.items()}),
        "comparison": explanation["sentence"],
        "recovered": {
            "sentence": sentence(truth),
            "found": truth.found,
            "of": len(truth.planted),
            "chance": round(truth.chance, 2),
            "sets": truth.sets,
            "planted": truth.planted_sets,
        },
        "ranking": [
            {**{key: row[key] for key in ("genes", "names", "score", "spread")}, "planted": planted}
            for row, planted in zip(head, truth.planted, strict=True)
        ],
        "links": [
            {"file": file, "title": title, "words": words}
            for file, title, words in _LINKS
            if (folder / file).exists()
        ],
        "steps": [
            {
                "title": step.title,
                "words": step.words,
                "command": shlex.join(["deltacell", *step.command]),
            }
            for step in steps(folder, seed)
        ],
        "next": [{"words": words, "command": command} for words, command in _NEXT],
    }


def head_of_ranking(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the rows at the lower end of the ranking in a folder, the sickest first.

    Parameters
    ----------
    folder
        That the last of `steps` was done in.
    """
    rows = _read(Path(folder) / RANKING)["rows"]
    return [row for row in rows if row["end"] == LOWEST][:FIRST]


def sentence(truth: Recovered) -> str:
    """Return in words how much of the head of a ranking is true."""
    return (
        f"{truth.found} of the {len(truth.planted)} untested triples at the head of the ranking "
        f"have a planted interaction; by chance {truth.chance:.1f} would."
    )


def _model(model: str, record: RunRecord, evaluation: Mapping[str, Any]) -> dict[str, Any]:
    whole = evaluation["groups"][0]
    metrics = record.metrics()
    # What is fitted in one call has trees, and no epochs.
    fitted = model == "pairs"
    curve = () if fitted else zip(metrics["epoch"], metrics["validation_pearson"], strict=True)
    limit = "It is fitted in one call." if fitted else "Where its time goes was not recorded."
    return {
        "name": TITLES[model],
        "parameters": record.n_parameters,
        "epochs": None if fitted else len(metrics),
        "seconds": _seconds(record),
        "curve": [{"epoch": epoch, "pearson": pearson} for epoch, pearson in curve],
        "pearson": _interval(whole["scores"][record.name]["pearson"]),
        "verdict": _against_additive(record.name, whole),
        "limit": record.limits or limit,
    }


def _against_additive(name: str, whole: Mapping[str, Any]) -> str:
    """Return whether a model beats the additive baseline on the whole test part."""
    own, difference = whole["scores"][name], whole["differences"][name]["additive"]["pearson"]
    if difference["low"] is None:
        return f"Cannot be compared with the additive baseline: {difference['reason']}."
    beats = "Beats" if difference["low"] > 0 else "Does not beat"
    return (
        f"{beats} the additive baseline on test: Pearson {own['pearson']['value']:.3f}, a "
        f"difference of {difference['value']:+.3f} ({difference['low']:+.3f} to "
        f"{difference['high']:+.3f})."
    )


def _best_baseline(scores: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """Return which baseline has the highest Pearson, and which models have a higher one."""
    pearson = {
        name: score["pearson"]["value"]
        for name, score in scores.items()
        if score["pearson"]["value"] is not None
    }
    baselines = [name for name in pearson if name not in titles]
    if not baselines:
        return "No baseline tells the genotypes apart."
    best = max(baselines, key=lambda name: pearson[name])
    above = [titles[name] for name in pearson if name in titles and pearson[name] > pearson[best]]
    said = f"above it: {' and '.join(above)}" if above else "no model is above it here"
    return f"the baseline {best} has a Pearson of {pearson[best]:.3f}; {said}."


def _interval(estimate: Mapping[str, Any]) -> dict[str, float | None]:
    return {key: estimate[key] for key in ("value", "low", "high")}


def _seconds(record: RunRecord) -> float | None:
    if record.ended is None:
        return None
    begin, end = (datetime.fromisoformat(at) for at in (record.started, record.ended))
    return (end - begin).total_seconds()


def _read(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read


_LINKS = (
    (RANKING_PAGE, "The ranking", "search by gene, filter by evidence, see the network of a set"),
    (EXPLANATION_PAGE, "Why HeteroCell is slower", "where every moment of a step goes in both"),
    ("evaluation.md", "The evaluation", "all metrics with intervals, by number of unseen genes"),
    (f"{FIGURES}/demo_pairs-predicted.png", "Predicted against measured", "on the test part"),
    ("dango/figures/learning.svg", "DANGO's learning curve", "as the run drew it"),
    ("hetero_cell/figures/learning.svg", "HeteroCell's learning curve", "as the run drew it"),
)

_NEXT = (
    (
        "Put your networks and your screen, as tables, into one folder; files are told by their "
        "content, and what is dropped is counted. docs/how-to/screen.md says which columns a "
        "screen needs.",
        "deltacell data import FOLDER --out data",
    ),
    (
        "Train on it. Rerun the command to resume where it was stopped.",
        "deltacell train model=pair_trees data.folder=data directory=runs/mine",
    ),
    ("See whether it beats the baselines.", "deltacell evaluate runs/mine"),
    (
        "Rank what was never tested, with the evidence for each set.",
        "deltacell predict runs/mine --sets pairs --html pairs.html",
    ),
    ("Ask why one set scores as it does.", 'deltacell why runs/mine "GENE GENE"'),
    ("Ask where the time of a run goes.", "deltacell explain runs/mine"),
)
