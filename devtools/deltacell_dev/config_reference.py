"""Write docs/reference/config.md anew: ``python -m deltacell_dev.config_reference``.

Keys, their values and defaults come from the code, and the choices from the files that ship; what a
key means is written on the page itself, and kept.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib import resources
from itertools import groupby, takewhile
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from deltacell.models import registry
from deltacell.models.config import ModelConfig
from deltacell.train.config import Config
from deltacell.train.config.compose import compose
from deltacell.train.config.keys import GROUPS, choices, keys_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "config.md"
_DANGO = registry.config_class("dango")()
UNKNOWN = "?"
"""The meaning of a new key, to be written on the page."""


def reference(page: str) -> str:
    """Return the page with its tables made anew."""
    head = page.partition("\n\n## ")[0]
    shipped = [(f"`{group}={n}`", _comment(group, n)) for group in GROUPS for n in choices(group)]
    parts = [head, "## Choices\n\n" + _table(("choice", "what it is"), shipped)]
    keys = [key for key, _ in keys_of(Config) if not key.startswith(("model.", "loss."))]
    classes: dict[str, type] = {
        "": Config,
        **{name: type(value) for name, value in vars(Config()).items()},
    }
    for part, own in groupby(keys, lambda key: key.rpartition(".")[0]):
        parts.append(_section(page, f"`{part}`" if part else "The run", classes[part], own))
    for group, name, owner in _pluggable():
        # The loss decides which model it fits.
        fitting = ["model=additive"] if group == "loss" and not owner().fits(_DANGO) else []
        choice = [f"{group}={name}", *fitting]
        found = (key for key, _ in keys_of(owner, f"{group}."))
        parts.append(_section(page, f"`{choice[0]}`", owner, found, choice))
    return "\n\n".join(parts) + "\n"


def _pluggable() -> Iterator[tuple[str, str, Any]]:
    """Yield the models that ship and the losses: group, name and class of the config."""
    for name in registry.BUILT_IN:
        yield "model", name, registry.config_class(name)
    for name in registry.LOSSES:
        yield "loss", name, registry.loss_class(name)


def _section(
    page: str, title: str, owner: type, keys: Iterable[str], choice: Iterable[str] = ()
) -> str:
    before = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    meanings = dict(re.findall(r"^\| `([\w.]+)` \|.*\| (.*) \|$", before, re.MULTILINE))
    defaults = asdict(compose(["data.synthetic=demo", *choice]))
    defaults["data"]["synthetic"] = None
    rows = []
    types = get_type_hints(owner, include_extras=True)
    for key in keys:
        part, _, field = key.rpartition(".")
        default = defaults[part][field] if part else defaults[field]
        shown = default if isinstance(default, str) else json.dumps(default)
        values = _values(types[field])
        rows.append((f"`{key}`", values, f"`{shown}`", meanings.get(key, UNKNOWN)))
    about = [] if owner is Config else [inspect.getdoc(owner) or ""]
    if issubclass(owner, ModelConfig):
        about.append(f"Class: `{owner.predictor.replace(':', '.')}`.")
    table = _table(("key", "values", "default", "meaning"), rows)
    return "\n\n".join([f"## {title}", *about, table])


def _values(kind: Any) -> str:
    """Return the values that a key may have, such as ``int at least 1 or null``."""
    if get_origin(kind) in (Union, UnionType):
        return f"{_values(get_args(kind)[0])} or null"
    if get_origin(kind) is not Annotated:
        return str(kind) if get_args(kind) else kind.__name__
    base, meta = get_args(kind)
    if meta.pattern is not None:
        return ", ".join(f"`{name}`" for name in meta.pattern[2:-2].split("|"))
    words = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}
    bounds = {name: getattr(meta, name) for name in words}
    told = (f"{words[n]} {b:g}" for n, b in bounds.items() if b is not None and b < 1e300)
    return f"{base.__name__} {' and '.join(told)}"


def _comment(group: str, name: str) -> str:
    """Return the help of a choice: of a class, or the comment that a config file begins with."""
    classes = {"model": registry.config_class, "loss": registry.loss_class}
    if group in classes:
        return (inspect.getdoc(classes[group](name)) or "").partition("\n")[0]
    file = resources.files("deltacell.conf").joinpath(group, f"{name}.yaml")
    text = file.read_text(encoding="utf-8").removeprefix("# @package _global_\n")
    lines = takewhile(lambda line: line.startswith("#"), text.splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


if __name__ == "__main__":
    PAGE.write_text(reference(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
