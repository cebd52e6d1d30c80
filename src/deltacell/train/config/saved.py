"""Configs as text, as runs keep them: what an earlier version saved means the same now."""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache
from typing import Any, cast

import yaml  # type: ignore[import-untyped]
from omegaconf import DictConfig, OmegaConf

from deltacell.base.errors import InputError
from deltacell.models import registry
from deltacell.models.config import ModelConfig
from deltacell.train.config.checks import checked
from deltacell.train.config.errors import Where, readable_errors
from deltacell.train.config.moved_keys import MOVED_KEYS, upgraded_model
from deltacell.train.config.schema import Config


def to_yaml(config: Config) -> str:
    """Return a config as YAML."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def saved_yaml(config: Config) -> str:
    """Return the config as a run keeps it, with the format that says what its keys mean."""
    return f"{to_yaml(config)}{_FORMAT}: {_FORMAT_NOW}\n"


def from_yaml(text: str, *, where: Where = None) -> Config:
    """Return the config from the text of `saved_yaml`; an unknown key is an error."""
    with readable_errors(where):
        return deepcopy(_from_yaml(text))


@lru_cache(64)  # loading a run needs its config several times
def _from_yaml(text: str) -> Config:
    if len(text) > 1_000_000:
        raise ValueError("more than a million characters")
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        # Nested aliases can exhaust memory, and a saved config has no references.
        unsafe = isinstance(event, yaml.ScalarEvent) and "${" in event.value
        if unsafe or isinstance(event, yaml.AliasEvent):
            raise ValueError(f"aliases and references, line {event.start_mark.line + 1}")
    saved = OmegaConf.create(text)
    if not isinstance(saved, DictConfig):
        raise ValueError("expected keys with values")
    model = _saved_model(OmegaConf.select(saved, "model.name"))
    loss = registry.loss_class(OmegaConf.select(saved, "loss.name"))()
    _upgrade(saved, model)
    defaults = OmegaConf.structured(Config(model=model, loss=loss))
    for key, value in saved.model.items():
        if isinstance(value, DictConfig):
            # A saved mapping replaces the default one, which `merge` would add to it.
            defaults.model[key] = {}
    return checked(cast(DictConfig, OmegaConf.merge(defaults, saved)))


def _saved_model(name: object) -> ModelConfig:
    if name in registry.names():
        return registry.config_class(name)()
    if not isinstance(name, str):
        raise registry.unknown_model(name)
    what = f"the model '{name}' is not installed: no package has the entry point '{name}' of the "
    fix = f"Install the package that defines it. Installed: {', '.join(registry.names())}."
    raise InputError(f"{what}group {registry.GROUP}", code="model-not-installed", fix=fix)


_FORMAT = "format"
_FORMAT_OF_MODEL_KEYS = 3  # the first in which `MOVED_KEYS` are keys of the model
_FORMAT_NOW = 3


def _upgrade(saved: DictConfig, model: ModelConfig) -> None:
    """Change a config that an earlier version saved so that it means the same now."""
    version = saved.pop(_FORMAT, 1)
    if version not in range(1, _FORMAT_NOW + 1):
        what = f"a config of format {version}; this version reads formats 1 to {_FORMAT_NOW}"
        raise InputError(what, code="newer-config", fix="Use a newer version of deltacell.")
    values = cast(dict[str, Any], OmegaConf.to_container(saved))
    settings = values["model"]
    if version < _FORMAT_OF_MODEL_KEYS:
        settings = upgraded_model(values, model)
        for key in MOVED_KEYS:
            saved.pop(key, None)
    saved.model = model.upgraded(settings, version)


def forget_saved() -> None:
    """Read saved configs anew, since another model may be installed."""
    _from_yaml.cache_clear()
