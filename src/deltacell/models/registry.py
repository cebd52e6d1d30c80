"""All predictors and losses by name: those of this package, and those that others install.

A package adds a predictor with an entry point of the group ``deltacell.models`` that names its
config, such as ``tiny = "tiny:TinyConfig"``. Listing the names imports nothing; `config_class`
imports one module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from deltacell.base.errors import InputError, did_you_mean
from deltacell.models.config import LossConfig, ModelConfig

GROUP = "deltacell.models"
"""The group of the entry points of other packages."""

# Not entry points, which an editable install does not update.
BUILT_IN: Mapping[str, str] = {
    "additive": "deltacell.models.baselines.config:AdditiveConfig",
    "additive_pair": "deltacell.models.baselines.config:AdditivePairConfig",
    "boosted_trees": "deltacell.models.baselines.config:BoostedTreesConfig",
    "dango": "deltacell.models.dango.config:DangoConfig",
    "ensemble": "deltacell.train.ensemble_config:EnsembleConfig",
    "global_mean": "deltacell.models.baselines.config:GlobalMeanConfig",
    "hetero_cell": "deltacell.models.hetero_cell.config:HeteroCellConfig",
    "low_rank": "deltacell.models.baselines.config:LowRankConfig",
    "matrix_factorisation": "deltacell.models.baselines.config:MatrixFactorisationConfig",
    "nearest_profiles": "deltacell.models.baselines.config:NearestProfilesConfig",
    "pair_cell": "deltacell.models.pair_cell.config:PairCellConfig",
    "pair_trees": "deltacell.models.pair_trees.config:PairTreesConfig",
    "query_pair": "deltacell.models.baselines.config:QueryPairConfig",
    "query_pair_mean": "deltacell.models.baselines.config:QueryPairMeanConfig",
}
"""The configs of the predictors of this package, as ``module:Class``."""

LOSSES: Mapping[str, str] = {
    "dango": "deltacell.models.loss_config:DangoLossConfig",
    "log_cosh": "deltacell.models.loss_config:LogCoshConfig",
    "none": "deltacell.models.loss_config:NoLossConfig",
    "point_distribution_contrast": "deltacell.models.loss_config:PointDistributionContrastConfig",
}
"""The configs of the losses."""

BASELINES = (
    *("global_mean", "additive", "query_pair", "query_pair_mean", "additive_pair"),
    *("matrix_factorisation", "low_rank", "nearest_profiles", "boosted_trees"),
)
"""The baselines that `deltacell evaluate` fits by name."""


def names() -> list[str]:
    """Return the names of all predictors; nothing is imported."""
    return sorted({*BUILT_IN, *_installed()})


def config_class(name: str) -> type[ModelConfig]:
    """Import and return the config of a predictor."""
    entries = _installed().get(name, [])
    if len(entries) + (name in BUILT_IN) > 1:
        owners = [_package(entry) for entry in entries] + ["deltacell"] * (name in BUILT_IN)
        packages = sorted(owners)
        what = f"several packages have a model '{name}': {', '.join(packages)}"
        fix = "Uninstall all but one of them, or rename the entry point."
        raise InputError(what, code="ambiguous-model", fix=fix, packages=packages)
    if name in BUILT_IN:
        return built_in(name)
    if not entries:
        raise unknown_model(name)
    return _foreign(entries[0])


def built_in(name: str) -> type[ModelConfig]:
    """Import and return the config of a predictor of this package."""
    config: type[ModelConfig] = _imported(BUILT_IN[name])
    return config


def loss_class(name: str) -> type[LossConfig]:
    """Import and return the config of a loss."""
    if name not in LOSSES:
        what = f"unknown loss '{name}'{did_you_mean(str(name), LOSSES)}; expected one of "
        raise InputError(what + ", ".join(LOSSES), code="unknown-name", key="loss")
    config: type[LossConfig] = _imported(LOSSES[name])
    return config


def importable() -> Iterator[tuple[str, type[ModelConfig]]]:
    """Yield the names and configs of all predictors; a package that is broken is left out."""
    for name in names():
        try:
            config = config_class(name)
        except InputError:
            continue
        yield name, config


def settings_of(predictor: object) -> tuple[str, dict[str, Any]] | None:
    """Return the name and the settings of a predictor made by hand; None if it has no config.

    The settings are the arguments of its constructor; the weights are not part of them.
    """
    kind = type(predictor)
    place = f"{kind.__module__}:{kind.__qualname__}"
    made_with = getattr(predictor, "made_with", {})
    for name, config in importable():
        if config.predictor == place:
            keys = [key for key in config.__dataclass_fields__ if key in made_with]
            values = [made_with[key] for key in keys]
            plain = [list(value) if isinstance(value, tuple) else value for value in values]
            return name, dict(zip(keys, plain, strict=True))
    return None


def unknown_model(name: Any) -> InputError:
    """Return the error for a name that no predictor has."""
    what = f"unknown model '{name}'{did_you_mean(str(name), names())}; expected one of "
    return InputError(what + ", ".join(names()), code="unknown-name", key="model")


def refresh() -> None:
    """Look for installed packages again."""
    _installed.cache_clear()


@cache
def _installed() -> Mapping[str, list[EntryPoint]]:
    """Return the entry points of other packages by name."""
    by_name: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        known = by_name.setdefault(entry.name, [])
        # A path that occurs twice on sys.path lists its packages twice.
        if all((entry.value, _package(entry)) != (e.value, _package(e)) for e in known):
            known.append(entry)
    return by_name


def _package(entry: EntryPoint) -> str:
    return "?" if entry.dist is None else entry.dist.name


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _foreign(entry: EntryPoint) -> type[ModelConfig]:
    """Load the config of another package, which may be broken in any way."""
    place = f"the entry point {entry.name} = {entry.value} of the package {_package(entry)}"
    try:
        config = entry.load()
    except Exception as error:
        what = f"{place} cannot be imported: {type(error).__name__}: {error}"
        raise InputError(what, code="broken-model") from error
    is_config = isinstance(config, type) and issubclass(config, ModelConfig)
    if not is_config or getattr(config, "name", None) != entry.name:
        what = f"{place} is not a ModelConfig with the name '{entry.name}'"
        fix = "Derive it from deltacell.models.config.ModelConfig, with a field name."
        raise InputError(what, code="broken-model", fix=fix)
    loaded: type[ModelConfig] = config
    return loaded
