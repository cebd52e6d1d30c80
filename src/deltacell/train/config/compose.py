"""Composing configs from the files that ship, experiments, choices and overrides."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import cast

from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from deltacell.base.errors import InputError
from deltacell.base.text import hydra_text
from deltacell.cell.readers.networks import CHANNELS
from deltacell.models import registry
from deltacell.train.config.checks import check, checked
from deltacell.train.config.errors import Where, readable_errors
from deltacell.train.config.keys import GROUPS, all_keys
from deltacell.train.config.moved_keys import ConfigWithMovedKeys, with_present_keys
from deltacell.train.config.overrides import is_in_mapping, parse_override
from deltacell.train.config.saved import forget_saved
from deltacell.train.config.schema import Config


def compose(overrides: Sequence[str] = (), *, folder: Where = None) -> Config:
    """Compose and check a config from overrides such as ``trainer.devices=4``.

    `folder` is a directory of your own configs, such as ``FOLDER/experiment/mine.yaml``.
    """
    with readable_errors():
        parsed = [parse_override(text) for text in overrides]
        choices = [override for override in parsed if override.key_or_group in GROUPS]
        _check_models(choices, folder)
        words = tuple(str(choice.input_line) for choice in choices)
        # Files in a user's folder may change between two calls, so they are not cached.
        composed = _compose_groups(words, folder) if folder else deepcopy(_shipped(words))
        for override in parsed:
            key = override.key_or_group
            if key not in GROUPS:
                OmegaConf.update(composed, key, override.value(), force_add=is_in_mapping(key))
        OmegaConf.resolve(composed)
        written = cast(ConfigWithMovedKeys, OmegaConf.to_object(composed))
    config = written.present()
    settings = written.moved_settings()
    if settings:
        return with_settings(config, settings)
    check(config)
    return config


def with_settings(config: Config, settings: Mapping[str, object]) -> Config:
    """Return a checked config with other values of some keys, such as ``trainer.devices``."""
    changed = OmegaConf.structured(config)
    present = with_present_keys(settings, config.model)
    with readable_errors():
        for key, value in present.items():
            OmegaConf.update(changed, key, value, merge=False)
        return checked(changed)


_LOCK = threading.RLock()


def _check_models(overrides: Sequence[Override], folder: Where) -> None:
    """Raise for a chosen model that cannot be imported, for which Hydra has no file either."""
    for override in overrides:
        name = str(override.value())
        if override.key_or_group == "model" and folder is None and name in registry.names():
            registry.config_class(name)


def _compose_groups(names: tuple[str, ...], folder: Where = None) -> DictConfig:
    """Compose the files of experiments, models and other groups, in one thread at a time."""
    search = []
    if folder is not None:
        if not Path(folder).is_dir():
            raise InputError("not a directory of configs", code="no-directory", where=folder)
        search = [f"hydra.searchpath=[{hydra_text(f'file://{Path(folder).resolve()}')}]"]
    with _LOCK:
        store_schemas(ConfigStore.instance())
        # A Hydra that is in use is restored afterwards.
        hydra_in_use = GlobalHydra.instance().hydra
        GlobalHydra.instance().hydra = None
        try:
            asked = behaviour_of_hydra(initialize_config_module)
            with initialize_config_module("deltacell.conf", **asked):
                return hydra_compose("config", [*search, *names])
        finally:
            GlobalHydra.instance().hydra = hydra_in_use


def behaviour_of_hydra(function: Callable[..., object]) -> dict[str, str]:
    """Return the version whose behaviour is asked of Hydra; 1.5 and later do not take one."""
    takes_version = "version_base" in inspect.signature(function).parameters
    return {"version_base": "1.3"} if takes_version else {}


_shipped = cache(_compose_groups)


@cache
def store_schemas(store: ConfigStore) -> None:
    """Tell Hydra the keys of all configs."""
    whole = OmegaConf.structured(ConfigWithMovedKeys)
    # Otherwise the keys of one model would remain when another is chosen.
    whole.model = whole.loss = "???"
    store.store(group="deltacell", name="config", node=whole)
    for name in registry.LOSSES:
        store.store(group="loss", name=name, node=registry.loss_class(name))
    for name, model in registry.importable():
        store.store(group="model", name=name, node=model)
        store.store(group="loss", name=f"of_{name}", node=registry.loss_class(model.default_loss))
    OmegaConf.register_new_resolver("deltacell.string_channels", _string_channels, replace=True)


def _string_channels(_root_: DictConfig) -> list[str]:
    """Return the STRING channels among ``data.relations``, or all six if that is null."""
    channels = [f"string_{channel}" for channel in CHANNELS]
    # Hydra also resolves parts of the config that lack the key.
    named = OmegaConf.select(_root_, "data.relations")
    return [name for name in (channels if named is None else named) if name in channels]


def refresh() -> None:
    """Look again for models that other packages have installed, as a new process does."""
    registry.refresh()
    forget_saved()
    for cached in (all_keys, store_schemas, _shipped):
        cached.cache_clear()
