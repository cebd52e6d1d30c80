"""The keys and choices of configs, of which those of a model are found when it is imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from importlib.resources import files

from deltacell.base.errors import InputError, did_you_mean
from deltacell.models import registry
from deltacell.train.config.schema import Config

GROUPS = ("experiment", "model", "loss", "schedule", "ablation")
"""Config groups, chosen by file name, such as ``experiment=demo``."""


def choices(group: str) -> list[str]:
    """Return the names in a group; those of models need not be imported."""
    if group == "model":
        return registry.names()
    if group == "loss":
        return sorted(registry.LOSSES)
    names = (file.name for file in files("deltacell.conf").joinpath(group).iterdir())
    return sorted(name.removesuffix(".yaml") for name in names)


def keys_of(owner: type, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of a dataclass, such as ``trainer.devices``, and their types."""
    for field in fields(owner):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if is_dataclass(default):
            yield from keys_of(type(default), f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", str(field.type)


@cache
def base_keys() -> Mapping[str, str]:
    """Return the keys that no model decides on, with their types; no model is imported."""
    keys = {key: kind for key, kind in keys_of(Config) if not key.startswith("model.")}
    for name in registry.LOSSES:
        keys |= keys_of(registry.loss_class(name), "loss.")
    return {**keys, "model.name": "str"}


@cache
def all_keys() -> Mapping[str, str]:
    """Return all keys that a config may have, depending on its model and loss, with their types."""
    keys = dict(base_keys())
    for _, model in registry.importable():
        keys |= keys_of(model, "model.")
    return keys


def keys_for(word: str) -> Mapping[str, str]:
    """Return the keys that a word such as ``model.hidden`` may be or begin."""
    return all_keys() if word.startswith("model.") else base_keys()


def unknown_name(key: str, name: object, names: Sequence[str]) -> InputError:
    """Return the error for a name that is not among the names that a key may have."""
    what = f"unknown {key} '{name}'{did_you_mean(str(name), names)}; expected one of "
    return InputError(what + ", ".join(names), code="unknown-name", key=key)
