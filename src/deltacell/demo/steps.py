"""What the demonstration does, as commands that anyone can type."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from deltacell.errors import InputError
from deltacell.files import TEMPORARY
from deltacell.profile.record import read_run
from deltacell.store import MANIFEST, read_manifest

EXPERIMENTS = {"dango": "demo", "hetero_cell": "demo_hetero"}
"""The experiment that trains each model, in the order in which they are shown."""

WEIGHTS = ("--weights", "last")
"""Validation has five unseen genes here: too few to choose an epoch by."""

DANGO_RUNS = 3
"""Runs of DANGO, which differ in the weights they begin with."""

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
    hetero = str(folder / "hetero_cell")
    all_dango = [str(folder / name) for name in run_names("dango")]
    return [
        Step(
            "a cell and its screen",
            "A made-up cell of 300 genes in pathways, and 7,000 crosses of its genes. What "
            "interacts was planted, so the truth is known.",
            ("data", "synthetic", "demo", "--out", str(folder), "--seed", str(seed), "--overwrite"),
        ),
        Step(
            "train DANGO",
            "It passes messages on the wild type only. A fifth of the genes stays out of its "
            "sight, to test it on.",
            ("train", *_overrides("dango", folder, seed)),
        ),
        *(
            Step(
                f"train DANGO again, from other weights ({number} of {DANGO_RUNS})",
                "One run is sure of things that the next one is not. What all of them say is worth "
                "more, and how far they differ says how much.",
                ("train", *_overrides("dango", folder, seed, number)),
            )
            for number in range(2, DANGO_RUNS + 1)
        ),
        Step(
            "train HeteroCell",
            "It passes messages in every mutant, each computed as an exact difference from the "
            "wild type.",
            ("train", *_overrides("hetero_cell", folder, seed)),
        ),
        Step(
            "test both beside the baselines",
            "On the same genotypes, each with a gene that no predictor has seen. A model is worth "
            "something where it beats the additive one, which knows nothing but single genes.",
            (
                *("evaluate", *all_dango, hetero, *WEIGHTS, "--figures", str(folder / FIGURES)),
                *("--markdown", str(folder / "evaluation.md")),
                *("--json", str(folder / EVALUATION)),
            ),
        ),
        Step(
            "explain why the one is slower than the other",
            "Both runs recorded where every moment of a step went.",
            (
                *("explain", all_dango[0], hetero, "--html", str(folder / EXPLANATION_PAGE)),
                *("--json", str(folder / EXPLANATION)),
            ),
        ),
        Step(
            "rank every untested triple",
            "The runs of DANGO score all triples of the screen's genes. Of those that were never "
            "tested and can be crossed, the lowest and the highest are kept, with the evidence for "
            "each; what the runs do not agree on comes later.",
            (
                *("predict", *all_dango, *WEIGHTS, "--cautious", "--sets", "triples"),
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
    runs = {name for model in EXPERIMENTS for name in run_names(model)}
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


def run_names(model: str) -> list[str]:
    """Return what the runs of a model are called in the folder.

    Parameters
    ----------
    model
        One of `EXPERIMENTS`.
    """
    more = range(2, DANGO_RUNS + 1) if model == "dango" else ()
    return [model, *(f"{model}-{number}" for number in more)]


def _overrides(model: str, folder: Path, seed: int, number: int = 1) -> list[str]:
    name = run_names(model)[number - 1]
    return [
        f"experiment={EXPERIMENTS[model]}",
        "data.synthetic=null",
        f"data.folder={_quoted(folder)}",
        f"seed={seed + number - 1}",
        f"split.seed={seed}",
        f"directory={_quoted(folder / name)}",
    ]


def _quoted(path: Path) -> str:
    """Return a path as an override has it: as it is, or in quotes where Hydra needs them."""
    plain = all(c.isalnum() or c in "/._-" for c in str(path))
    return str(path) if plain else f"'{path}'"


_SCREEN = "synthetic"
_DATA = {"cell", "screens", MANIFEST}
_LEFT = {
    *(EVALUATION, "evaluation.md", EXPLANATION, EXPLANATION_PAGE, FIGURES),
    *(RANKING, RANKING_PAGE, "ranking.parquet", "ranking.parquet.partial", "index.html"),
}


def _is_half_written(entry: Path) -> bool:
    """Whether an entry is what a kill left of a file that was being written."""
    return entry.name.startswith(".") and entry.name.endswith(TEMPORARY)
