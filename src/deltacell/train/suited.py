"""Settings that suit a cell and a screen, for whoever names no experiment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from deltacell import store
from deltacell.cell import Cell
from deltacell.screen import Screen
from deltacell.train.check import check
from deltacell.train.compose import compose
from deltacell.train.config import Config
from deltacell.train.config_errors import config_error
from deltacell.train.data import sources

MODEL = "pair_trees"
"""The predictor that did best on every split of Costanzo 2010, see docs/results.md."""

LARGEST = 1_000_000
"""Genotypes that are trained on at most; the columns of more would fill the memory."""

# By validation on one draw of Costanzo 2010 each, with one seed, among 7, 15 and 63 leaves: of
# 3,000 pairs 7 were best (Pearson 0.101 to 0.074 with 63), of 12,000 pairs 15 (0.251 to 0.243).
_ROWS_PER_LEAF, _LEAVES = 800, (7, 63)
_BATCHES, _BATCH = 100, (32, 4096)


class Suited(NamedTuple):
    """Settings by the name of their config key, and why in sentences.

    Parameters
    ----------
    settings
        Values by key, such as ``{"model.leaves": 15}``.
    sentences
        What was picked and why.
    """

    settings: dict[str, Any]
    sentences: list[str]


def suited(cell: Cell, screen: Screen, model: str = MODEL) -> Suited:
    """Return the settings of a model that suit the relations of a cell and the size of a screen.

    Parameters
    ----------
    cell
        The wild type.
    screen
        What was measured.
    model
        The name of the predictor.
    """
    n = min(len(screen), LARGEST)
    if model == "pair_trees":
        leaves = int(np.clip(n // _ROWS_PER_LEAF, *_LEAVES))
        return Suited({"model.leaves": leaves}, [f"Trees of {leaves} leaves suit {n:,} genotypes."])
    settings: dict[str, Any] = {}
    said = []
    if model in ("dango", "hetero_cell", "pair_cell"):
        batch = 2 ** int(np.log2(np.clip(n // _BATCHES, *_BATCH)))
        settings["data.batch_size"] = batch
        said.append(f"Batches of {batch:,} suit {n:,} genotypes.")
    if model == "dango":
        from deltacell.models import STRING_LAMBDAS

        there = [name for name in STRING_LAMBDAS if name in cell.relations]
        if not there:
            there = list(cell.relations)
            settings["model.lambdas"] = dict.fromkeys(there, 1.0)
        settings["model.relations"] = there
        said.append(f"DANGO uses {', '.join(there) or 'no relation'}.")
    return Suited(settings, said)


def suited_config(
    overrides: Sequence[str], folder: str | os.PathLike[str] | None = None
) -> tuple[Config, list[str]]:
    """Return the config for data without an experiment or a model, and what was picked, in words.

    Parameters
    ----------
    overrides
        What was typed; keys that are given here are not picked.
    folder
        As in `compose`.
    """
    given = {text.partition("=")[0].lstrip("+") for text in overrides}
    config = compose([f"model={MODEL}", *overrides], folder=folder)
    said = [
        f"No experiment is named: {MODEL}, boosted trees on what was measured next to a set, on "
        "gene features and on all networks, is fitted. It did best on all splits of Costanzo 2010; "
        "on triples it was not compared."
    ]
    picked: dict[str, Any] = {}
    if config.data.folder is not None and config.data.screen is None:
        name, others = _largest_screen(Path(config.data.folder))
        if others:
            said.append(
                f"Of the screens {', '.join([name, *others])} it is trained on {name}, the largest;"
                f" data.screen={others[0]} picks another."
            )
        picked["data.screen"] = name or None
        config = with_settings(config, picked)
    cell, screen = sources(config.data)
    phenotypes = screen.stats()["phenotypes"]
    if len(phenotypes) > 1 and "data.where" not in given:
        picked["data.where"] = {"phenotype": ["interaction"]}
        said.append("It has fitness too; the interactions are trained on.")
    if len(np.unique(screen.keys)) < len(screen):
        picked["data.merge"] = "mean"
        said.append("Repeated genotypes become one, with the mean of their scores.")
    if len(screen) > LARGEST:
        picked["data.subset"] = LARGEST
        said.append(f"Of {len(screen):,} genotypes, {LARGEST:,} are drawn to fit into memory.")
    found = suited(cell, screen)
    picked |= {"data.screen_genes_only": True, **found.settings}
    if config.data.folder is not None:
        picked["name"] = f"{config.data.screen}_pairs"
    said += found.sentences
    return with_settings(config, {k: v for k, v in picked.items() if k not in given}), said


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """Return a config with some keys changed, checked.

    Parameters
    ----------
    config
        As it was composed.
    settings
        Values by key, such as ``{"trainer.epochs": 20}``; an unknown key is an error.
    """
    changed = OmegaConf.structured(config)
    try:
        for key, value in settings.items():
            OmegaConf.update(changed, key, value, merge=False)
        made = cast(Config, OmegaConf.to_object(cast(DictConfig, changed)))
    except OmegaConfBaseException as error:
        raise config_error(error) from error
    check(made)
    return made


def _largest_screen(folder: Path) -> tuple[str, list[str]]:
    """Return the name of the screen with most genotypes, and those of the others."""
    there = sorted(path for path in (folder / "screens").glob("*") if path.is_dir())
    rows = {
        path.name: store.read(path, "screen", verify=False).parts["rows"].num_rows for path in there
    }
    names = sorted(rows, key=lambda name: (-rows[name], name))
    return (names[0], names[1:]) if names else ("", [])
