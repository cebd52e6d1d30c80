"""The keys of a config: their names, types and defaults, and which one was meant."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Union, get_args, get_origin, get_type_hints

from deltacell.train.config import Config, DangoConfig, DangoLossConfig, LossConfig, ModelConfig
from deltacell.train.registry import LOSS_CONFIGS, MODEL_CONFIGS


@dataclass(frozen=True)
class Key:
    """A key of a config.

    Parameters
    ----------
    name
        With dots, such as ``trainer.devices``.
    owner
        The dataclass it is a field of.
    annotation
        Its type.
    default
        Its value where none is given.
    """

    name: str
    owner: type
    annotation: Any
    default: Any

    @property
    def field(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    @property
    def holds_names(self) -> bool:
        """Whether its value is a mapping, whose own keys may be any."""
        return get_origin(self.annotation) is dict


def keys_of(
    model: type[ModelConfig] = DangoConfig, loss: type[LossConfig] = DangoLossConfig
) -> dict[str, Key]:
    """Return every key that has a value, in order, by its name.

    Parameters
    ----------
    model, loss
        The dataclasses that are chosen.
    """
    return {key.name: key for key in _keys(Config, "", {"model": model, "loss": loss})}


def keys_of_class(owner: type, prefix: str = "") -> list[Key]:
    """Return the keys of one part of a config.

    Parameters
    ----------
    owner
        A dataclass.
    prefix
        What their names begin with.
    """
    return list(_keys(owner, prefix, {}))


def expected(annotation: Any) -> str:
    """Return a type in words, such as "a whole number or null"."""
    if is_optional(annotation):
        (given,) = (kind for kind in get_args(annotation) if kind is not type(None))
        return f"{expected(given)} or null"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return f"one of {', '.join(member.name for member in annotation)}"
    if get_origin(annotation) is list:
        return f"a list of {_PLURALS[get_args(annotation)[0]]} in brackets"
    if get_origin(annotation) is dict:
        value = get_args(annotation)[1]
        each = "a list" if get_origin(value) is list else _WORDS[value]
        return f"names in braces with {each} for each"
    return _WORDS[annotation]


def is_optional(annotation: Any) -> bool:
    """Return whether null is a value of a type."""
    return get_origin(annotation) in (Union, types.UnionType)


def nearest(given: str, known: Sequence[str]) -> str | None:
    """Return the name that was most likely meant, if any is near.

    Parameters
    ----------
    given
        What was written, such as ``trainer.device`` or ``epochs``.
    known
        All names there are.
    """
    by_last: dict[str, list[str]] = {}
    for name in known:
        by_last.setdefault(name.rpartition(".")[2], []).append(name)
    last = given.rpartition(".")[2]
    if last in by_last:
        return _closest(given, _likely(by_last[last], given), cutoff=0.0)
    whole = _closest(given, known, cutoff=0.7)
    if whole is not None and "." in given:
        return whole
    near = _closest(last, list(by_last), cutoff=0.7)
    if near is None:
        return whole
    return _closest(given, _likely(by_last[near], given), cutoff=0.0)


def _likely(names: Sequence[str], given: str) -> Sequence[str]:
    """Return the names that may be meant: a bare ``epochs`` is that of every training."""
    general = [name for name in names if not name.startswith(("model.", "loss."))]
    return general if general and "." not in given else names


_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_PLURALS = {str: "names", int: "whole numbers", float: "numbers"}


def _keys(owner: type, prefix: str, chosen: Mapping[str, type]) -> Iterator[Key]:
    hints = get_type_hints(owner)
    for field in fields(owner):
        annotation = chosen[field.name] if field.name in chosen else hints[field.name]
        name = f"{prefix}{field.name}"
        if is_dataclass(annotation):
            yield from _keys(annotation, f"{name}.", {})
            continue
        made = field.default_factory
        default = field.default if made is MISSING else made()
        yield Key(name, owner, annotation, default)


def _any_keys() -> dict[str, Key]:
    found: dict[str, Key] = {}
    for model in MODEL_CONFIGS.values():
        for loss in LOSS_CONFIGS.values():
            found |= keys_of(model, loss)
    return found


def _closest(given: str, names: Sequence[str], cutoff: float) -> str | None:
    found = difflib.get_close_matches(given, names, n=1, cutoff=cutoff)
    return found[0] if found else None


ANY_KEYS: Mapping[str, Key] = MappingProxyType(_any_keys())
"""The keys that a config may have with some model and some loss, by their names."""
