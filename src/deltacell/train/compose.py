"""Compose configs from overrides, and convert them to YAML and back."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import yaml  # type: ignore[import-untyped]
from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from deltacell import storage
from deltacell.base.errors import InputError, did_you_mean
from deltacell.base.text import hydra_text
from deltacell.cell.readers.networks import CHANNELS
from deltacell.models import registry
from deltacell.models.config import MOST_GENOTYPES, ModelConfig
from deltacell.train.config import (
    GROUPS,
    Config,
    all_keys,
    check,
    keys_for,
    unknown_name,
)
from deltacell.train.data import ReadSources, sources

Where = str | os.PathLike[str] | None


def compose(overrides: Sequence[str] = (), *, folder: Where = None) -> Config:
    """Compose and check a config from overrides such as ``trainer.devices=4``.

    `folder` is a directory of your own configs, such as ``FOLDER/experiment/mine.yaml``.
    """
    with _readable():
        parsed = [parse_override(text) for text in overrides]
        names = tuple(str(one.input_line) for one in parsed if one.key_or_group in GROUPS)
        _check_models(parsed, folder)
        # Files in a user's folder may change between two calls, so they are not cached.
        composed = _compose_groups(names, folder) if folder else deepcopy(_shipped(names))
        for one in parsed:
            if one.key_or_group not in GROUPS:
                add = _is_in_mapping(one.key_or_group)
                OmegaConf.update(composed, one.key_or_group, one.value(), force_add=add)
        OmegaConf.resolve(composed)
        return _checked(composed)


def to_yaml(config: Config) -> str:
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def saved_yaml(config: Config) -> str:
    """Return the config as a run keeps it, with the format that says what its keys mean."""
    return f"{to_yaml(config)}{_FORMAT}: {_FORMAT_NOW}\n"


def from_yaml(text: str, *, where: Where = None) -> Config:
    """Return the config from the text of `saved_yaml`; an unknown key is an error."""
    with _readable(where):
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
    given = OmegaConf.create(text)
    if not isinstance(given, DictConfig):
        raise ValueError("expected keys with values")
    model = _saved_model(OmegaConf.select(given, "model.name"))
    loss = registry.loss_class(OmegaConf.select(given, "loss.name"))()
    _upgrade(given, model)
    defaults = OmegaConf.structured(Config(model=model, loss=loss))
    for key, value in given.model.items():
        if isinstance(value, DictConfig):
            # A saved mapping replaces the default one, which `merge` would add to it.
            defaults.model[key] = {}
    return _checked(OmegaConf.merge(defaults, given))


def _saved_model(name: Any) -> ModelConfig:
    if name in registry.names():
        return registry.config_class(name)()
    if not isinstance(name, str):
        raise registry.unknown_model(name)
    what = f"the model '{name}' is not installed: no package has the entry point '{name}' of the "
    fix = f"Install the package that defines it. Installed: {', '.join(registry.names())}."
    raise InputError(f"{what}group {registry.GROUP}", code="model-not-installed", fix=fix)


_FORMAT = "format"
_FORMAT_NOW = 2


def _upgrade(saved: DictConfig, model: ModelConfig) -> None:
    """Change a config that an earlier version saved so that it means the same now."""
    version = saved.pop(_FORMAT, 1)
    if version not in (1, _FORMAT_NOW):
        what = f"a config of format {version}; this version reads formats 1 and {_FORMAT_NOW}"
        raise InputError(what, code="newer-config", fix="Use a newer version of deltacell.")
    settings = OmegaConf.to_container(saved.model)
    saved.model = model.upgraded(cast(dict[str, Any], settings), version)


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    changed = OmegaConf.structured(config)
    with _readable():
        for key, value in settings.items():
            OmegaConf.update(changed, key, value, merge=False)
        return _checked(changed)


def _checked(composed: Any) -> Config:
    config = cast(Config, OmegaConf.to_object(composed))
    check(config)
    return config


_LOCK = threading.RLock()


def _is_in_mapping(key: str) -> bool:
    """Return whether a key belongs to a mapping, which accepts new names."""
    mappings = (known for known, kind in keys_for(key).items() if kind.startswith("dict"))
    return any(f"{key}.".startswith(f"{mapping}.") for mapping in mappings)


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
        _store_schemas(ConfigStore.instance())
        # A Hydra that is in use is restored afterwards.
        theirs, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
        try:
            with initialize_config_module("deltacell.conf", version_base="1.3"):
                return hydra_compose("config", [*search, *names])
        finally:
            GlobalHydra.instance().hydra = theirs


_shipped = cache(_compose_groups)


@cache
def _store_schemas(store: ConfigStore) -> None:
    whole = OmegaConf.structured(Config)
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
    for cached in (all_keys, _store_schemas, _shipped, _from_yaml):
        cached.cache_clear()


def parse_override(text: str) -> Override:
    """Parse an override without the pluses that Hydra asks for, and check its form and key."""
    try:
        override = OverridesParser.create().parse_override(text.lstrip("+"))
        name, value = override.key_or_group, override.value()
        is_name = isinstance(value, str) or (name == "ablation" and isinstance(value, list))
        is_plain = not (override.is_delete() or override.package or override.is_sweep_override())
        if not is_plain or (name in GROUPS and not is_name):
            raise HydraException
        if "${" in text:
            what = f"'{text}' contains '${{', which would be replaced by something else"
            fix = "Write the value itself. Configs in --config-dir may refer to other keys."
            raise InputError(what, code="interpolation", fix=fix, key=name)
    except HydraException as error:
        what = f"'{text}' is not of the form KEY=VALUE, with one value and without spaces"
        fix = "Quote special characters for the shell and for Hydra: \"KEY='VALUE'\"."
        raise InputError(what, code="unreadable-override", fix=fix) from error
    known = any(f"{key}.".startswith(f"{name}.") for key in (*keys_for(name), *GROUPS))
    known |= _is_in_mapping(name)
    if not known or name in ("model.name", "loss.name"):
        raise _unknown_key(name)
    return override


@contextmanager
def _readable(where: Where = None) -> Iterator[None]:
    """Convert errors of Hydra and OmegaConf to an `InputError` that names the key."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise _config_error(error, where) from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        what = f"the config cannot be read: {' '.join(str(error).split())}"
        raise InputError(what, code="unreadable-config", where=where) from error
    except InputError as error:
        if where is None or error.where is not None:
            raise
        raise InputError(error.message, code=error.code, where=where, **error.fields) from error


