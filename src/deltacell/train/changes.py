"""What may differ when a run is resumed, and what may not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from deltacell.errors import InputError
from deltacell.profile.record import CONFIG_FILE, read_run
from deltacell.train.compose import from_yaml, to_yaml
from deltacell.train.config import Config

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


def resumed_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Return the config that a run was saved with, with what may differ changed.

    Parameters
    ----------
    path
        The run's directory.
    overrides
        Such as ``trainer.epochs=20``.
    """
    record = read_run(path)
    file = record.path / CONFIG_FILE
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=file) from error
    config = from_yaml(text, where=file)
    for override in overrides:
        key = override.partition("=")[0]
        allowed = (key.startswith(may) if may.endswith(".") else key == may for may in MAY_CHANGE)
        if "=" not in override or not any(allowed):
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
