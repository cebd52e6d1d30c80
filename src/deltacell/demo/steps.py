"""What the demonstration does, as commands that anyone can type."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from deltacell.errors import InputError
from deltacell.files import TEMPORARY
from deltacell.profile.record import read_run
from deltacell.screen.import_folder import ACCOUNT
from deltacell.store import MANIFEST, read_manifest

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
