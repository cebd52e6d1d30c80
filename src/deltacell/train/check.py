"""The keys of a config, which of them was meant, and whether their values make sense together."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

from deltacell.errors import InputError, did_you_mean
from deltacell.train.config import (
    LOSSES,
    MODELS,
    ZERO,
    Config,
    DangoConfig,
    DangoLossConfig,
    DataConfig,
    EnsembleConfig,
    HeteroCellConfig,
    LossConfig,
    Mode,
    ModelConfig,
    NoLossConfig,
    PointDistributionContrastConfig,
    Range,
    is_fitted,
)


@dataclass(frozen=True)
class Key:
    """A key of a config, such as ``trainer.devices``."""

    name: str
    annotation: Any
    default: Any
    meaning: str
    within: Range | None = None
    choices: tuple[str, ...] = ()

    @property
    def is_optional(self) -> bool:
        """Whether it may be null."""
        return get_origin(self.annotation) in (Union, types.UnionType)

    @property
    def is_mapping(self) -> bool:
        """Whether its value is a mapping, which may have any keys."""
        return get_origin(self.annotation) is dict

    @property
    def expected(self) -> str:
        """Its type in words, such as "an integer or null"."""
        return _expected(self.annotation)


def keys_of_class(
    owner: type, prefix: str = "", chosen: Mapping[str, type] = MappingProxyType({})
) -> Iterator[Key]:
    """Yield the keys of a dataclass, with `chosen` classes for some of its parts."""
    hints = get_type_hints(owner)
    for field in fields(owner):
        annotation, name = chosen.get(field.name, hints[field.name]), f"{prefix}{field.name}"
        if is_dataclass(annotation):
            yield from keys_of_class(annotation, f"{name}.")  # type: ignore[arg-type]
            continue
        made = field.default_factory
        default = field.default if made is MISSING else made()
        # Only the names of models and losses have no metadata.
        about = field.metadata or {"meaning": f"Chosen with `{prefix.strip('.')}=NAME`."}
        yield Key(name, annotation, default, **about)


def keys_of(
    model: type[ModelConfig] = DangoConfig, loss: type[LossConfig] = DangoLossConfig
) -> dict[str, Key]:
    """Return every key of a config with this model and this loss, in order, by name."""
    chosen: dict[str, type] = {"model": model, "loss": loss}
    return {key.name: key for key in keys_of_class(Config, chosen=chosen)}


ANY_KEYS: Mapping[str, Key] = MappingProxyType(
    {k: v for m in MODELS.values() for lo in LOSSES.values() for k, v in keys_of(m, lo).items()}
)
"""The keys that a config may have with some model and some loss, by name."""

_WORDS = {str: "text", int: "an integer", float: "a number", bool: "true or false"}
_PLURALS = {str: "names", int: "integers"}


def _expected(annotation: Any) -> str:
    of = get_args(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return f"{_expected(of[0])} or null"
    if get_origin(annotation) is list:
        return f"a list of {_PLURALS[of[0]]} in brackets"
    if get_origin(annotation) is dict:
        return f"a mapping of names to {'lists' if get_origin(of[1]) is list else 'numbers'}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return f"one of {', '.join(member.name for member in annotation)}"
    return _WORDS[annotation]


def nearest(given: str, known: Sequence[str]) -> str | None:
    """Return the key that was most likely meant by ``trainer.device`` or ``epochs``, if any."""
    by_last: dict[str, list[str]] = {}
    for name in known:
        by_last.setdefault(name.rpartition(".")[2], []).append(name)
    last = given.rpartition(".")[2]
    if last not in by_last:
        whole = difflib.get_close_matches(given, known, n=1, cutoff=0.7)
        near = difflib.get_close_matches(last, by_last, n=1, cutoff=0.7)
        if not near or (whole and "." in given):
            return whole[0] if whole else None
        last = near[0]
    names = by_last[last]
    if "." not in given:
        # A bare ``epochs`` is that of every training, not of one model.
        names = [n for n in names if not n.startswith(("model.", "loss."))] or names
    return difflib.get_close_matches(given, names, n=1, cutoff=0.0)[0]


def unknown_name(key: str, name: Any, names: Sequence[str], where: Any = None) -> InputError:
    """Return the error of a name that is not among those a key or a group has."""
    return InputError(
        f"unknown {key} '{name}'{did_you_mean(str(name), names)}; expected one of "
        f"{', '.join(names)}",
        code="unknown-name",
        where=where,
        key=key,
    )


def check(config: Config, *, where: str | Path | None = None) -> None:
    """Raise if a value is out of range, or two values contradict each other."""
    for name, key in keys_of(type(config.model), type(config.loss)).items():
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part)
        if value is None:
            continue
        if key.within is not None and not key.within.holds(value):
            what = f"{name} is {value}; expected {key.within.text}"
            raise InputError(what, code="out-of-range", where=where, key=name)
        if key.choices and value not in key.choices:
            raise unknown_name(name, value, key.choices, where)
    try:
        _check_data(config.data, required=not isinstance(config.model, EnsembleConfig))
        _check_model(config)
        _check_loss(config)
        _check_run(config)
    except InputError as error:
        raise InputError(error.what, code=error.code, where=where, fix=error.fix) from None


def _conflict(what: str, fix: str) -> NoReturn:
    raise InputError(what, code="conflicting-settings", fix=fix)


def _check_data(data: DataConfig, *, required: bool) -> None:
    sources = {key: getattr(data, key) for key in ("folder", "cell", "synthetic")}
    given = [f"data.{key}={value}" for key, value in sources.items() if value is not None]
    # The data of an ensemble are those of its runs.
    if required and not given:
        raise InputError(
            "no data is given: data.folder, data.cell and data.synthetic are all null",
            code="no-data",
            fix="Choose an experiment such as experiment=demo, or set data.folder to a directory "
            "made with: deltacell data import SOURCES --out FOLDER",
        )
    if len(given) > 1:
        _conflict(f"{' and '.join(given)} are several sources of data", "Set all but one to null.")
    if data.cell is not None and data.screen is None:
        _conflict("data.cell is given without a screen", "Set data.screen=DIRECTORY.")
    if data.synthetic is not None and data.screen is not None:
        _conflict("synthetic data have their own screen", "Set data.screen=null.")
    for name, names in (
        ("data.relations", data.relations),
        *((f"data.merge_relations.{new}", old) for new, old in data.merge_relations.items()),
    ):
        _check_names(name, names)


def _check_names(key: str, names: Sequence[str] | None) -> None:
    if names is not None and (not names or len(set(names)) < len(names)):
        what = f"{key} is {list(names)}; expected one or more names, each once"
        raise InputError(what, code="bad-names", key=key)


def _check_model(config: Config) -> None:
    model = config.model
    _check_names("model.features", getattr(model, "features", None) or None)
    _check_names("model.relations", getattr(model, "relations", None))
    if isinstance(model, DangoConfig):
        _check_divides("model.heads", model.heads, model.hidden)
        _check_lambdas(model)
    if isinstance(model, HeteroCellConfig):
        if model.output != "global":
            _check_divides("model.local_heads", model.local_heads, model.hidden)
        if (model.mutant_layers or 0) > model.layers:
            _conflict(
                f"model.mutant_layers is {model.mutant_layers}, more than model.layers, "
                f"{model.layers}",
                "Set model.mutant_layers=null for all layers.",
            )
        if model.mutants == "none" and model.output != "mean":
            _conflict(
                f"model.mutants=none leaves only the local head, but model.output is "
                f"{model.output}",
                "Set model.output=mean.",
            )
    if config.max_bytes is not None and config.propagation not in ("auto", "delta"):
        _conflict(
            f"max_bytes is for the propagations auto and delta, not {config.propagation}",
            "Set max_bytes=null or propagation=auto.",
        )


def _check_divides(key: str, heads: int, hidden: int) -> None:
    if hidden % heads:
        divisors = ", ".join(str(n) for n in range(1, 17) if hidden % n == 0)
        _conflict(
            f"{key} is {heads}, which does not divide model.hidden, {hidden}",
            f"Set {key} to one of {divisors}.",
        )


def _check_lambdas(model: DangoConfig) -> None:
    for name, value in model.lambdas.items():
        if not ZERO.holds(value):
            what = f"model.lambdas.{name} is {value}; expected {ZERO.text}"
            raise InputError(what, code="out-of-range", key=f"model.lambdas.{name}")
    if model.relations is None:
        return
    from deltacell.models import STRING_LAMBDAS

    known = {*STRING_LAMBDAS, *model.lambdas}
    for name in model.relations:
        if name not in known:
            _conflict(
                f"the relation '{name}' of model.relations has no lambda, the weight of its "
                f"non-edges{did_you_mean(name, sorted(known))}",
                f"Set model.lambdas.{name}=1.0.",
            )


def _check_loss(config: Config) -> None:
    model, loss = config.model, config.loss
    if is_fitted(model) != isinstance(loss, NoLossConfig):
        has = "has no loss" if is_fitted(model) else "needs a loss"
        fix = "Set loss=none." if is_fitted(model) else "Set loss=log_cosh."
        _conflict(f"the model {model.name} {has}, but the loss is {loss.name}", fix)
    if isinstance(loss, DangoLossConfig) and not isinstance(model, DangoConfig):
        _conflict(
            f"the loss dango needs reconstructed networks, which {model.name} does not make",
            "Set loss=log_cosh or loss=point_distribution_contrast.",
        )
    if isinstance(loss, PointDistributionContrastConfig):
        if not loss.lambda_mse + loss.lambda_w + loss.lambda_c:
            _conflict("all three weights of the loss are 0", "Set loss.lambda_mse=1.")
        if loss.stable < loss.warmup:
            _conflict(
                f"loss.stable is {loss.stable}, before loss.warmup, {loss.warmup}",
                "Set loss.stable to at least loss.warmup.",
            )


def _check_run(config: Config) -> None:
    name, split, model = config.name, config.split, config.model
    if not name or any(sign in name for sign in "/\\\0") or name.startswith("."):
        what = f"'{name}' cannot begin the name of a directory"
        raise InputError(what, code="bad-name", fix="Use letters and digits, such as name=demo.")
    # With gene and source the two are not shares of the same whole.
    if split.method in ("random", "set") and split.validation + split.test >= 1:
        _conflict(
            f"split.validation {split.validation:g} and split.test {split.test:g} leave nothing "
            "for training",
            "Set them so that their sum is less than 1.",
        )
    if (split.method == "source") != bool(split.studies):
        _conflict(
            f"split.method is {split.method}, and split.studies is {split.studies}",
            "Set both split.method=source and split.studies=[STUDY].",
        )
    if is_fitted(model) and (config.ranks > 1 or config.mode is not Mode.train):
        _conflict(
            f"the model {model.name} is fitted in one call, by one process",
            "Set trainer.devices=1 trainer.nodes=1 mode=train.",
        )
    if config.data.batch_size < config.ranks:
        _conflict(
            f"data.batch_size {config.data.batch_size} is shared by {config.ranks} processes",
            f"Set data.batch_size={config.ranks} or more.",
        )
    if config.schedule.min_lr > config.optimizer.lr:
        _conflict(
            f"schedule.min_lr {config.schedule.min_lr:g} is above optimizer.lr "
            f"{config.optimizer.lr:g}",
            "Set schedule.min_lr=0.",
        )
    window = config.profiler.window
    if len(window) != 4 or any(n < low for n, low in zip(window, (0, 0, 1, 1), strict=True)):
        what = f"profiler.window is {window}; expected [wait, warmup, active, repeat]"
        raise InputError(what, code="out-of-range", fix="Such as profiler.window=[5,2,5,1].")
