"""What `deltacell demo` does, as commands, and how much of the planted truth it found."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.files import TEMPORARY
from deltacell.predict.ensemble import genotypes_of
from deltacell.predict.gene_sets import Combinations
from deltacell.predict.ranking_file import LOWEST
from deltacell.predict.request import DISTANCE
from deltacell.predict.status import LINKED, STATUSES, UNTESTED, Linkage, Statuses
from deltacell.profile.record import SPLIT, RunRecord, read_run
from deltacell.screen import Screen
from deltacell.screen.import_folder import ACCOUNT
from deltacell.screen.synthetic import Planted
from deltacell.store import MANIFEST, read_manifest
from deltacell.train.data import load_data
from deltacell.train.run_directory import resumed_config

EXPERIMENTS = {"pairs": "demo_pairs", "dango": "demo", "hetero_cell": "demo_hetero"}
"""The experiment that trains each model, in the order in which they are shown."""

# What the steps leave in the folder.
EVALUATION, EXPLANATION, RANKING = "evaluation.json", "explanation.json", "ranking.json"
EVALUATION_PAGE, EXPLANATION_PAGE = "evaluation.md", "explanation.html"
RANKING_PAGE, RANKING_FILE = "ranking.html", "ranking.parquet"
FIGURES, PAGE = "figures", "index.html"
DATA, SCREEN = {"cell", "screens", MANIFEST, ACCOUNT}, "synthetic"
LEFT = {
    *(EVALUATION, EVALUATION_PAGE, EXPLANATION, EXPLANATION_PAGE, FIGURES, PAGE),
    *(RANKING, RANKING_PAGE, RANKING_FILE, f"{RANKING_FILE}.partial"),
}


class Step(NamedTuple):
    """One step of the demonstration."""

    title: str
    words: str  # what it is for
    command: tuple[str, ...]  # what follows `deltacell`


def steps(folder: str | os.PathLike[str], seed: int = 0) -> list[Step]:
    """Return what the demonstration does, in order."""
    folder = Path(folder)
    runs = [str(folder / model) for model in EXPERIMENTS]
    # Validation has five unseen genes here: too few to choose an epoch by.
    weights = ("--weights", "last")

    def train(model: str) -> tuple[str, ...]:
        return (
            *("train", f"experiment={EXPERIMENTS[model]}", "data.synthetic=null"),
            *(f"data.folder={_quoted(folder)}", f"seed={seed}", f"split.seed={seed}"),
            f"directory={_quoted(folder / model)}",
        )

    return [
        Step(
            "make a cell and its screen",
            "A synthetic cell of 300 genes in pathways, and 7,000 crosses of its genes. What "
            "interacts was planted, so the truth is known.",
            ("data", "synthetic", "demo", "--out", str(folder), "--seed", str(seed), "--overwrite"),
        ),
        Step(
            "train pair trees",
            "They learn from what was measured next to a set of genes. A fifth of the genes is "
            "held out of the training of every model, to test it on.",
            train("pairs"),
        ),
        Step("train DANGO", "It passes messages on the wild type only.", train("dango")),
        Step(
            "train HeteroCell",
            "It passes messages in every mutant, each computed as an exact difference from the "
            "wild type.",
            train("hetero_cell"),
        ),
        Step(
            "test all of them beside the baselines",
            "On the same genotypes, each with a gene that no predictor has seen. A model has "
            "learned something where it beats the additive one, which knows single genes only.",
            (
                *("evaluate", *runs, *weights, "--figures", str(folder / FIGURES)),
                *("--markdown", str(folder / EVALUATION_PAGE)),
                *("--json", str(folder / EVALUATION)),
            ),
        ),
        Step(
            "explain why HeteroCell is slower than DANGO",
            "Both runs recorded where every moment of a step went.",
            (
                *("explain", *runs[1:], "--html", str(folder / EXPLANATION_PAGE)),
                *("--json", str(folder / EXPLANATION)),
            ),
        ),
        Step(
            "rank every untested triple",
            "The model that did best on validation scores all triples of the screen's genes. Of "
            "those that were never tested and can be crossed, the lowest and the highest are kept, "
            "with the evidence for each.",
            (
                *("predict", *runs, "--best", *weights, "--sets", "triples", "--top", "200"),
                *("--out", str(folder / RANKING_FILE), "--overwrite"),
                *("--html", str(folder / RANKING_PAGE), "--json", str(folder / RANKING)),
            ),
        ),
    ]


def clear(folder: str | os.PathLike[str]) -> None:
    """Remove all of an earlier demonstration but its cell; anything else there is an error."""
    folder = Path(folder)
    if not folder.exists():
        return
    entries = list(folder.iterdir()) if folder.is_dir() else [folder]
    own = [
        entry
        for entry in entries
        if entry.name in LEFT | EXPERIMENTS.keys()
        or (entry.name.startswith(".") and entry.name.endswith(TEMPORARY))
    ]
    others = {entry.name for entry in entries} - {entry.name for entry in own}
    # A user's own data are called a cell and screens too, and must not be replaced.
    if entries and not (others == DATA and read_manifest(folder)["meta"]["screens"] == [SCREEN]):
        raise InputError(
            "the folder holds something else than a demo",
            code="not-a-demo",
            where=folder,
            fix="Choose another place: deltacell demo --out DIRECTORY",
        )
    for entry in own:
        if entry.name in EXPERIMENTS:
            read_run(entry)
    for entry in own:
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _quoted(path: Path) -> str:
    """Return a path as an override has it: in quotes where Hydra needs them."""
    plain = all(c.isalnum() or c in "/._-" for c in str(path))
    return str(path) if plain else f"'{path}'"


FIRST = 20  # sets at the head of a ranking that are held against the truth
TITLES = {"pairs": "Pair trees", "dango": "DANGO", "hetero_cell": "HeteroCell"}


class Recovered(NamedTuple):
    """How much of the head of a ranking is true."""

    planted: tuple[bool, ...]  # of each set at the head, whether it has a planted interaction
    sets: int  # untested sets that were ranked
    planted_sets: int  # of them

    @property
    def found(self) -> int:
        """How many sets at the head are planted ones."""
        return sum(self.planted)

    @property
    def chance(self) -> float:
        """How many of as many random sets would be."""
        return len(self.planted) * self.planted_sets / self.sets


def recovered(cell: Cell, screen: Screen, sets: Sequence[Sequence[str]], seed: int) -> Recovered:
    """Compare the head of a ranking of untested triples, by gene names, with the planted truth.

    ``cell`` is the synthetic cell, or the part of it that was screened, and ``seed`` that of the
    screen.
    """
    planted = Planted.of(cell, seed)
    head = np.array([[cell.genes.index(name) for name in names] for names in sets[:FIRST]])
    n_sets = n_planted = 0
    genes = np.unique(screen.genotypes.genes.numpy())
    linkage, statuses = Linkage(cell.genes, DISTANCE), Statuses([screen], ["interaction"])
    for block in Combinations(genes, 3).pieces(0, 1):
        ranked = np.sort(block.sets(), axis=1)
        ranked = ranked[linkage.of(ranked) != LINKED]
        ranked = ranked[statuses.of(ranked) == STATUSES.index(UNTESTED)]
        n_sets += len(ranked)
        n_planted += int(planted.is_planted(genotypes_of(ranked)).sum())
    is_planted = planted.is_planted(genotypes_of(head.reshape(-1, 3)))
    return Recovered(tuple(is_planted.tolist()), n_sets, n_planted)


def results(
    folder: str | os.PathLike[str], seed: int, seconds: float | None = None
) -> dict[str, Any]:
    """Return what the steps left in a folder, as `report.demo_page.demo_page` takes it."""
    folder = Path(folder)
    evaluation, explanation = _read(folder / EVALUATION), _read(folder / EXPLANATION)
    run = folder / next(iter(EXPERIMENTS))
    data = load_data(resumed_config(run), run / SPLIT)
    head = head_of_ranking(folder)
    truth = recovered(data.cell, data.screen, [row["genes"] for row in head], seed)
    records = {model: read_run(folder / model) for model in EXPERIMENTS}
    titles = {record.name: TITLES[model] for model, record in records.items()}
    scores = evaluation["groups"][0]["scores"]
    return {
        "seed": seed,
        "seconds": seconds,
        "cell": {
            "screened genes": data.cell.n_genes,
            "relations": len(data.cell.relations),
            "edges": sum(r.n_edges for r in data.cell.relations.values()),
        },
        "screen": {"genotypes": len(data.screen), **data.screen.stats()["kinds"]},
        "models": [_model(model, record, evaluation) for model, record in records.items()],
        "baselines": [
            {"name": name, "pearson": _interval(score["pearson"])}
            for name, score in scores.items()
            if name not in titles
        ],
        "best_baseline": _best_baseline(scores, titles),
        "comparison": explanation["sentence"],
        "recovered": {
            "sentence": f"{truth.found} of the {len(truth.planted)} untested triples at the head "
            f"of the ranking have a planted interaction; by chance {truth.chance:.1f} would.",
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
            for file, title, words in LINKS
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
        "next": [{"words": words, "command": command} for words, command in NEXT],
    }


def head_of_ranking(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the first rows at the lower end of the ranking in a folder, the sickest first."""
    rows = _read(Path(folder) / RANKING)["rows"]
    return [row for row in rows if row["end"] == LOWEST][:FIRST]


