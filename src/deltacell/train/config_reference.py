"""The reference page of the config, written from the dataclasses and the files that ship."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from deltacell.models import DangoLoss, PointDistributionContrast
from deltacell.train.check import CHOICES, RANGES
from deltacell.train.compose import GROUPS, compose_dict, options
from deltacell.train.config import DangoLossConfig, NoLossConfig, PointDistributionContrastConfig
from deltacell.train.config_keys import Key, expected, is_optional, keys_of, keys_of_class
from deltacell.train.registry import LOSS_CONFIGS, MODEL_CONFIGS, MODELS

PAGE = "docs/reference/config.md"
"""Where the page is in the repository."""


def reference() -> str:
    """Return the page: what can be chosen, and every key with its values, default and meaning."""
    parts = [_HEAD, _choices_table()]
    general = [key for key in keys_of().values() if "." not in key.name]
    defaults = _defaults()
    parts.append(_section("The run", "", general, defaults))
    for part, keys in _by_part().items():
        parts.append(_section(f"`{part}`", _summary(keys[0].owner), keys, defaults))
    for group, kinds in (("model", MODEL_CONFIGS), ("loss", LOSS_CONFIGS)):
        for name, owner in kinds.items():
            keys = keys_of_class(owner, f"{group}.")
            # Without a loss there is only what is fitted in one call.
            of_none = ["model=global_mean"] if owner is NoLossConfig else []
            defaults = _defaults(f"{group}={name}", *of_none)
            parts.append(_section(f"`{group}={name}`", _summary(owner), keys, defaults))
    return "\n\n".join(parts) + "\n"


def write_reference(path: str | os.PathLike[str] = PAGE) -> None:
    """Write the page anew, after a change of the config."""
    Path(path).write_text(reference(), encoding="utf-8")


def meaning(key: Key) -> str:
    """Return what a key means, from the docstring of its dataclass or of what that describes.

    Parameters
    ----------
    key
        Of a config.
    """
    documented: list[type] = [c for c in key.owner.__mro__ if c is not object]
    described = _described()
    if key.owner in described:
        documented.append(described[key.owner])
    for owner in documented:
        found = _parameters(owner)
        if key.field in found:
            return found[key.field]
    group = key.name.partition(".")[0]
    return f"Which it is; chosen with `{group}=NAME`." if key.field == "name" else ""


def _described() -> dict[type, type]:
    """Return the class whose docstring explains the keys of a config, by the config."""
    losses = {
        DangoLossConfig: DangoLoss,
        PointDistributionContrastConfig: PointDistributionContrast,
    }
    return {one.config: one.described() for one in MODELS.values()} | losses


_HEAD = """\
# The config of a training

A training is described by its config: what ships, and the keys that are given with it, as
`deltacell train experiment=demo data.batch_size=64 seed=1`. `--cfg job` prints the whole of it and
stops. An unknown key, a value of another kind or one out of range is an error that says which was
meant. The config is saved with the run as `config.yaml`.

A list is written in brackets, `profiler.window=[5,2,5,1]`; a mapping key by key,
`model.lambdas.physical=1.0`, or in braces, `model.lambdas={physical:1.0}`; none of something as
`null`. Quote what the shell would take for itself.

This page is written by `deltacell.train.config_reference.write_reference`; a test holds it to the
code."""


def _choices_table() -> str:
    rows = [
        (f"`{group}={name}`", _comment(group, name)) for group in GROUPS for name in options(group)
    ]
    return "## What can be chosen\n\n" + _table(("choice", "what it is"), rows)


def _comment(group: str, name: str) -> str:
    """Return the comment that a file begins with."""
    file = resources.files("deltacell.conf").joinpath(group, f"{name}.yaml")
    lines = file.read_text(encoding="utf-8").splitlines()
    said = []
    for line in lines:
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            said.append(line.removeprefix("#").strip())
    return " ".join(said)


def _by_part() -> dict[str, list[Key]]:
    found: dict[str, list[Key]] = {}
    for key in keys_of().values():
        part, dot, _ = key.name.partition(".")
        if dot and part not in ("model", "loss"):
            found.setdefault(part, []).append(key)
    return found


def _defaults(*choice: str) -> dict[str, Any]:
    """Return the value of every key where no more than this is given."""
    whole = compose_dict(["data.synthetic=demo", *choice])
    whole["data"]["synthetic"] = None
    found: dict[str, Any] = {}
    for part, value in whole.items():
        if isinstance(value, dict):
            found |= {f"{part}.{name}": inner for name, inner in value.items()}
        else:
            found[part] = value
    return found


def _section(title: str, about: str, keys: Iterable[Key], defaults: Mapping[str, Any]) -> str:
    rows = [
        (f"`{key.name}`", _values(key), _default(defaults[key.name]), meaning(key)) for key in keys
    ]
    text = [f"## {title}", *([about] if about else [])]
    return "\n\n".join([*text, _table(("key", "values", "default", "meaning"), rows)])


def _values(key: Key) -> str:
    if key.name in CHOICES:
        names = ", ".join(f"`{name}`" for name in CHOICES[key.name])
        return f"{names} or null" if is_optional(key.annotation) else names
    said = expected(key.annotation)
    return f"{said}; {RANGES[key.name]}" if key.name in RANGES else said


def _default(value: Any) -> str:
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    escaped = (tuple(cell.replace("|", "\\|") for cell in row) for row in lines)
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def _summary(owner: type) -> str:
    return _plain((inspect.getdoc(owner) or "").split("\n\n")[0])


def _parameters(owner: type) -> dict[str, str]:
    """Return the meaning of each parameter in a docstring of numpy's form."""
    _, found, text = (inspect.getdoc(owner) or "").partition("Parameters\n----------\n")
    meanings: dict[str, str] = {}
    names: list[str] = []
    for line in text.splitlines() if found else ():
        if line.startswith(" "):
            for name in names:
                meanings[name] += f" {line.strip()}"
        elif line:
            names = line.split(", ")
            # Those that are told of together stay together.
            shared = f"{', '.join(f'`{name}`' for name in names)}: " if len(names) > 1 else ""
            meanings |= dict.fromkeys(names, shared)
    return {name: _plain(said) for name, said in meanings.items()}


def _plain(text: str) -> str:
    return re.sub(r"``(.*?)``", r"`\1`", " ".join(text.split()))
