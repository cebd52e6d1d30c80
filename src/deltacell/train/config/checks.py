"""Checks of a config: values out of range, and values that contradict each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import cast

import msgspec
from omegaconf import DictConfig, OmegaConf

from deltacell.base.errors import InputError
from deltacell.models.config import LossConfig, ModelConfig
from deltacell.train.config.keys import unknown_name
from deltacell.train.config.schema import Config
from deltacell.train.mode import MODES


def checked(composed: DictConfig) -> Config:
    """Return the config that was composed by OmegaConf, or raise."""
    config = cast(Config, OmegaConf.to_object(composed))
    check(config)
    return config


def check(config: Config) -> None:
    """Raise if a value is out of range, or two values contradict each other."""
    _check_values("", config)
    _check_values("model.", config.model)
    _check_values("loss.", config.loss)
    for conflict in _conflicts(config):
        raise InputError(conflict.message, code=conflict.code)


def _check_values(prefix: str, part: Config | ModelConfig | LossConfig) -> None:
    """Raise for a value of a part of a config that its annotation does not allow."""
    try:
        msgspec.convert(asdict(part), type(part))
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`")
        key = prefix + name
        value = attrgetter(name)(part)
        if names := re.search(r"\^\((.*)\)\$", reason):
            raise unknown_name(key, value, names[1].split("|")) from None
        message = f"{key} is {value}; {reason.lower()}"
        raise InputError(message, code="out-of-range", key=key) from None


_METRICS = frozenset({"pearson", "spearman", "mse", "loss"})  # of a validation


@dataclass(frozen=True)
class Conflict:
    """Why the values of a config cannot be used together, or a single one not at all."""

    message: str
    code: str = "conflicting-settings"


def _conflicts(config: Config) -> Iterator[Conflict]:
    yield from _conflicts_of_data(config)
    yield from _conflicts_of_places(config)
    yield from _conflicts_of_training(config)
    for sentence in config.model.conflicts():
        yield Conflict(sentence)
    if not config.loss.fits(config.model):
        yield Conflict(
            f"loss={config.loss.name} does not fit model={config.model.name}; omit one of the two",
        )


def _conflicts_of_data(config: Config) -> Iterator[Conflict]:
    data = config.data
    sources = [source for source in (data.folder, data.cell, data.synthetic) if source]
    if not sources and config.model.needs_data:
        yield Conflict(
            "no data: choose an experiment such as experiment=demo, or set data.folder to the "
            "output of: deltacell data import SOURCES --out FOLDER",
            "no-data",
        )
    has_other_screen = bool(data.synthetic and data.screen)
    has_no_screen = bool(data.cell and not data.screen)
    if len(sources) > 1 or has_other_screen or has_no_screen:
        yield Conflict(
            "set one of data.folder, data.synthetic, or data.cell with data.screen; "
            "the others null",
        )
    if (config.split.method == "source") != bool(config.split.studies):
        yield Conflict("split.method=source and split.studies require each other")
    if data.context and not config.model.reads_context:
        yield Conflict(
            f"the model {config.model.name} does not read other studies; leave out data.context",
            "no-context",
        )
    if data.batch_size < config.ranks:
        yield Conflict(
            f"data.batch_size={data.batch_size} is less than the number of processes, "
            f"{config.ranks}",
        )


def _conflicts_of_places(config: Config) -> Iterator[Conflict]:
    name = config.name
    if not name or name.startswith(".") or any(sign in name for sign in "/\\\0"):
        yield Conflict(
            f"'{name}' cannot begin a directory name; use letters and digits",
            "bad-name",
        )
    for key, place in (("directory", config.directory), ("data.folder", config.data.folder)):
        if place is not None and not place.isprintable():
            yield Conflict(f"{key} is {place!r}, with characters that cannot be printed", "path")


def _conflicts_of_training(config: Config) -> Iterator[Conflict]:
    lowest = config.schedule.min_lr
    initial = config.optimizer.lr
    if lowest > initial:
        yield Conflict(f"schedule.min_lr={lowest:g} is above optimizer.lr={initial:g}")
    best_by = config.trainer.best
    if not best_by or len(set(best_by)) < len(best_by) or not set(best_by) <= _METRICS:
        expected = ", ".join(sorted(_METRICS))
        yield Conflict(f"trainer.best is {best_by}; expected different ones of {expected}")
    profiler = config.profiler
    if profiler.kind and profiler.trace and profiler.with_stack:
        yield Conflict(
            f"profiler.with_stack and profiler.kind={profiler.kind} both hook into Python",
        )
    if profiler.functions and profiler.kind != "lines":
        yield Conflict("profiler.functions is for profiler.kind=lines")
    mode = MODES[config.mode]
    if config.model.trained_by == "fit" and (config.ranks > 1 or not mode.fits_in_one_call):
        yield Conflict(
            f"the model {config.model.name} is fitted in one call, by one process in mode=train",
        )
