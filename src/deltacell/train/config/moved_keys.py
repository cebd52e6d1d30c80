"""Keys that have moved, which still work for one release."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from deltacell.base.moved import LAST_RELEASE
from deltacell.models.config import ModelConfig
from deltacell.train.config.schema import Config

MOVED_KEYS = {"propagation": "model.propagation", "max_bytes": "model.max_bytes"}
"""The present key of each former one. Models that do not have it ignore it, as they did before."""


@dataclass
class ConfigWithMovedKeys(Config):
    """The schema of what a user writes: former keys are allowed, and null if they are not used."""

    propagation: Any = None
    max_bytes: Any = None

    def present(self) -> Config:
        """Return the config without former keys, whose values are not in it."""
        return Config(**{field.name: getattr(self, field.name) for field in fields(Config)})

    def moved_settings(self) -> dict[str, object]:
        """Return the values of the former keys that are used."""
        values = {key: getattr(self, key) for key in MOVED_KEYS}
        return {key: value for key, value in values.items() if value is not None}


def with_present_keys(settings: Mapping[str, object], model: ModelConfig) -> dict[str, object]:
    """Return settings with present keys, and warn for former ones."""
    present = {}
    for key, value in settings.items():
        new_key = MOVED_KEYS.get(key)
        if new_key is None:
            present[key] = value
            continue
        text = f"the key '{key}' is now '{new_key}'; the old one goes after {LAST_RELEASE}"
        warnings.warn(text, DeprecationWarning, stacklevel=3)
        if has_key(model, new_key):
            present[new_key] = value
    return present


def upgraded_model(saved: dict[str, Any], model: ModelConfig) -> dict[str, Any]:
    """Return the settings of the model in a saved config, which may have former keys."""
    settings: dict[str, Any] = dict(saved["model"])
    for key, new_key in MOVED_KEYS.items():
        if key in saved and has_key(model, new_key):
            settings.setdefault(new_key.removeprefix("model."), saved[key])
    return settings


def has_key(model: ModelConfig, key: str) -> bool:
    """Return whether a model has a key such as ``model.hidden``."""
    return key.removeprefix("model.") in {field.name for field in fields(model)}
