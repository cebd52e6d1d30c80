"""Whether a config makes sense, before anything is loaded."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_args

from deltacell.errors import InputError, did_you_mean
from deltacell.models.base import ACTIVATIONS
from deltacell.models.baselines.additive import Toward
from deltacell.models.combine import COMBINATIONS
from deltacell.models.dango import STRING_LAMBDAS
from deltacell.models.heads import Z_NORMS
from deltacell.models.hetero_cell import AGGREGATIONS, MUTANTS, OUTPUTS
from deltacell.models.losses import Schedule
from deltacell.propagate import STRATEGIES
from deltacell.screen.screen import Merge
from deltacell.screen.split import By, Method
from deltacell.train.config import (
    Config,
    DangoConfig,
    DangoLossConfig,
    DataConfig,
    EnsembleConfig,
    HeteroCellConfig,
    Mode,
    NetworkConfig,
    NoLossConfig,
    PointDistributionContrastConfig,
    SplitConfig,
)
from deltacell.train.config_errors import no_option
from deltacell.train.config_keys import keys_of
from deltacell.train.registry import is_fitted


@dataclass(frozen=True)
class Range:
    """The numbers from ``low`` to ``high``.

    Parameters
    ----------
    low, high
        The ends.
    with_low, with_high
        Whether the ends are among them.
    """

    low: float
    high: float = math.inf
    with_low: bool = True
    with_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = value >= self.low if self.with_low else value > self.low
        below = value <= self.high if self.with_high else value < self.high
        return above and below

    def __str__(self) -> str:
        low = f"{self.low:g} or more" if self.with_low else f"more than {self.low:g}"
        if self.high == math.inf:
            return low
        return f"{low} and {'at most' if self.with_high else 'less than'} {self.high:g}"


_ONE = Range(1)
_ZERO = Range(0)
_POSITIVE = Range(0, with_low=False)
_SHARE = Range(0, 1, with_low=False)

RANGES: Mapping[str, Range] = MappingProxyType(
    {
        "seed": _ZERO,
        "mode_steps": _ONE,
        "max_bytes": _ONE,
        "data.synthetic_seed": _ZERO,
        "data.synthetic_genotypes": _ONE,
        "data.subset": _ONE,
        "data.batch_size": _ONE,
        "data.samples_per_epoch": _ONE,
        "data.run_length": _ONE,
        "split.seed": _ZERO,
        "split.validation": _SHARE,
        "split.test": _SHARE,
        "split.held_out": _SHARE,
        "model.hidden": _ONE,
        "model.layers": _ONE,
        "model.heads": _ONE,
        "model.gin_layers": _ONE,
        "model.local_heads": _ONE,
        "model.local_layers": _ONE,
        "model.mutant_layers": _ONE,
        "model.dropout": Range(0, 1),
        "model.penalty": _POSITIVE,
        "model.shrinkage": _POSITIVE,
        "model.width": _ONE,
        "model.learning_rate": Range(0, 1, with_low=False, with_high=True),
        "model.weight_decay": _ZERO,
        "model.forget": Range(0, 1),
        "model.batch_size": _ONE,
        "model.epochs": _ONE,
        "model.patience": _ONE,
        "model.rounds": _ONE,
        "model.leaves": Range(2),
        "model.dimensions": _ONE,
        "model.feature_dimensions": _ONE,
        "model.folds": Range(2),
        "model.gene_folds": Range(2),
        "model.gene_rounds": _ZERO,
        "model.column_share": Range(0, 1, with_low=False, with_high=True),
        "model.row_share": Range(0, 1, with_low=False, with_high=True),
        "model.zeros": _ZERO,
        "model.nearest": _ONE,
        "model.nearest_both": _ONE,
        "model.drop_genes": Range(0, 1),
        "loss.turn": _ONE,
        "loss.factor": _ZERO,
        "loss.lambda_mse": _ZERO,
        "loss.lambda_w": _ZERO,
        "loss.lambda_c": _ZERO,
        "loss.buffer": _ZERO,
        "loss.warmup": _ONE,
        "loss.stable": _ONE,
        "loss.temperature": _POSITIVE,
        "loss.final_temperature": _POSITIVE,
        "loss.gather_interval": _ZERO,
        "optimizer.lr": _POSITIVE,
        "optimizer.weight_decay": _ZERO,
        "optimizer.beta1": Range(0, 1),
        "optimizer.beta2": Range(0, 1),
        "optimizer.clip": _POSITIVE,
        "optimizer.accumulate": _ONE,
        "schedule.warmup_steps": _ZERO,
        "schedule.period": _ONE,
        "schedule.period_factor": _ONE,
        "schedule.min_lr": _ZERO,
        "schedule.factor": _SHARE,
        "schedule.patience": _ZERO,
        "trainer.epochs": _ONE,
        "trainer.devices": _ONE,
        "trainer.nodes": _ONE,
        "trainer.threads": _ONE,
        "trainer.ema": _SHARE,
        "trainer.validate_every": _ONE,
        "trainer.validation_batch_size": _ONE,
        "trainer.validation_samples": _ONE,
        "trainer.checkpoint_every_steps": _ONE,
        "trainer.checkpoint_every_minutes": _POSITIVE,
        "trainer.keep": _ONE,
        "trainer.figures_every": _ZERO,
        "trainer.patience": _ONE,
    }
)
"""What a number may be, by the name of its key; a key that may be null may be that too."""

CHOICES: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "propagation": tuple(STRATEGIES),
        "data.synthetic": ("demo", "yeast", "redundancy"),
        "data.merge": get_args(Merge),
        "split.method": (*get_args(Method), "saved"),
        "split.by": get_args(By),
        "model.toward": get_args(Toward),
        "model.combine": COMBINATIONS,
        "model.output": OUTPUTS,
        "model.aggregation": AGGREGATIONS,
        "model.activation": tuple(ACTIVATIONS),
        "model.z_norm": Z_NORMS,
        "model.mutants": MUTANTS,
        "loss.schedule": get_args(Schedule),
        "schedule.name": ("constant", "cosine", "warm_restarts", "plateau"),
        "trainer.accelerator": ("auto", "cpu", "cuda"),
        "trainer.precision": ("32", "64", "bf16"),
        "profiler.kind": ("cprofile", "lines", "memory"),
    }
)
"""What a text may be, by the name of its key; a key that may be null may be that too."""


def check(config: Config, *, where: str | os.PathLike[str] | None = None) -> None:
    """Raise where a value is out of range, or two values do not go together.

    Parameters
    ----------
    config
        As it was composed.
    where
        The file it is from, for errors.
    """
    try:
        _check_values(config)
        _check_name(config.name)
        # The data of an ensemble are those of its runs.
        if not isinstance(config.model, EnsembleConfig):
            _check_data(config.data)
        _check_split(config.split)
        _check_model(config)
        _check_loss(config)
        _check_trainer(config)
        _check_window(config.profiler.window)
    except InputError as error:
        raise InputError(error.what, where=where, fix=error.fix) from None


def _check_values(config: Config) -> None:
    for name in keys_of(type(config.model), type(config.loss)):
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part)
        if value is None:
            continue
        if name in RANGES and value not in RANGES[name]:
            raise InputError(f"{name} is {value}; expected {RANGES[name]}")
        if name in CHOICES and value not in CHOICES[name]:
            raise no_option(name, value, CHOICES[name])


def _check_name(name: str) -> None:
    if not name or any(sign in name for sign in "/\\\0") or name.startswith("."):
        raise InputError(
            f"'{name}' cannot be the name of a run: its directory begins with it",
            fix="Choose letters and digits, such as name=demo",
        )


def _check_data(data: DataConfig) -> None:
    given = {
        key: value
        for key in ("folder", "cell", "synthetic")
        if (value := getattr(data, key)) is not None
    }
    if not given:
        raise InputError(
            "there is nothing to train on: data.folder, data.cell and data.synthetic are all null",
            fix="Choose an experiment, such as experiment=demo, or give data.folder=FOLDER, made "
            "with: deltacell data import SOURCES --out FOLDER",
        )
    if len(given) > 1:
        said = " and ".join(f"data.{key}={value}" for key, value in given.items())
        raise InputError(
            f"there are {len(given)} sources of data: {said}",
            fix=f"Keep one: {' '.join(f'data.{key}=null' for key in list(given)[1:])}",
        )
    if data.cell is not None and data.screen is None:
        raise InputError(
            f"data.cell is {data.cell}, and there is no screen", fix="Give data.screen=DIRECTORY"
        )
    if data.synthetic is not None and data.screen is not None:
        raise InputError(
            f"data.screen is {data.screen}, and the made-up data has its own",
            fix="Give data.screen=null, or data.synthetic=null and data.folder=FOLDER",
        )
    _check_names("data.relations", data.relations)
    for name, parts in data.merge_relations.items():
        _check_names(f"data.merge_relations.{name}", parts)


def _check_split(split: SplitConfig) -> None:
    # With gene and source the two are not shares of the same whole.
    if split.method in ("random", "set") and split.validation + split.test >= 1:
        raise InputError(
            "nothing is left for training: split.validation "
            f"{split.validation:g} + split.test {split.test:g} = "
            f"{split.validation + split.test:g}"
        )
    if split.method == "source" and not split.studies:
        raise InputError(
            "split.method is source, and no study is named, so there is no test part",
            fix="Give split.studies=[STUDY]",
        )
    if split.method != "source" and split.studies:
        raise InputError(
            f"split.studies is {split.studies}, and split.method is {split.method}",
            fix="Give split.method=source",
        )


def _check_model(config: Config) -> None:
    model = config.model
    _check_names("model.features", getattr(model, "features", None) or None)
    if isinstance(model, NetworkConfig):
        _check_names("model.relations", model.relations)
    if isinstance(model, DangoConfig):
        _check_divides("model.heads", model.heads, model.hidden)
        _check_lambdas(model)
    elif isinstance(model, HeteroCellConfig):
        if model.output != "global":
            _check_divides("model.local_heads", model.local_heads, model.hidden)
        _check_mutants(model)
    if config.max_bytes is not None and config.propagation not in ("auto", "delta"):
        raise InputError(
            f"max_bytes is {config.max_bytes}, and the propagation {config.propagation} has no "
            "such bound",
            fix="Give max_bytes=null, or propagation=auto",
        )


def _check_mutants(model: HeteroCellConfig) -> None:
    if model.mutant_layers is not None and model.mutant_layers > model.layers:
        raise InputError(
            f"model.mutant_layers is {model.mutant_layers}, and model.layers is {model.layers}",
            fix="Give model.mutant_layers=null for all layers, or at most as many",
        )
    if model.mutants == "none" and model.output != "mean":
        raise InputError(
            f"model.mutants is none, which leaves the local head, and model.output is "
            f"{model.output}",
            fix="Give model.output=mean",
        )


def _check_lambdas(model: DangoConfig) -> None:
    for name, value in model.lambdas.items():
        if value not in _ZERO:
            raise InputError(f"model.lambdas.{name} is {value}; expected {_ZERO}")
    known = {*STRING_LAMBDAS, *model.lambdas}
    without = [name for name in model.relations or () if name not in known]
    if without:
        raise InputError(
            f"the relation '{without[0]}' of model.relations has no lambda, the weight of its "
            f"non-edges in the reconstruction{did_you_mean(without[0], sorted(known))}",
            fix="Give " + " ".join(f"model.lambdas.{name}=1.0" for name in without),
        )


def _check_loss(config: Config) -> None:
    loss = config.loss
    if is_fitted(config.model) != isinstance(loss, NoLossConfig):
        said = "has no loss" if is_fitted(config.model) else "needs one"
        raise InputError(
            f"the loss is {loss.name}, and the model {config.model.name} {said}",
            fix="Give loss=none" if is_fitted(config.model) else "Give another loss than none",
        )
    if isinstance(loss, DangoLossConfig) and not isinstance(config.model, DangoConfig):
        raise InputError(
            f"the loss dango needs reconstructed networks, which the model {config.model.name} "
            "does not make",
            fix="Give loss=log_cosh or loss=point_distribution_contrast",
        )
    if isinstance(loss, PointDistributionContrastConfig):
        if not loss.lambda_mse + loss.lambda_w + loss.lambda_c:
            raise InputError(
                "loss.lambda_mse, loss.lambda_w and loss.lambda_c are all 0, so there is no loss"
            )
        if loss.stable < loss.warmup:
            raise InputError(
                f"loss.stable is epoch {loss.stable}, before loss.warmup, epoch {loss.warmup}"
            )


def _check_trainer(config: Config) -> None:
    ranks = config.trainer.devices * config.trainer.nodes
    if is_fitted(config.model):
        if ranks > 1:
            raise InputError(
                f"the model {config.model.name} is fitted by one process, and there are {ranks}",
                fix="Give trainer.devices=1 trainer.nodes=1",
            )
        if config.mode is not Mode.train:
            raise InputError(
                f"mode is {config.mode}, and the model {config.model.name} has no steps",
                fix="Give mode=train",
            )
    if config.data.batch_size < ranks:
        raise InputError(
            f"data.batch_size is {config.data.batch_size}, and {ranks} processes share it out",
            fix=f"Give data.batch_size={ranks} or more",
        )
    if config.schedule.min_lr > config.optimizer.lr:
        raise InputError(
            f"schedule.min_lr is {config.schedule.min_lr:g}, above optimizer.lr, "
            f"{config.optimizer.lr:g}"
        )


def _check_window(window: Sequence[int]) -> None:
    if len(window) != 4 or any(n < low for n, low in zip(window, (0, 0, 1, 1), strict=True)):
        raise InputError(
            f"profiler.window is {list(window)}; expected four whole numbers [wait, warmup, "
            "active, repeat], the last two 1 or more",
            fix="Such as profiler.window=[5,2,5,1]",
        )


def _check_names(key: str, names: Sequence[str] | None) -> None:
    if names is None:
        return
    if not names:
        raise InputError(f"{key} is empty; expected one name or more")
    for name in _repeated(names):
        raise InputError(f"{key} names '{name}' twice")


def _repeated(names: Sequence[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield name
        seen.add(name)


def _check_divides(key: str, heads: int, hidden: int) -> None:
    if hidden % heads:
        raise InputError(
            f"{key} is {heads}, which does not divide model.hidden, {hidden}",
            fix=f"Choose {key} among {', '.join(str(n) for n in range(1, 17) if hidden % n == 0)}",
        )