def _model(model: str, record: RunRecord, evaluation: Mapping[str, Any]) -> dict[str, Any]:
    whole, metrics = evaluation["groups"][0], record.metrics()
    # What is fitted in one call has trees, and no epochs.
    fitted = model == "pairs"
    curve = () if fitted else zip(metrics["epoch"], metrics["validation_pearson"], strict=True)
    limit = "It is fitted in one call." if fitted else "Where its time goes was not recorded."
    own = whole["scores"][record.name]["pearson"]
    difference = whole["differences"][record.name]["additive"]["pearson"]
    if difference["low"] is None:
        verdict = f"Cannot be compared with the additive baseline: {difference['reason']}."
    else:
        verdict = (
            f"{'Beats' if difference['low'] > 0 else 'Does not beat'} the additive baseline on "
            f"test: Pearson {own['value']:.3f}, a difference of {difference['value']:+.3f} "
            f"({difference['low']:+.3f} to {difference['high']:+.3f})."
        )
    seconds = None
    if record.ended is not None:
        begin, end = (datetime.fromisoformat(at) for at in (record.started, record.ended))
        seconds = (end - begin).total_seconds()
    return {
        "name": TITLES[model],
        "parameters": record.n_parameters,
        "epochs": None if fitted else len(metrics),
        "seconds": seconds,
        "curve": [{"epoch": epoch, "pearson": pearson} for epoch, pearson in curve],
        "pearson": _interval(own),
        "verdict": verdict,
        "limit": record.limits or limit,
    }


