"""The two trainings that are compared: each a run directory, or overrides that compose a config."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from deltacell.base.errors import InputError
from deltacell.profile.explain.subject import run_name
from deltacell.profile.record import RUN_FILE
from deltacell.train.config import Config
from deltacell.train.config.compose import compose
from deltacell.train.places import with_absolute_places
from deltacell.train.run_config import resumed_config


@dataclass(frozen=True)
class TriedSide:
    """One of the two trainings."""

    name: str
    config: Config


def read_sides(a: str, b: str, folder: Path | None = None) -> tuple[TriedSide, TriedSide]:
    """Return both trainings, with names that differ."""
    side_a = _read_side(a, folder)
    side_b = _read_side(b, folder)
    if side_a.name == side_b.name:
        return replace(side_a, name="A"), replace(side_b, name="B")
    return side_a, side_b


def _read_side(text: str, folder: Path | None) -> TriedSide:
    path = Path(text)
    if (path / RUN_FILE).is_file() or path.name == RUN_FILE:
        path = path if path.is_dir() else path.parent
        side = TriedSide(run_name(path), resumed_config(path))
    elif "=" in text:
        config = with_absolute_places(compose(shlex.split(text), folder=folder))
        side = TriedSide(config.name, config)
    else:
        what = "neither a run directory nor overrides of a config"
        fix = "Give a directory made by `deltacell train`, or quoted overrides: 'experiment=demo'."
        raise InputError(what, code="not-a-config", where=text, fix=fix)
    if side.config.model.trained_by != "loop":
        what = f"{side.config.model.name} is fitted in one call, without steps to compare"
        raise InputError(what, code="fitted-run", where=text)
    return side
