"""Sweeps: Hydra starts a training for every combination of values, such as ``seed=0,1,2``.

Hydra parses the values, and its sweeper and its launcher decide which combinations run and where:
in this process one after the other by default, or with ``hydra/launcher=submitit_slurm`` as jobs.
Each combination is a run of its own, in a directory that is named after the values.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig

from deltacell.base.errors import InputError
from deltacell.base.text import hydra_text
from deltacell.profile.record import RUN_FILE, Status, read_run
from deltacell.train.config import Config
from deltacell.train.config.compose import behaviour_of_hydra, store_schemas
from deltacell.train.config.overrides import is_in_mapping
from deltacell.train.places import changes
from deltacell.train.run_config import resumed_config
from deltacell.train.run_directory import run_exists

Compose = Callable[[list[str]], Config]
Train = Callable[[Config, list[str]], int]
"""Trains the config of some words, and returns the signal that stopped it, or 0."""

_OF_HYDRA = ("hydra.", "hydra/", "+hydra", "~hydra")


class SweepStopped(KeyboardInterrupt):
    """A signal, its argument, stopped a sweep, which can be resumed."""


def run_sweep(words: Sequence[str], compose: Compose, train: Train) -> Path:
    """Train every combination of values in overrides; return the directory of their runs.

    Runs that are finished are skipped, and one that was stopped is resumed, so the same call
    resumes a sweep. Overrides that begin with ``hydra`` are for Hydra. Mistakes in a combination
    are found before the first training, unless another sweeper draws the values.
    """
    for_hydra = [word for word in words if word.startswith(_OF_HYDRA)]
    overrides = _parsed(words)
    swept = [override.key_or_group for override in overrides if override.is_sweep_override()]
    has_own_sweeper = any("hydra/sweeper=" in word for word in for_hydra)
    name = "sweep"
    if not has_own_sweeper:
        if not swept:
            what = "no override has several values"
            fix = "Separate them by commas, such as seed=0,1,2; or leave out --multirun."
            raise InputError(what, code="nothing-to-sweep", fix=fix)
        configs = [compose(combination) for combination in combinations_of(words)]
        name = f"{configs[0].name}-sweep"
    fixed = [override.key_or_group for override in overrides if not override.is_sweep_override()]
    settings = [
        f"hydra.sweep.dir=runs/{hydra_text(name)}",
        # Runs make their own directories; Hydra's own files are those of the sweep.
        "hydra.sweep.subdir=.",
        "hydra.output_subdir=null",
        "hydra/job_logging=none",
        f"hydra.job.config.override_dirname.exclude_keys=[{','.join(sorted(set(fixed)))}]",
    ]
    folders: list[Path] = []

    def job(_: DictConfig) -> float:
        of_job = HydraConfig.get()
        folder = Path(of_job.sweep.dir)
        folders.append(folder)
        path = folder / (of_job.job.override_dirname or f"job-{of_job.job.num}")
        return _trained(path, list(of_job.overrides.task), compose, train)

    typed = [_as_hydra_writes(override) for override in overrides]
    with _arguments(["--multirun", *settings, *typed, *for_hydra]):
        store_schemas(ConfigStore.instance())
        place = {"config_path": "pkg://deltacell.conf", "config_name": "config"}
        hydra.main(**place, **behaviour_of_hydra(hydra.main))(job)()
    # Where another process has trained, the directory is known by its option alone.
    return folders[0] if folders else _directory(for_hydra, Path("runs", name))


def _trained(path: Path, words: list[str], compose: Compose, train: Train) -> float:
    """Train a run unless it is finished; return its best validation, NaN without one."""
    words = [*words, f"directory={hydra_text(path)}"]
    config = compose(words)
    if not _is_finished(path, config):
        signal = train(config, words)
        if signal:
            raise SweepStopped(signal)
    best = read_run(path).best
    return math.nan if best is None or best.value is None else best.value


def _is_finished(path: Path, config: Config) -> bool:
    """Return whether a run has finished; raise if it is a run with other settings."""
    if not (path / RUN_FILE).is_file():
        return False
    changed = changes(resumed_config(path), config)
    if changed:
        raise run_exists(path, changed)
    return read_run(path).status is Status.finished


def combinations_of(words: Sequence[str]) -> list[list[str]]:
    """Return the overrides of every run, without those that are for Hydra."""
    try:
        batches = BasicSweeper.split_arguments(_parsed(words), max_batch_size=None)
    except HydraException as error:
        raise InputError(f"{error}; choose hydra/sweeper=NAME", code="unknown-sweep") from error
    [combinations] = batches
    return combinations


def _parsed(words: Sequence[str]) -> list[Override]:
    """Parse the overrides that are not for Hydra."""
    own = [word.lstrip("+") for word in words if not word.startswith(_OF_HYDRA)]
    try:
        return OverridesParser.create().parse_overrides(own)
    except HydraException as error:
        what = f"the overrides cannot be read: {' '.join(str(error).split())}"
        raise InputError(what, code="unreadable-override") from error


def _as_hydra_writes(override: Override) -> str:
    """Return an override with the pluses that Hydra asks for where a mapping gets a new key."""
    text = str(override.input_line)
    return f"++{text}" if is_in_mapping(override.key_or_group) else text


def _directory(for_hydra: Sequence[str], default: Path) -> Path:
    start = "hydra.sweep.dir="
    typed = [word.removeprefix(start) for word in for_hydra if word.startswith(start)]
    return Path(typed[-1]) if typed else default


@contextmanager
def _arguments(words: list[str]) -> Iterator[None]:
    """Give Hydra its arguments, and let it pass errors on instead of printing them."""
    before = sys.argv
    errors_before = os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [before[0], *words]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = before
        if errors_before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = errors_before
