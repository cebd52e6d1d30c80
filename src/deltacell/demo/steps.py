"""The demo as commands, and how many planted interactions it found."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml  # type: ignore[import-untyped]

from deltacell.base.errors import InputError
from deltacell.base.files import TEMPORARY, read_json, temporary_name
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
from deltacell.train.run_directory import resumed_config

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


def _texts() -> dict[str, Any]:
    text = resources.files("deltacell.demo").joinpath("demo.yaml").read_text("utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def steps(folder: Path, seed: int = 0) -> list[DemoStep]:
    """Return the steps; the last one ranks with the best run so far, by validation."""
    records = [read_run(path.parent) for path in folder.glob(f"*/{RUN_FILE}")]
    values = {one.path: one.best.value or 0.0 for one in records if one.best}
    best = max(values, key=values.__getitem__, default=folder / "pairs")
    given = {"folder": folder, "seed": seed, "best": best}

    def filled(word: str) -> str:
        key, sign, value = word.partition("=")
        return f"{key}={hydra_text(value.format(**given))}" if sign else word.format(**given)

    return [
        DemoStep(one["title"], one["words"], tuple(map(filled, one["command"].split())))
        for one in _texts()["steps"]
    ]


def clear(folder: Path) -> None:
    """Remove an earlier demo; a folder with anything else in it is an error."""
    if not folder.exists():
        return
    names = {e.name for e in folder.iterdir() if not e.name.endswith(TEMPORARY)}
    runs = [folder / name for name in TITLES if name in names]
    # A user's own import also has a cell and screens, and must not be removed.
    if names and not (
        names <= MADE
        and read_manifest(folder)["meta"]["screens"] == ["synthetic"]
        and all((run / "run.json").is_file() for run in runs)
    ):
        what = "the folder contains something other than a demo; choose another --out"
        raise InputError(what, code="not-a-demo", where=folder)
    # A kill from here on leaves nothing at the path; the rest is removed by the next process.
    shutil.rmtree(folder.rename(temporary_name(folder)))


def recovered(
    cell: Cell,
    screen: Screen,
    sets: Sequence[Sequence[str]],
    seed: int,
) -> dict[str, Any]:
    """Compare the head of a ranking of untested triples with the planted interactions.

    In the result, ``planted`` of the ``sets`` untested triples have a planted interaction, and
    ``chance`` is the number expected in the head.
    """
    planted = Planted.of(cell, seed)
    head = np.array([[cell.genes.index(name) for name in names] for names in sets[:FIRST]])
    n_sets = n_planted = 0
    genes = np.unique(screen.genotypes.genes.numpy())
    linkage, statuses = Linkage(cell.genes, DISTANCE), Statuses([screen], ["interaction"])
    for block in Combinations(genes, 3).pieces(0, 1):
        assert isinstance(block, Block)
        ranked = np.sort(block.sets(), axis=1)
        ranked = ranked[linkage.of(ranked) != LINKED]
        ranked = ranked[statuses.of(ranked) == STATUSES.index(UNTESTED)]
        n_sets += len(ranked)
        n_planted += int((planted.effect(genotypes_of(ranked)) != 0).sum())
    of_head = (planted.effect(genotypes_of(head.reshape(-1, 3))) != 0).tolist()
    chance = len(head) * n_planted / n_sets
    said = f"{sum(of_head)} of the {len(head)} untested triples at the head of the ranking have a "
    return {
        "sentence": f"{said}planted interaction; by chance {chance:.1f} would.",
        **{"found": sum(of_head), "of": len(head), "chance": round(chance, 2)},
        **{"sets": n_sets, "planted": n_planted, "head": of_head},
    }


def head_of_ranking(folder: Path) -> list[dict[str, Any]]:
    ranking = read_json(folder / "ranking.json", what="the ranking")
    return [row for row in ranking["rows"] if row["end"] == LOWEST][:FIRST]


def results(folder: Path, seed: int, seconds: float | None = None) -> dict[str, Any]:
    """Return the results of the steps, for `report.predict.demo_page`."""
    evaluation = read_json(folder / "evaluation.json", what="the evaluation")
    explanation = read_json(folder / "explanation.json", what="the explanation")
    run = folder / next(iter(TITLES))
    data = load_data(resumed_config(run), run / SPLIT)
    cell, screen, head, texts = data.cell, data.screen, head_of_ranking(folder), _texts()
    truth = recovered(cell, screen, [row["genes"] for row in head], seed)
    records = {model: read_run(folder / model) for model in TITLES}
    scores = evaluation["groups"][0]["scores"]
    baselines = [name for name in scores if name not in {one.name for one in records.values()}]
    edges = sum(relation.n_edges for relation in cell.relations.values())
    return {
        "seed": seed,
        "seconds": seconds,
        "cell": {"screened genes": cell.n_genes, "relations": len(cell.relations), "edges": edges},
        "screen": {"genotypes": len(screen), **screen.stats()["kinds"]},
        "models": [
            {
                "name": f"{TITLES[model]} ({record.name})",
                "parameters": record.n_parameters,
                # Pair trees are fitted in one call, without epochs.
                "epochs": None if model == "pairs" else record.last and record.last.epoch,
                "seconds": _seconds(record),
                "pearson": scores[record.name]["pearson"],
                "limit": record.limits or "It is fitted in one call.",
            }
            for model, record in records.items()
        ],
        "baselines": [{"name": name, "pearson": scores[name]["pearson"]} for name in baselines],
        "verdict": evaluation["verdicts"][0]["sentence"],
        "comparison": explanation["sentence"],
        "recovered": truth,
        "ranking": [row | {"planted": is_} for row, is_ in zip(head, truth["head"], strict=True)],
        "links": [link for link in texts["links"] if (folder / link["file"]).exists()],
        "steps": [
            step._asdict() | {"command": shlex.join(["deltacell", *step.command])}
            for step in steps(folder, seed)
        ],
        "next": texts["next"],
    }


def _seconds(record: RunRecord) -> float:
    started, ended = (datetime.fromisoformat(at or "") for at in (record.started, record.ended))
    return (ended - started).total_seconds()
