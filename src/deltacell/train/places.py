"""The paths in the config of a run, which are relative to the run on disk.

So a run and its data survive being renamed, moved or copied together, and a run finds its data from
every working directory. In memory, paths are absolute or relative to the working directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from deltacell.train.config import Config

PLACES = (
    "directory",
    "data.folder",
    "data.cell",
    "data.screen",
    "data.context",
    "data.orthologues",
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
    before: object
    now: object

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
    absolute = _with_places(config, lambda place: _likeliest(place, base, config.directory))
    return replace(absolute, directory=os.path.abspath(run))  # noqa: PTH100


def changes(before: Config, now: Config) -> list[Change]:
    """Return the keys that differ, without the run's directory; equal paths may be written apart.

    The key of a model or a loss that only one of the configs has is None in the other.
    """
    values_before = flat_values(_with_places(before, _absolute))
    values_now = flat_values(_with_places(now, _absolute))
    keys = values_before.keys() | values_now.keys()
    pairs = [
        Change(key, values_before.get(key), values_now.get(key))
        for key in sorted(keys)
        if key != "directory"
    ]
    return [change for change in pairs if change.before != change.now]


def _likeliest(place: str, base: str, directory: str | None) -> str:
    """Return where a path in a run leads: to the first candidate that exists, or to the first."""
    candidates = list(_candidates(place, base, directory))
    existing = [path for path in candidates if os.path.lexists(path)]
    return [*existing, *candidates][0]


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
    """Return a config with every path in it converted."""

    def converted(place: str | None) -> str | None:
        return None if place is None else convert(place)

    folder = config.data.folder
    context = [
        entry if is_name_in_folder(entry, folder) else convert(entry)
        for entry in config.data.context
    ]
    data = replace(
        config.data,
        folder=converted(folder),
        cell=converted(config.data.cell),
        context=context,
        orthologues=converted(config.data.orthologues),
    )
    if data.cell is not None:  # Without a cell, the screen is a name in the folder.
        data = replace(data, screen=converted(data.screen))
    split = replace(
        config.split,
        file=converted(config.split.file),
        path=converted(config.split.path),
    )
    return replace(config, data=data, split=split, model=config.model.with_paths(convert))


def is_name_in_folder(entry: str, folder: str | None) -> bool:
    """Return whether an entry of ``data.context`` is the name of a screen in ``data.folder``.

    All others are paths; to be taken for one, a path in the working directory begins with ``./``.
    """
    return folder is not None and "/" not in entry and "\\" not in entry


def with_absolute_places(config: Config) -> Config:
    """Return a config that means the same in every working directory."""
    return _with_places(config, _absolute)


def flat_values(config: Config) -> dict[str, object]:
    """Return the values of a config by key, such as ``model.hidden``."""
    flat: dict[str, object] = {}
    for name, value in asdict(config).items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return flat
