"""The paths in the config of a run, which are relative to the run on disk.

So a run and its data survive being renamed, moved or copied together, and a run finds its data from
every working directory. In memory, paths are absolute or relative to the working directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from deltacell.train.config import Config

PLACES = (
    "directory",
    "data.folder",
    "data.cell",
    "data.screen",
    "data.context",
    "split.file",
    "split.path",
)
"""Keys of locations, whose contents are compared by checksum."""

RUNS = "model.runs"
"""The runs of an ensemble, which has copies of them."""


@dataclass(frozen=True)
class Change:
    """A key that differs between two configs."""

    key: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.key} was {self.before!r} and is {self.now!r}"


def for_disk(config: Config, run: Path) -> Config:
    """Return a config with its paths relative to a run's directory, which itself is absolute.

    The directory tells where the other paths lead if the run alone has been moved.
    """
    base = os.path.realpath(run)
    relative = _with_places(config, lambda place: os.path.relpath(_absolute(place), base))
    return replace(relative, directory=base)


def from_disk(config: Config, run: Path) -> Config:
    """Return the config that was read from a run's directory, with absolute paths."""
    base = os.path.realpath(run)

    def found(place: str) -> str:
        candidates = list(_candidates(place, base, config.directory))
        existing = [path for path in candidates if os.path.lexists(path)]
        return [*existing, *candidates][0]

    return replace(_with_places(config, found), directory=os.path.abspath(run))  # noqa: PTH100


def changes(before: Config, now: Config) -> list[Change]:
    """Return the keys that differ, without the run's directory; equal paths may be written apart.

    The key of a model or a loss that only one of the configs has is None in the other.
    """
    flat = [_flat(_with_places(config, _absolute)) for config in (before, now)]
    keys = sorted(key for key in flat[0].keys() | flat[1].keys() if key != "directory")
    found = [Change(key, flat[0].get(key), flat[1].get(key)) for key in keys]
    return [change for change in found if change.before != change.now]


def _candidates(place: str, base: str, directory: str | None) -> Iterator[str]:
    """Yield where a path in a run may lead, the likeliest first.

    Runs of earlier versions have absolute paths, and paths relative to the working directory of
    their training. `directory` is where the run was when its config was written.
    """
    if Path(place).is_absolute():
        yield place
    else:
        yield os.path.normpath(os.path.join(base, place))  # noqa: PTH118
        if directory is not None and Path(directory).is_absolute():
            yield os.path.normpath(os.path.join(directory, place))  # noqa: PTH118
        yield _absolute(place)
    # The data may have been moved together with the run.
    if directory is not None and Path(place).is_absolute() == Path(directory).is_absolute():
        beside = os.path.relpath(place, directory)
        yield os.path.normpath(os.path.join(base, beside))  # noqa: PTH118


def _absolute(place: str) -> str:
    """Return an absolute path without links in its parents, so that equal paths are equal text."""
    path = Path(place)
    if path.name in ("", ".."):
        return os.path.realpath(place)
    return os.path.join(os.path.realpath(path.parent), path.name)  # noqa: PTH118


def _with_places(config: Config, convert: Callable[[str], str]) -> Config:
    def converted(place: str | None) -> str | None:
        return None if place is None else convert(place)

    data, split, model = config.data, config.split, config.model
    # Without a cell, the screen is a name in the folder.
    screen = data.screen if data.cell is None else converted(data.screen)
    context = [one if is_name_in_folder(one, data.folder) else convert(one) for one in data.context]
    data = replace(
        data,
        folder=converted(data.folder),
        cell=converted(data.cell),
        screen=screen,
        context=context,
    )
    split = replace(split, file=converted(split.file), path=converted(split.path))
    return replace(config, data=data, split=split, model=model.with_paths(convert))


def is_name_in_folder(context: str, folder: str | None) -> bool:
    """Return whether an entry of ``data.context`` is the name of a screen in ``data.folder``.

    All others are paths; to be taken for one, a path in the working directory begins with ``./``.
    """
    return folder is not None and "/" not in context and "\\" not in context


def _flat(config: Config) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in asdict(config).items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return flat
