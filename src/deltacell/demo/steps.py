"""What the demonstration does, as commands that anyone can type."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from deltacell.errors import InputError
from deltacell.profile.record import read_run

EXPERIMENTS = {"dango": "demo", "hetero_cell": "demo_hetero"}
"""The experiment that trains each model, in the order in which they are shown."""

CANDIDATES, EVALUATION, EXPLANATION, RANKING = (
    "untested-triples.parquet",
    "evaluation.json",
    "explanation.json",
    "ranking.json",
)
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
    dango, hetero = (str(folder / model) for model in EXPERIMENTS)
    candidates = str(folder / CANDIDATES)
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
                *("evaluate", dango, hetero, "--figures", str(folder / FIGURES)),
                *("--markdown", str(folder / "evaluation.md")),
                *("--json", str(folder / EVALUATION)),
            ),
        ),
        Step(
            "explain why the one is slower than the other",
            "Both runs recorded where every moment of a step went.",
            (
                *("explain", dango, hetero, "--html", str(folder / EXPLANATION_PAGE)),
                *("--json", str(folder / EXPLANATION)),
            ),
        ),
        Step(
            "rank every untested triple",
            "DANGO scores all triples of the screen's genes; a thousand of each end are kept.",
            ("predict", dango, "--sets", "triples", "--out", candidates, "--overwrite"),
        ),
        Step(
            "a second opinion on the best of them",
            "HeteroCell scores those too. The ranking is by the mean of both, with their spread.",
            (
                *("predict", dango, hetero, "--sets", candidates, "--top", "200", "--overwrite"),
                *("--out", str(folder / "ranking.parquet")),
                *("--html", str(folder / RANKING_PAGE), "--json", str(folder / RANKING)),
            ),
        ),
    ]


def clear(folder: str | os.PathLike[str]) -> None:
    """Take away the runs of an earlier demonstration; what is no such is an error.

    Parameters
    ----------
    folder
        Where the next one will go.
    """
    folder = Path(folder)
    if not folder.exists():
        return
    if not folder.is_dir() or (any(folder.iterdir()) and not (folder / "cell").is_dir()):
        raise InputError(
            "there is something here that is not of a demo",
            where=folder,
            fix="Choose another place: deltacell demo --out DIRECTORY",
        )
    for model in EXPERIMENTS:
        if (folder / model).exists():
            read_run(folder / model)
            shutil.rmtree(folder / model)


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
