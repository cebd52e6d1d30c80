"""What a run and its checkpoints mean: the config they were made with, and what may differ."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from deltacell.errors import InputError, StoreError
from deltacell.files import write_text
from deltacell.profile.record import CHECKPOINTS, CONFIG_FILE, read_run
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.compose import from_yaml, to_dict, to_yaml
from deltacell.train.config import Config
from deltacell.train.registry import is_fitted

if TYPE_CHECKING:
    from deltacell.train.data import TrainingData

MAY_CHANGE = (
    "trainer.epochs",
    "trainer.devices",
    "trainer.nodes",
    "trainer.accelerator",
    "trainer.threads",
    "trainer.patience",
    "trainer.progress",
    "trainer.keep",
    "trainer.checkpoint_every_steps",
    "trainer.checkpoint_every_minutes",
    "trainer.figures_every",
    "loggers.",
    "profiler.",
)
"""Keys, or beginnings of them, that do not change what is learned from the same steps."""

PLACES = ("directory", "data.folder", "data.cell", "data.screen")
"""Keys that say where things are; what is there is compared by its checksum."""


def resumed_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Return the config that a run was saved with, with what may differ changed.

    Parameters
    ----------
    path
        The run's directory.
    overrides
        Such as ``trainer.epochs=20``.
    """
    config = read_config(read_run(path).path)
    for override in overrides:
        if "=" not in override or not _may_change(override.partition("=")[0]):
            raise InputError(
                f"'{override}' cannot be changed when a run is resumed; what can is "
                f"{', '.join(may + '*' if may.endswith('.') else may for may in MAY_CHANGE)}",
                fix="Start a new run for anything else.",
            )
    try:
        merged = OmegaConf.merge(
            OmegaConf.structured(config), OmegaConf.from_dotlist(list(overrides))
        )
        return from_yaml(to_yaml(cast(Config, OmegaConf.to_object(cast(DictConfig, merged)))))
    except (OmegaConfBaseException, YAMLError) as error:
        raise InputError(
            f"{' '.join(overrides)}: {str(error).splitlines()[0]}",
            fix="deltacell train --cfg job --resume RUN shows the config as it is.",
        ) from error


def write_config(path: Path, config: Config) -> None:
    """Write the config of a run, with a seal that shows damage and edits.

    Parameters
    ----------
    path
        The run's directory.
    config
        The resolved one.
    """
    text = to_yaml(config)
    sealed = f"{text}{_ABOUT_SEAL}{_SEAL}{hashlib.sha256(text.encode()).hexdigest()}\n"
    write_text(path / CONFIG_FILE, sealed, what="the config of the run")


def meaning(config: Config, data: TrainingData) -> dict[str, str]:
    """Return what a checkpoint keeps beside its weights: what they were trained with and on.

    Parameters
    ----------
    config
        Of the run.
    data
        The cell, the screen and the split.
    """
    return {
        "config": to_yaml(config),
        "cell": data.cell.checksum,
        "screen": data.screen.checksum,
        "split": data.split.checksum,
    }


def check_meaning(state: Mapping[str, Any], config: Config, data: TrainingData, path: Path) -> None:
    """Raise where a checkpoint was not trained with this config on these data.

    Parameters
    ----------
    state
        Of the checkpoint.
    config
        As the run has it now; what `MAY_CHANGE` and `PLACES` name may differ.
    data
        As they are now.
    path
        The run's directory.
    """
    kept = state.get(MEANING)
    if not isinstance(kept, dict) or not kept.keys() >= {"config", "cell", "screen", "split"}:
        raise StoreError(
            "the checkpoint does not say what it was trained with: an earlier version wrote it",
            where=path,
            fix="Train the run again.",
        )
    was, now = _flat(to_dict(from_yaml(kept["config"], where=path))), _flat(to_dict(config))
    for key in sorted(was.keys() | now.keys()):
        if was.get(key) != now.get(key) and not (_may_change(key) or key in PLACES):
            raise StoreError(
                f"{key} is {now.get(key)!r}, and the checkpoint was trained with {was.get(key)!r}",
                where=path / CONFIG_FILE,
                fix="The file was changed after the training. Delete it, and the checkpoint's own "
                "config is used.",
            )
    for what, found in meaning(config, data).items():
        if what != "config" and found != kept[what]:
            raise StoreError(
                f"the {what} is not the one that the checkpoint was trained on: its checksum is "
                f"{found[:12]}, and it was {kept[what][:12]}",
                where=path,
                fix=f"Put back the {what} as it was, or train a new run.",
            )


def is_complete(state: Mapping[str, Any], config: Config) -> bool:
    """Return whether a checkpoint is that of a training's end.

    Parameters
    ----------
    state
        Of the last checkpoint.
    config
        Of the run.
    """
    if is_fitted(config.model):
        return True
    position, trainer = state["position"], config.trainer
    enough = trainer.patience is not None and position["waited"] >= trainer.patience
    return bool(position["epoch"] >= trainer.epochs or enough)


MEANING = "run"
"""The key of a checkpoint's state that holds its `meaning`."""

_SEAL, _NO_SEAL = "# seal: ", "none"
_ABOUT_SEAL = (
    "# The seal shows damage and edits. Where the data have moved, change data.folder above and "
    f"write '{_NO_SEAL}' for the seal.\n"
)


def read_config(path: Path) -> Config:
    """Return the config of a run, from its file or, where that was deleted, its last checkpoint."""
    file = path / CONFIG_FILE
    try:
        content = file.read_bytes()
    except FileNotFoundError as error:
        checkpoints = Checkpoints(path / CHECKPOINTS)
        if checkpoints.last is None:
            raise InputError(f"cannot be read: {error.strerror}", where=file) from error
        kept = checkpoints.load().get(MEANING, {})
        return from_yaml(str(kept.get("config", "")), where=file)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=file) from error
    try:
        text = content.decode()
    except ValueError as error:
        raise InputError("this is not text in UTF-8", where=file, fix=_PUT_BACK) from error
    above, found, seal = text.rpartition(f"\n{_SEAL}")
    above = above.rpartition("\n")[0] + "\n"
    if not found or seal.strip() not in (_NO_SEAL, hashlib.sha256(above.encode()).hexdigest()):
        raise StoreError(
            "the config is not as it was written: it was edited or damaged",
            where=file,
            fix=_PUT_BACK,
        )
    return from_yaml(above, where=file)


_PUT_BACK = (
    "Delete the file, and the config is taken from the last checkpoint. What may change is given "
    "to the command: deltacell train --resume RUN trainer.epochs=20"
)


def _may_change(key: str) -> bool:
    return any(key.startswith(may) if may.endswith(".") else key == may for may in MAY_CHANGE)


def _flat(data: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return the values of nested dicts by their keys, joined by dots."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{key}.")
        else:
            found[f"{before}{key}"] = value
    return found
