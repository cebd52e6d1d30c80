"""The demo as commands, and how many planted interactions it found."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
import yaml  # type: ignore[import-untyped]

from deltacell.base.arrays import Ints
from deltacell.base.errors import InputError
from deltacell.base.files import TEMPORARY, read_json, temporary_name
from deltacell.base.rendering import Values
from deltacell.base.text import hydra_text
from deltacell.cell import Cell
from deltacell.data.import_folder import ACCOUNT
from deltacell.models.scoring import Block, genotypes_of
from deltacell.profile.record import RUN_FILE, SPLIT, RunRecord, read_run
from deltacell.ranking.filter import LINKED, STATUSES, UNTESTED, Linkage, Statuses
from deltacell.ranking.gene_sets import Combinations
from deltacell.ranking.ranking_file import LOWEST
from deltacell.ranking.request import DISTANCE
from deltacell.screen import Screen
from deltacell.screen.synthetic import Planted
from deltacell.storage import MANIFEST, read_manifest
from deltacell.train.data import load_data
from deltacell.train.run_config import resumed_config

# The titles of the runs, in the order of the page.
TITLES = {"pairs": "Pair trees", "dango": "DANGO", "hetero_cell": "HeteroCell"}
PAGE = "index.html"
# The output of the steps.
MADE = {
    *("cell", "screens", MANIFEST, ACCOUNT, *TITLES, "figures", PAGE),
    *("evaluation.json", "evaluation.md", "explanation.json", "explanation.html"),
    *("ranking.json", "ranking.html", "ranking.parquet", "ranking.parquet.partial"),
}
FIRST = 20  # sets at the head of a ranking that are compared with the planted interactions


class DemoStep(NamedTuple):
    """A step of the demo: its title, its explanation, and the arguments of `deltacell`."""

    title: str
    words: str
    command: tuple[str, ...]


def _texts() -> Values:
    text = resources.files("deltacell.demo").joinpath("demo.yaml").read_text("utf-8")
    texts: Values = yaml.safe_load(text)
    return texts


def steps(folder: Path, seed: int = 0) -> list[DemoStep]:
    """Return the steps; the last one ranks with the best run so far, by validation."""
    values = {"folder": folder, "seed": seed, "best": _best_run(folder)}

    def filled(word: str) -> str:
        key, sign, value = word.partition("=")
        if sign and "{folder}" in value:
            # A path may need quotes; null and numbers are written as they are.
            return f"{key}={hydra_text(value.format(**values))}"
        return word.format(**values)

    return [
        DemoStep(step["title"], step["words"], tuple(map(filled, step["command"].split())))
        for step in _texts()["steps"]
    ]


def _best_run(folder: Path) -> Path:
    """Return the run of the demo that is best on validation; that of pair trees before any."""
    best = folder / "pairs"
    best_value: float | None = None
    for path in folder.glob(f"*/{RUN_FILE}"):
        record = read_run(path.parent)
        if record.best is None:
            continue
        value = record.best.value or 0.0
        if best_value is None or value > best_value:
            best = record.path
            best_value = value
    return best


def clear(folder: Path) -> None:
    """Remove an earlier demo; a folder with anything else in it is an error."""
    if not folder.exists():
        return
    entries = [path.name for path in folder.iterdir()]
    names = {name for name in entries if not name.endswith(TEMPORARY)}
    if names and not _is_demo(folder, names):
        message = "the folder contains something other than a demo; choose another --out"
        raise InputError(message, code="not-a-demo", where=folder)
    # A kill from here on leaves nothing at the path; the rest is removed by the next process.
    shutil.rmtree(folder.rename(temporary_name(folder)))


def _is_demo(folder: Path, names: set[str]) -> bool:
    """Return whether a folder with these names has nothing but a demo.

    A user's own import also has a cell and screens, and must not be removed.
    """
    if not names <= MADE:
        return False
    if read_manifest(folder)["meta"]["screens"] != ["synthetic"]:
        return False
    runs = [folder / name for name in TITLES if name in names]
    return all((run / RUN_FILE).is_file() for run in runs)


class Recovered(TypedDict):
    """How many sets at the head of a ranking have a planted interaction."""

    sentence: str
    found: int  # of the sets at the head
    of: int  # sets at the head
    chance: float  # how many of as many random sets would, on average
    sets: int  # untested triples
    planted: int  # untested triples with a planted interaction
    head: list[bool]  # whether each set at the head has one


def recovered(
    cell: Cell,
    screen: Screen,
    sets: Sequence[Sequence[str]],
    seed: int,
) -> Recovered:
    """Compare the head of a ranking of untested triples with the planted interactions.

    In the result, ``planted`` of the ``sets`` untested triples have a planted interaction, and
    ``chance`` is the number expected in the head.
    """
    planted = Planted.of(cell, seed)
    n_sets = n_planted = 0
    genes = np.unique(screen.genotypes.genes.numpy())
    linkage = Linkage(cell.genes, DISTANCE)
    statuses = Statuses([screen], ["interaction"])
    for block in Combinations(genes, 3).pieces(0, 1):
        assert isinstance(block, Block)
        ranked = np.sort(block.sets(), axis=1)
        ranked = ranked[linkage.of(ranked) != LINKED]
        ranked = ranked[statuses.of(ranked) == STATUSES.index(UNTESTED)]
        n_sets += len(ranked)
        n_planted += sum(_are_planted(planted, ranked))
    head = [cell.genes.index(name) for names in sets[:FIRST] for name in names]
    of_head = _are_planted(planted, np.array(head).reshape(-1, 3))
    chance = len(of_head) * n_planted / n_sets
    sentence = (
        f"{sum(of_head)} of the {len(of_head)} untested triples at the head of the ranking have a "
        f"planted interaction; by chance {chance:.1f} would."
    )
    return {
        "sentence": sentence,
        "found": sum(of_head),
        "of": len(of_head),
        "chance": round(chance, 2),
        "sets": n_sets,
        "planted": n_planted,
        "head": of_head,
    }


def _are_planted(planted: Planted, sets: Ints) -> list[bool]:
    """Return whether each set, [m, size], has a planted interaction."""
    effect = planted.effect(genotypes_of(sets))
    are_planted: list[bool] = (effect != 0).tolist()
    return are_planted


def head_of_ranking(folder: Path) -> list[Values]:
    """Return the first rows among the lowest."""
    ranking = read_json(folder / "ranking.json", what="the ranking")
    return [row for row in ranking["rows"] if row["end"] == LOWEST][:FIRST]


def results(folder: Path, seed: int, seconds: float | None = None) -> Values:
    """Return the results of the steps, for `report.predict.demo_page`."""
    evaluation = read_json(folder / "evaluation.json", what="the evaluation")
    explanation = read_json(folder / "explanation.json", what="the explanation")
    run = folder / next(iter(TITLES))
    data = load_data(resumed_config(run), run / SPLIT)
    head = head_of_ranking(folder)
    texts = _texts()
    truth = recovered(data.cell, data.screen, [row["genes"] for row in head], seed)
    records = {model: read_run(folder / model) for model in TITLES}
    scores = evaluation["groups"][0]["scores"]
    names_of_runs = {record.name for record in records.values()}
    baselines = [name for name in scores if name not in names_of_runs]
    return {
        "seed": seed,
        "seconds": seconds,
        "cell": _sizes_of_cell(data.cell),
        "screen": {"genotypes": len(data.screen), **data.screen.stats()["kinds"]},
        "models": [
            _model_row(model, record, scores[record.name]["pearson"])
            for model, record in records.items()
        ],
        "baselines": [{"name": name, "pearson": scores[name]["pearson"]} for name in baselines],
        "verdict": evaluation["verdicts"][0]["sentence"],
        "comparison": explanation["sentence"],
        "recovered": truth,
        "ranking": [
            {**row, "planted": is_planted}
            for row, is_planted in zip(head, truth["head"], strict=True)
        ],
        "links": [link for link in texts["links"] if (folder / link["file"]).exists()],
        "steps": [_step_row(step) for step in steps(folder, seed)],
        "next": texts["next"],
    }


def _sizes_of_cell(cell: Cell) -> Values:
    n_edges = sum(relation.n_edges for relation in cell.relations.values())
    return {"screened genes": cell.n_genes, "relations": len(cell.relations), "edges": n_edges}


def _model_row(model: str, record: RunRecord, pearson: Values) -> Values:
    # Pair trees are fitted in one call, without epochs.
    has_epochs = model != "pairs"
    return {
        "name": f"{TITLES[model]} ({record.name})",
        "parameters": record.n_parameters,
        "epochs": record.last and record.last.epoch if has_epochs else None,
        "seconds": _seconds(record),
        "pearson": pearson,
        "limit": record.limits or "It is fitted in one call.",
    }


def _step_row(step: DemoStep) -> Values:
    return {**step._asdict(), "command": shlex.join(["deltacell", *step.command])}


def _seconds(record: RunRecord) -> float:
    """Return how long a finished run took."""
    started = datetime.fromisoformat(record.started or "")
    ended = datetime.fromisoformat(record.ended or "")
    return (ended - started).total_seconds()
