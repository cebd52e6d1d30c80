"""Settings for data of which no model was chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deltacell import storage
from deltacell.models.config import MOST_GENOTYPES
from deltacell.train.config.compose import compose, with_settings
from deltacell.train.config.errors import Where
from deltacell.train.config.schema import Config
from deltacell.train.data import ReadSources, sources

MODEL = "pair_trees"
"""The best predictor on every split of Costanzo 2010, see docs/results.md."""


def suited_config(
    overrides: Sequence[str],
    folder: Where = None,
    *,
    read: ReadSources = sources,
) -> tuple[Config, dict[str, Any]]:
    """Return a config for data without a model, and the settings that were chosen for it.

    `read` loads the cell and the screen, or returns them if they are loaded already.
    """
    keys = {text.partition("=")[0].lstrip("+") for text in overrides}
    config = compose([f"model={MODEL}", *overrides], folder=folder)
    chosen: dict[str, Any] = {"data.screen_genes_only": True}
    if config.data.folder is not None:
        if config.data.screen is None:
            place = Path(config.data.folder)
            rows = {
                name: storage.read_manifest(place / "screens" / name)["parts"]["rows"]["rows"]
                for name in storage.read_manifest(place)["meta"]["screens"]
            }
            chosen["data.screen"] = max(rows, key=rows.__getitem__, default=None)
            config = with_settings(config, {"data.screen": chosen["data.screen"]})
        chosen["name"] = f"{config.data.screen}_pairs"
    cell, screen = read(config.data)
    if len(screen.stats()["phenotypes"]) > 1:
        chosen["data.where"] = {"phenotype": ["interaction"]}
    if len(np.unique(screen.keys)) < len(screen):
        chosen["data.merge"] = "mean"
    if len(screen) > MOST_GENOTYPES:
        chosen["data.subset"] = MOST_GENOTYPES
    chosen |= config.model.settings_for(cell, screen)
    chosen = {key: value for key, value in chosen.items() if key not in keys}
    return with_settings(config, chosen), {"model": config.model.name, **chosen}


def chosen_sentence(settings: Mapping[str, Any]) -> str:
    """Return the sentence that tells which settings were chosen, as words of a command."""
    words = " ".join(f"{key}={value}" for key, value in settings.items())
    return f"No model was given; settings chosen for the data: {words}"
