"""The config of a run: sealed on disk, and with the data what a checkpoint was trained with."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deltacell.base.errors import InputError, StoreError
from deltacell.base.files import write_text
from deltacell.profile.record import CHECKPOINTS, CONFIG_FILE, read_run
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config import Config
from deltacell.train.config.compose import with_settings
from deltacell.train.config.overrides import parse_override
from deltacell.train.config.saved import from_yaml, saved_yaml
from deltacell.train.data import TrainingData
from deltacell.train.places import PLACES, RUNS, changes, for_disk, from_disk

MAY_CHANGE = (
    *("trainer.epochs", "trainer.devices", "trainer.nodes", "trainer.accelerator"),
    *("trainer.threads", "trainer.patience", "trainer.progress", "trainer.keep"),
    *("trainer.checkpoint_every_steps", "trainer.checkpoint_every_minutes"),
    *("trainer.figures_every", "loggers.", "profiler."),
)
"""Keys, or prefixes ending in a dot, that do not change what a step learns."""

MEANING = "run"
"""The key of `meaning` in the state of a checkpoint."""

_PARTS = ("cell", "screen", "split")

_SEAL = "# seal: "
_NO_SEAL = "none"

_ABOUT_SEAL = (
    "# The seal detects damage and edits. If the data have moved, change data.folder above and set "
    f"the seal to '{_NO_SEAL}'.\n"
)


def resumed_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """Return the config of a run with overrides, such as trainer.epochs=20; see `MAY_CHANGE`."""
    config = read_config(read_run(path).path)
    for override in overrides:
        if "=" not in override or not may_change(override.partition("=")[0]):
            what = f"'{override}' cannot change in a resumed run; these keys can: "
            raise InputError(what + ", ".join(MAY_CHANGE), code="cannot-change")
    parsed = [parse_override(override) for override in overrides]
    settings = {override.key_or_group: override.value() for override in parsed}
    return with_settings(config, settings) if settings else config


def write_config(path: Path, config: Config, run: Path | None = None) -> None:
    """Write a config into a folder, with paths relative to the `run` that this folder becomes."""
    text = saved_yaml(for_disk(config, path if run is None else run))
    sealed = f"{text}{_ABOUT_SEAL}{_SEAL}{hashlib.sha256(text.encode()).hexdigest()}\n"
    write_text(path / CONFIG_FILE, sealed, what="the config of the run")


def read_config(path: Path) -> Config:
    """Return the config of a run from its file or, if that was deleted, its last checkpoint.

    Its paths are absolute.
    """
    return from_disk(_written_config(path), path)


def _written_config(path: Path) -> Config:
    file = path / CONFIG_FILE
    try:
        text = file.read_bytes().decode(errors="replace")
    except OSError as error:
        checkpoints = Checkpoints(path / CHECKPOINTS)
        if isinstance(error, FileNotFoundError) and checkpoints.last is not None:
            kept = checkpoints.load().get(MEANING, {})
            return from_yaml(str(kept.get("config", "")), where=file)
        what = f"cannot be read: {error.strerror or error}"
        raise InputError(what, code="no-config", where=file) from error
    above, separator, seal = text.rpartition(f"\n{_SEAL}")
    above = above.rpartition("\n")[0] + "\n"
    if not separator or seal.strip() not in (_NO_SEAL, hashlib.sha256(above.encode()).hexdigest()):
        what = "the config was edited or damaged"
        fix = "Delete the file to use the config of the last checkpoint. To change a key: "
        fix += "deltacell train --resume RUN trainer.epochs=20"
        raise StoreError(what, code="broken-seal", where=file, fix=fix)
    return from_yaml(above, where=file)


def meaning(config: Config, data: TrainingData, run: Path) -> dict[str, str]:
    """Return the config and the checksums of the data, which a checkpoint of a run stores."""
    text = saved_yaml(for_disk(config, run))
    return {"config": text, **{part: getattr(data, part).checksum for part in _PARTS}}


def check_meaning(state: Mapping[str, Any], config: Config, data: TrainingData, path: Path) -> None:
    """Raise if a checkpoint was trained with another config or other data."""
    kept = state[MEANING]
    for change in changes(from_yaml(kept["config"], where=path), config):
        key = change.key
        if not (may_change(key) or key in PLACES or key == RUNS):
            what = f"{key} is {change.now!r}, but the run was trained with {change.before!r}"
            fix = "Delete the file to use the config of the checkpoint."
            raise StoreError(what, code="other-config", where=path / CONFIG_FILE, fix=fix, key=key)
    for part in _PARTS:
        if getattr(data, part).checksum != kept[part]:
            what = f"the checkpoint was trained on another {part}; restore it"
            raise StoreError(what, code=f"other-{part}", where=path)


def may_change(key: str) -> bool:
    """Return whether a key is one of `MAY_CHANGE`."""
    return any(key.startswith(may) if may.endswith(".") else key == may for may in MAY_CHANGE)