def _config_error(error: BaseException, where: Where) -> InputError:
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return unknown_name(group, name, [n for n in error.options if not n.startswith("of_")])
    file = re.match(r"In '([^']+)'", str(error))
    where = file[1] if file is not None and where is None else where
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OmegaConfBaseException):
        cause = cause.__cause__ or cause.__context__
    name = re.sub(r"\[.*", "", str(getattr(cause, "full_key", None) or ""))
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        return _unknown_key(name, where)
    first_line = (str(cause or error).strip() or type(error).__name__).splitlines()[0]
    code = "wrong-type" if name in all_keys() else "invalid-config"
    return InputError(f"{name}: {first_line}", code=code, where=where, key=name)


def _unknown_key(name: str, where: Where = None) -> InputError:
    what = f"unknown key '{name}'"
    if name in all_keys():
        part = name.partition(".")[0]
        what += f" for this {part}; choose another {part} with {part}=NAME"
    else:
        # ``epochs`` stands for trainer.epochs rather than for a key of one model.
        keys = sorted(all_keys(), key=lambda key: key.startswith(("model.", "loss.")))
        last = name.rpartition(".")[2]
        same = [f" (did you mean '{key}'?)" for key in keys if key.rpartition(".")[2] == last]
        what += same[0] if same else did_you_mean(name, [*keys, *GROUPS])
    return InputError(what, code="unknown-key", where=where, key=name)


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
    given = {text.partition("=")[0].lstrip("+") for text in overrides}
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
    chosen = {key: value for key, value in chosen.items() if key not in given}
    return with_settings(config, chosen), {"model": config.model.name, **chosen}
