"""Checks of a config: values out of range, and values that contradict each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from operator import attrgetter
from typing import Any, cast

import msgspec
from omegaconf import OmegaConf

from deltacell.base.errors import InputError
from deltacell.train.config.keys import unknown_name
from deltacell.train.config.schema import Config


def checked(composed: Any) -> Config:
    """Return the config that was composed by OmegaConf, or raise."""
    config = cast(Config, OmegaConf.to_object(composed))
    check(config)
    return config


def check(config: Config) -> None:
    """Raise if a value is out of range, or two values contradict each other."""
    for prefix, part in (("", config), ("model.", config.model), ("loss.", config.loss)):
        try:
            msgspec.convert(asdict(part), type(part))
        except msgspec.ValidationError as error:
            what, _, place = str(error).partition(" - at `$.")
            key = prefix + place.rstrip("`")
            value = attrgetter(key)(config)
            if names := re.search(r"\^\((.*)\)\$", what):
                raise unknown_name(key, value, names[1].split("|")) from None
            what = f"{key} is {value}; {what.lower()}"
            raise InputError(what, code="out-of-range", key=key) from None
    for wrong, what, *code in _conflicts(config):
        if wrong:
            raise InputError(what, code=code[0] if code else "conflicting-settings")


def _conflicts(config: Config) -> Iterator[tuple[Any, ...]]:
    data, model, loss, name = config.data, config.model, config.loss, config.name
    sources = [source for source in (data.folder, data.cell, data.synthetic) if source]
    yield (
        not sources and model.needs_data,
        "no data: choose an experiment such as experiment=demo, or set data.folder to the output "
        "of: deltacell data import SOURCES --out FOLDER",
        "no-data",
    )
    bad = not name or name.startswith(".") or any(sign in name for sign in "/\\\0")
    yield bad, f"'{name}' cannot begin a directory name; use letters and digits", "bad-name"
    for key, place in (("directory", config.directory), ("data.folder", data.folder)):
        unprintable = place is not None and not place.isprintable()
        yield unprintable, f"{key} is {place!r}, with characters that cannot be printed", "path"
    mixed = (data.synthetic and data.screen) or (data.cell and not data.screen)
    what = "set one of data.folder, data.synthetic, or data.cell with data.screen; the others null"
    yield len(sources) > 1 or mixed, what
    named = config.split.method == "source"
    either = "split.method=source and split.studies require each other"
    yield named != bool(config.split.studies), either
    size, ranks = data.batch_size, config.ranks
    yield size < ranks, f"data.batch_size={size} is less than the number of processes, {ranks}"
    ignored = bool(data.context) and not model.reads_context
    what = f"the model {model.name} does not read other studies; leave out data.context"
    yield ignored, what, "no-context"
    for sentence in model.conflicts():
        yield True, sentence
    low, lr = config.schedule.min_lr, config.optimizer.lr
    yield low > lr, f"schedule.min_lr={low:g} is above optimizer.lr={lr:g}"
    kind, traced = config.profiler.kind, config.profiler.trace and config.profiler.with_stack
    yield kind and traced, f"profiler.with_stack and profiler.kind={kind} both hook into Python"
    several = config.ranks > 1 or config.mode != "train"
    one_call = f"the model {model.name} is fitted in one call, by one process in mode=train"
    yield model.trained_by == "fit" and several, one_call
    yield (
        not loss.fits(model),
        f"loss={loss.name} does not fit model={model.name}; omit one of the two",
    )
