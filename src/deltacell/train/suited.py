"""Settings that suit a cell and a screen, for users who name no experiment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deltacell import store
from deltacell.cell import Cell
from deltacell.screen import Screen
from deltacell.train.compose import compose, with_settings
from deltacell.train.config import Config
from deltacell.train.data import sources

MODEL = "pair_trees"
"""The predictor that did best on every split of Costanzo 2010, see docs/results.md."""

LARGEST = 1_000_000
"""Maximum number of genotypes to train on; the columns of more would fill the memory."""

# By validation on one draw of Costanzo 2010 each, with one seed, among 7, 15 and 63 leaves: of
# 3,000 pairs 7 were best (Pearson 0.101 to 0.074 with 63), of 12,000 pairs 15 (0.251 to 0.243).
_ROWS_PER_LEAF, _LEAVES = 800, (7, 63)
_BATCHES, _BATCH = 100, (32, 4096)


class Suited(NamedTuple):
    """Settings by config key, such as ``{"model.leaves": 15}``, and why, in sentences."""

    settings: dict[str, Any]
    sentences: list[str]


def suited(cell: Cell, screen: Screen, model: str = MODEL) -> Suited:
    """Return settings of a model that suit the relations of a cell and the size of a screen."""
    n = min(len(screen), LARGEST)
    if model == "pair_trees":
        leaves = int(np.clip(n // _ROWS_PER_LEAF, *_LEAVES))
        return Suited({"model.leaves": leaves}, [f"Trees of {leaves} leaves suit {n:,} genotypes."])
    settings: dict[str, Any] = {}
    sentences = []
    if model in ("dango", "hetero_cell", "pair_cell"):
        batch = 2 ** int(np.log2(np.clip(n // _BATCHES, *_BATCH)))
        settings["data.batch_size"] = batch
        sentences.append(f"Batches of {batch:,} suit {n:,} genotypes.")
    if model == "dango":
        from deltacell.models import STRING_LAMBDAS

        there = [name for name in STRING_LAMBDAS if name in cell.relations]
        if not there:
            there = list(cell.relations)
            settings["model.lambdas"] = dict.fromkeys(there, 1.0)
        settings["model.relations"] = there
        sentences.append(f"DANGO uses {', '.join(there) or 'no relation'}.")
    return Suited(settings, sentences)


def suited_config(
    overrides: Sequence[str], folder: str | os.PathLike[str] | None = None
) -> tuple[Config, list[str]]:
    """Return the config for data without an experiment or a model, and what was chosen and why.

    Keys that the overrides set are left alone; `folder` is as in `compose`.
    """
    given = {text.partition("=")[0].lstrip("+") for text in overrides}
    config = compose([f"model={MODEL}", *overrides], folder=folder)
    sentences = [
        f"No experiment is named, so {MODEL} is fitted: boosted trees on what was measured next "
        "to a set, on gene features and on all networks. It did best on all splits of Costanzo "
        "2010; on triples it was not compared."
    ]
    chosen: dict[str, Any] = {}
    if config.data.folder is not None and config.data.screen is None:
        name, others = _largest_screen(Path(config.data.folder))
        if others:
            sentences.append(
                f"It is trained on {name}, the largest of the screens {', '.join([name, *others])};"
                f" data.screen={others[0]} chooses another."
            )
        chosen["data.screen"] = name or None
        config = with_settings(config, chosen)
    cell, screen = sources(config.data)
    if len(screen.stats()["phenotypes"]) > 1 and "data.where" not in given:
        chosen["data.where"] = {"phenotype": ["interaction"]}
        sentences.append("The screen has fitness too; it is trained on the interactions.")
    if len(np.unique(screen.keys)) < len(screen):
        chosen["data.merge"] = "mean"
        sentences.append("Repeated genotypes become one, with the mean of their scores.")
    if len(screen) > LARGEST:
        chosen["data.subset"] = LARGEST
        sentences.append(f"{LARGEST:,} of {len(screen):,} genotypes are drawn to fit into memory.")
    found = suited(cell, screen)
    chosen |= {"data.screen_genes_only": True, **found.settings}
    if config.data.folder is not None:
        chosen["name"] = f"{config.data.screen}_pairs"
    sentences += found.sentences
    return with_settings(config, {k: v for k, v in chosen.items() if k not in given}), sentences


def _largest_screen(folder: Path) -> tuple[str, list[str]]:
    there = sorted(path for path in (folder / "screens").glob("*") if path.is_dir())
    rows = {
        path.name: store.read(path, "screen", verify=False).parts["rows"].num_rows for path in there
    }
    names = sorted(rows, key=lambda name: (-rows[name], name))
    return (names[0], names[1:]) if names else ("", [])