def _best_baseline(scores: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """Return which baseline has the highest Pearson, and which models have a higher one."""
    pearson = {name: score["pearson"]["value"] for name, score in scores.items()}
    known = {name: value for name, value in pearson.items() if value is not None}
    baselines = [name for name in known if name not in titles]
    if not baselines:
        return "No baseline tells the genotypes apart."
    best = max(baselines, key=known.__getitem__)
    above = [titles[name] for name in known if name in titles and known[name] > known[best]]
    said = f"above it: {' and '.join(above)}" if above else "no model is above it here"
    return f"the baseline {best} has a Pearson of {known[best]:.3f}; {said}."


def _interval(estimate: Mapping[str, Any]) -> dict[str, float | None]:
    return {key: estimate[key] for key in ("value", "low", "high")}


def _read(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read


LINKS = (
    (RANKING_PAGE, "The ranking", "search by gene, filter by evidence, see the network of a set"),
    (EXPLANATION_PAGE, "Why HeteroCell is slower", "where every moment of a step goes in both"),
    (EVALUATION_PAGE, "The evaluation", "all metrics with intervals, by number of unseen genes"),
    (f"{FIGURES}/demo_pairs-predicted.png", "Predicted against measured", "on the test part"),
    ("dango/figures/learning.svg", "DANGO's learning curve", "as the run drew it"),
    ("hetero_cell/figures/learning.svg", "HeteroCell's learning curve", "as the run drew it"),
)

NEXT = (
    (
        "Put your networks and your screen, as tables, into one folder; files are recognised by "
        "their content, and what is dropped is counted. docs/how-to/screen.md says which columns a "
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
