"""What the demonstration does, as commands that anyone can type."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from deltacell.errors import InputError
from deltacell.files import TEMPORARY
from deltacell.profile.record import read_run
from deltacell.screen.import_folder import ACCOUNT
from deltacell.store import MANIFEST, read_manifest

EXPERIMENTS = {"pairs": "demo_pairs", "dango": "demo", "hetero_cell": "demo_hetero"}
"""The experiment that trains each model, in the order in which they are shown."""

WEIGHTS = ("--weights", "last")
"""Validation has five unseen genes here: too few to choose an epoch by."""

EVALUATION, EXPLANATION, RANKING = "evaluation.json", "explanation.json", "ranking.json"
EXPLANATION_PAGE, RANKING_PAGE, FIGURES = "explanation.html", "ranking.html", "figures"
"""What the steps leave in the folder."""


@dataclass(frozen=True)
class Step:
    """One step of the demonstration.

    Parameters
    ----------
    title
        What is done, in a few words.
    words
        What it is for, in a sentence or two.
    command
        What is typed behind `deltacell`.
    """

    title: str
    words: str
    command: tuple[str, ...]


def steps(folder: str | os.PathLike[str], seed: int = 0) -> list[Step]:
    """Return what the demonstration does, in order.

    Parameters
    ----------
    folder
        Where all of it goes.
    seed
        Of all that is drawn.
    """
    folder = Path(folder)
    pairs, dango, hetero = (str(folder / model) for model in EXPERIMENTS)
    return [
        Step(
            "a cell and its screen",
            "A made-up cell of 300 genes in pathways, and 7,000 crosses of its genes. What "
            "interacts was planted, so the truth is known.",
            ("data", "synthetic", "demo", "--out", str(folder), "--seed", str(seed), "--overwrite"),
        ),
        Step(
            "train pair trees",
            "They learn from what was measured next to a set of genes. A fifth of the genes is "
            "held out of the training of every model, to test it on.",
            ("train", *_overrides("pairs", folder, seed)),
        ),
        Step(
            "train DANGO",
            "It passes messages on the wild type only.",
            ("train", *_overrides("dango", folder, seed)),
        ),
        Step(
            "train HeteroCell",
            "It passes messages in every mutant, each computed as an exact difference from the "
            "wild type.",
            ("train", *_overrides("hetero_cell", folder, seed)),
        ),
        Step(
            "test all of them beside the baselines",
            "On the same genotypes, each with a gene that no predictor has seen. A model is worth "
            "something where it beats the additive one, which knows nothing but single genes.",
            (
                *("evaluate", pairs, dango, hetero, *WEIGHTS, "--figures", str(folder / FIGURES)),
                *("--markdown", str(folder / "evaluation.md")),
                *("--json", str(folder / EVALUATION)),
            ),
        ),
        Step(
            "explain why HeteroCell is slower than DANGO",
            "Both runs recorded where every moment of a step went.",
            (
                *("explain", dango, hetero, "--html", str(folder / EXPLANATION_PAGE)),
                *("--json", str(folder / EXPLANATION)),
            ),
        ),
        Step(
            "rank every untested triple",
            "The model that did best on validation scores all triples of the screen's genes. Of "
            "those that were never tested and can be crossed, the lowest and the highest are kept, "
            "with the evidence for each.",
            (
                *("predict", pairs, dango, hetero, "--best", *WEIGHTS, "--sets", "triples"),
                *("--top", "200"),
                *("--out", str(folder / "ranking.parquet"), "--overwrite"),
                *("--html", str(folder / RANKING_PAGE), "--json", str(folder / RANKING)),
            ),
        ),
    ]


def clear(folder: str | os.PathLike[str]) -> None:
    """Take away all of an earlier demonstration but its cell; what is no such is an error.

    Parameters
    ----------
    folder
        Where the next one will go.
    """
    folder = Path(folder)
    if not folder.exists():
        return
    entries = list(folder.iterdir()) if folder.is_dir() else [folder]
    runs = set(EXPERIMENTS)
    own = [entry for entry in entries if entry.name in runs | _LEFT or _is_half_written(entry)]
    others = {entry.name for entry in entries} - {entry.name for entry in own}
    # Data of someone's own are called a cell and screens too, and must not be replaced.
    if entries and not (others == _DATA and read_manifest(folder)["meta"]["screens"] == [_SCREEN]):
        raise InputError(
            "there is something here that is not of a demo",
            where=folder,
            fix="Choose another place: deltacell demo --out DIRECTORY",
        )
    for entry in own:
        if entry.name in runs:
            read_run(entry)
    for entry in own:
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _overrides(model: str, folder: Path, seed: int) -> list[str]:
    return [
        f"experiment={EXPERIMENTS[model]}",
        "data.synthetic=null",
        f"data.folder={_quoted(folder)}",
        f"seed={seed}",
        f"split.seed={seed}",
        f"directory={_quoted(folder / model)}",
    ]


def _quoted(path: Path) -> str:
    """Return a path as an override has it: as it is, or in quotes where Hydra needs them."""
    plain = all(c.isalnum() or c in "/._-" for c in str(path))
    return str(path) if plain else f"'{path}'"


_SCREEN = "synthetic"
_DATA = {"cell", "screens", MANIFEST, ACCOUNT}
_LEFT = {
    *(EVALUATION, "evaluation.md", EXPLANATION, EXPLANATION_PAGE, FIGURES),
    *(RANKING, RANKING_PAGE, "ranking.parquet", "ranking.parquet.partial", "index.html"),
}


def _is_half_written(entry: Path) -> bool:
    """Whether an entry is what a kill left of a file that was being written."""
    return entry.name.startswith(".") and entry.name.endswith(TEMPORARY)
