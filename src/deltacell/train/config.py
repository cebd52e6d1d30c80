"""The config of a training: every key of docs/reference/config.md, with its type and default."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from importlib.resources import files
from operator import attrgetter
from typing import Annotated, Any

import msgspec

from deltacell.base.errors import InputError, did_you_mean
from deltacell.models import registry
from deltacell.models.config import (
    AtLeast0,
    AtLeast1,
    LossConfig,
    ModelConfig,
    Positive,
    Share,
    Weight,
    one_of,
)

GROUPS = ("experiment", "model", "loss", "schedule", "ablation")
"""Config groups, chosen by file name, such as ``experiment=demo``."""

PROPAGATIONS = one_of("shared delta late auto subgraph edge_mask device_mask")


@dataclass
class DataConfig:
    """The cell and the screen to train on."""

    folder: str | None = None
    screen: str | None = None
    context: list[str] = field(default_factory=list)
    cell: str | None = None
    synthetic: Annotated[str, one_of("demo yeast redundancy")] | None = None
    synthetic_seed: AtLeast0 = 0
    synthetic_genotypes: AtLeast1 | None = None
    relations: list[str] | None = None
    merge_relations: dict[str, list[str]] = field(default_factory=dict)
    screen_genes_only: bool = False
    where: dict[str, list[str]] = field(default_factory=dict)
    merge: Annotated[str, one_of("mean median best-p")] | None = None
    subset: AtLeast1 | None = None
    batch_size: AtLeast1 = 64
    samples_per_epoch: AtLeast1 | None = None
    grid: bool = True
    run_length: AtLeast1 | None = None
    standardise: bool = True


@dataclass
class SplitConfig:
    """How the screen is split; see `deltacell.Split`."""

    method: Annotated[str, one_of("random gene set source named saved")] = "random"
    seed: AtLeast0 = 0
    validation: Share = 0.1
    test: Share = 0.1
    held_out: Share = 0.2
    by: Annotated[str, one_of("query pair")] = "query"
    studies: list[str] = field(default_factory=list)
    file: str | None = None
    path: str | None = None


@dataclass
class OptimizerConfig:
    """AdamW."""

    lr: Positive = 1e-3
    weight_decay: Weight = 1e-5
    clip: Positive | None = 10.0
    accumulate: AtLeast1 = 1


@dataclass
class ScheduleConfig:
    """How the learning rate changes."""

    name: Annotated[str, one_of("constant cosine warm_restarts plateau")] = "constant"
    period: AtLeast1 = 10
    min_lr: Weight = 0.0
    factor: Share = 0.5
    patience: AtLeast0 = 5


@dataclass
class TrainerConfig:
    """How the training runs."""

    epochs: AtLeast1 = 10
    devices: AtLeast1 = 1
    nodes: AtLeast1 = 1
    accelerator: Annotated[str, one_of("auto cpu cuda")] = "auto"
    threads: AtLeast1 | None = None
    precision: Annotated[str, one_of("32 64 bf16")] = "32"
    compile: bool = False
    ema: Share | None = None
    validate_every: AtLeast1 = 1
    validation_samples: AtLeast1 | None = None
    checkpoint_every_steps: AtLeast1 | None = None
    checkpoint_every_minutes: Positive | None = 10.0
    keep: AtLeast1 = 2
    figures_every: AtLeast0 = 5
    patience: AtLeast1 | None = None
    progress: bool = True


@dataclass
class LoggersConfig:
    """Where metrics are logged in addition to `metrics.csv`."""

    tensorboard: bool | None = None
    wandb: bool = False
    mlflow: bool = False
    offline: bool = False
    project: str = "deltacell"


@dataclass
class ProfilerConfig:
    """What is recorded about time and memory."""

    phases: bool = True
    trace: bool = False
    window: list[int] = field(default_factory=lambda: [5, 2, 5, 1])
    record_shapes: bool = True
    profile_memory: bool = False
    with_stack: bool = False
    kind: Annotated[str, one_of("cprofile lines memory")] | None = None


@dataclass
class Config:
    """The whole config of a run."""

    name: str = "run"
    directory: str | None = None
    seed: AtLeast0 = 0
    mode: Annotated[str, one_of("train step forward data empty fixed")] = "train"
    mode_steps: AtLeast1 | None = None
    propagation: Annotated[str, PROPAGATIONS] = "auto"
    max_bytes: AtLeast1 | None = None
    data: DataConfig = field(default_factory=DataConfig)
    split: SplitConfig = field(default_factory=SplitConfig)
    model: ModelConfig = field(default_factory=lambda: registry.built_in("dango")())
    loss: LossConfig = field(default_factory=lambda: registry.loss_class("dango")())
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    loggers: LoggersConfig = field(default_factory=LoggersConfig)
    profiler: ProfilerConfig = field(default_factory=ProfilerConfig)

    @property
    def ranks(self) -> int:
        return self.trainer.devices * self.trainer.nodes


def choices(group: str) -> list[str]:
    """Return the names in a group; those of models need not be imported."""
    if group == "model":
        return registry.names()
    if group == "loss":
        return sorted(registry.LOSSES)
    names = (file.name for file in files("deltacell.conf").joinpath(group).iterdir())
    return sorted(name.removesuffix(".yaml") for name in names)


def keys_of(owner: type, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of a dataclass, such as ``trainer.devices``, and their types."""
    for one in fields(owner):
        default = one.default if one.default_factory is MISSING else one.default_factory()
        if is_dataclass(default):
            yield from keys_of(type(default), f"{prefix}{one.name}.")
        else:
            yield f"{prefix}{one.name}", str(one.type)


@cache
def base_keys() -> Mapping[str, str]:
    """Return the keys that no model decides on, with their types; no model is imported."""
    keys = {key: kind for key, kind in keys_of(Config) if not key.startswith("model.")}
    for name in registry.LOSSES:
        keys |= keys_of(registry.loss_class(name), "loss.")
    return {**keys, "model.name": "str"}


@cache
def all_keys() -> Mapping[str, str]:
    """Return all keys that a config may have, depending on its model and loss, with their types."""
    keys = dict(base_keys())
    for _, model in registry.importable():
        keys |= keys_of(model, "model.")
    return keys


def keys_for(word: str) -> Mapping[str, str]:
    """Return the keys that a word such as ``model.hidden`` may be or begin."""
    return all_keys() if word.startswith("model.") else base_keys()


def unknown_name(key: str, name: Any, names: Sequence[str]) -> InputError:
    what = f"unknown {key} '{name}'{did_you_mean(str(name), names)}; expected one of "
    return InputError(what + ", ".join(names), code="unknown-name", key=key)


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
    bounded = config.max_bytes is not None and config.propagation not in ("auto", "delta")
    yield bounded, f"max_bytes is for propagation=auto and delta, not {config.propagation}"
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
