"""The config of a training: every key of docs/reference/config.md, with its type and default."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from importlib import import_module
from importlib.resources import files
from operator import attrgetter
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta
from omegaconf import MISSING as NO_VALUE

from deltacell.errors import InputError, did_you_mean

GROUPS = ("experiment", "model", "loss", "schedule", "ablation")
"""Config groups, chosen by file name, such as ``experiment=demo``."""

# OmegaConf checks types, but supports neither literals nor ranges, which `check` checks.
_MOST = sys.float_info.max
AtLeast0 = Annotated[int, Meta(ge=0)]
AtLeast1 = Annotated[int, Meta(ge=1)]
AtLeast2 = Annotated[int, Meta(ge=2)]
Weight = Annotated[float, Meta(ge=0, le=_MOST)]
Positive = Annotated[float, Meta(gt=0, le=_MOST)]
Share = Annotated[float, Meta(gt=0, lt=1)]
BelowOne = Annotated[float, Meta(ge=0, lt=1)]
ToOne = Annotated[float, Meta(gt=0, le=1)]


def one_of(names: str) -> Meta:
    return Meta(pattern=f"^({names.replace(' ', '|')})$")


PROPAGATIONS = one_of("shared delta late auto subgraph edge_mask device_mask")
LOSS_SCHEDULES = one_of("pre_then_post linear_until_uniform linear_until_flipped additive")


@dataclass
class DataConfig:
    """The cell and the screen to train on."""

    folder: str | None = None
    screen: str | None = None
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


MODELS: dict[str, type[ModelConfig]] = {}
"""The config class of every predictor; each also has a file in ``conf/model``."""

LOSSES: dict[str, type[LossConfig]] = {}
"""The config class of every loss."""

LARGEST_RELATION = "largest"
"""What ``model.relations=[largest]`` contains; a relation of that name comes first."""

BASELINES, PAIRS = "deltacell.models.baselines", "deltacell.models.pairs"
NETWORKS = "deltacell.models"


def _register(kinds: dict[str, Any], name: str, owner: Any) -> None:
    if name:
        owner.__annotations__["name"], owner.name = "str", name
        kinds[name] = owner


@dataclass
class ModelConfig:
    """A predictor; the class in `module` has the name of its config without the suffix."""

    module: ClassVar[str]
    fitted: ClassVar[bool]  # in one call, without the training loop
    name: str = NO_VALUE

    def __init_subclass__(cls, name: str = "", module: str = "", fitted: bool = True) -> None:
        cls.module, cls.fitted = module, fitted
        _register(MODELS, name, cls)

    @classmethod
    def built(cls) -> Any:
        """Import the class of the predictor, and with it PyTorch."""
        return getattr(import_module(cls.module), cls.__name__.removesuffix("Config"))


@dataclass
class LossConfig:
    """The base of all losses."""

    name: str = NO_VALUE

    def __init_subclass__(cls, name: str) -> None:
        _register(LOSSES, name, cls)


@dataclass
class AdditiveConfig(ModelConfig, name="additive", module=BASELINES):
    """`deltacell.models.baselines.Additive`."""

    penalty: Positive = 3.0


@dataclass
class BoostedTreesConfig(ModelConfig, name="boosted_trees", module=BASELINES):
    """`deltacell.models.baselines.BoostedTrees`."""

    rounds: AtLeast1 = 300
    leaves: AtLeast2 = 63
    learning_rate: ToOne = 0.1
    dimensions: AtLeast1 = 8
    feature_dimensions: AtLeast1 = 16
    penalty: Positive = 3.0
    folds: AtLeast2 = 5
    forget: BelowOne = 0.1
    features: list[str] | None = None


@dataclass
class DangoConfig(ModelConfig, name="dango", module=NETWORKS, fitted=False):
    """`deltacell.models.Dango`."""

    relations: list[str] | None = None
    hidden: AtLeast1 = 64
    layers: AtLeast1 = 2
    features: list[str] | None = None
    lambdas: dict[str, float] = field(default_factory=dict)
    heads: AtLeast1 = 4


@dataclass
class EnsembleConfig(ModelConfig, name="ensemble", module="deltacell.train.predictor"):
    """`deltacell.train.predictor.Ensemble`; the data and the split are those of its runs."""

    runs: list[str] = field(default_factory=list)


@dataclass
class GlobalMeanConfig(ModelConfig, name="global_mean", module=BASELINES):
    """`deltacell.models.baselines.GlobalMean`."""


@dataclass
class HeteroCellConfig(ModelConfig, name="hetero_cell", module=NETWORKS, fitted=False):
    """`deltacell.models.HeteroCell`."""

    relations: list[str] | None = None
    hidden: AtLeast1 = 64
    layers: AtLeast1 = 3
    features: list[str] | None = None
    gin_layers: AtLeast1 = 2
    combine: Annotated[str, one_of("sum mean attention pairwise")] = "sum"
    output: Annotated[str, one_of("mean gate global")] = "mean"
    residual: bool = False
    metabolism: bool = False
    local_heads: AtLeast1 = 8
    local_layers: AtLeast1 = 2
    aggregation: Annotated[str, one_of("sum mean")] = "sum"
    z_norm: Annotated[str, one_of("scale norm none")] = "norm"
    dropout: BelowOne = 0.0
    mutant_layers: AtLeast1 | None = None
    epistasis: bool = False
    mutants: Annotated[str, one_of("true matched none")] = "true"


@dataclass
class PairCellConfig(ModelConfig, name="pair_cell", module=PAIRS, fitted=False):
    """`deltacell.models.pairs.PairCell`."""

    features: list[str] | None = None
    hidden: AtLeast1 = 64
    heads: AtLeast1 = 8
    nearest: AtLeast1 = 48
    nearest_both: AtLeast1 = 12
    drop_genes: BelowOne = 0.2
    dropout: BelowOne = 0.1
    penalty: Positive = 3.0
    folds: AtLeast2 = 5


@dataclass
class PairTreesConfig(ModelConfig, name="pair_trees", module=PAIRS):
    """`deltacell.models.pairs.PairTrees`."""

    rounds: AtLeast1 = 400
    patience: AtLeast1 = 40
    leaves: AtLeast2 = 63
    learning_rate: ToOne = 0.05
    column_share: ToOne = 0.3
    row_share: ToOne = 0.6
    penalty: Positive = 3.0
    folds: AtLeast2 = 5
    gene_folds: AtLeast2 = 5
    gene_rounds: AtLeast0 = 1
    zeros: Weight = 1.0
    features: list[str] | None = None


@dataclass
class QueryPairMeanConfig(ModelConfig, name="query_pair_mean", module=BASELINES):
    """`deltacell.models.baselines.QueryPairMean`."""

    shrinkage: Positive = 3.0
    penalty: Positive = 3.0


@dataclass
class DangoLossConfig(LossConfig, name="dango"):
    """`deltacell.models.DangoLoss`: the interaction and the reconstruction, weighted by alpha."""

    schedule: Annotated[str, LOSS_SCHEDULES] = "linear_until_uniform"
    turn: AtLeast1 = 10
    factor: Weight = 0.001


@dataclass
class LogCoshConfig(LossConfig, name="log_cosh"):
    """`deltacell.models.LogCosh`."""


@dataclass
class NoLossConfig(LossConfig, name="none"):
    """No loss: the predictor is fitted in one call and has an objective of its own."""


@dataclass
class PointDistributionContrastConfig(LossConfig, name="point_distribution_contrast"):
    """`deltacell.models.PointDistributionContrast`; the width is the model's."""

    lambda_mse: Weight = 1.0
    lambda_w: Weight = 0.1
    lambda_c: Weight = 0.0
    buffer: AtLeast0 = 256
    warmup: AtLeast1 = 100
    stable: AtLeast1 = 500
    temperature: Positive = 1.0
    final_temperature: Positive = 0.1
    gather_interval: AtLeast0 = 1


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
    model: ModelConfig = field(default_factory=DangoConfig)
    loss: LossConfig = field(default_factory=DangoLossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    loggers: LoggersConfig = field(default_factory=LoggersConfig)
    profiler: ProfilerConfig = field(default_factory=ProfilerConfig)

    @property
    def ranks(self) -> int:
        return self.trainer.devices * self.trainer.nodes


def choices(group: str) -> list[str]:
    """Return the names in a group, without ``of_MODEL``, the default losses of models."""
    names = (file.name for file in files("deltacell.conf").joinpath(group).iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if not name.startswith("of_"))


def options_of(config: ModelConfig | LossConfig) -> dict[str, Any]:
    return {name: value for name, value in asdict(config).items() if name != "name"}


def keys_of(owner: type, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of a dataclass, such as ``trainer.devices``, and their types."""
    for one in fields(owner):
        default = one.default if one.default_factory is MISSING else one.default_factory()
        if is_dataclass(default):
            yield from keys_of(type(default), f"{prefix}{one.name}.")
        else:
            yield f"{prefix}{one.name}", str(one.type)


ANY_KEYS: Mapping[str, str] = {
    **dict(keys_of(Config)),
    **{key: kind for model in MODELS.values() for key, kind in keys_of(model, "model.")},
    **{key: kind for loss in LOSSES.values() for key, kind in keys_of(loss, "loss.")},
}
"""All keys that a config may have, depending on its model and loss, with their types."""


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
    # An ensemble uses the data of its runs.
    yield (
        not sources and model.name != "ensemble",
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
    bounded = config.max_bytes is not None and config.propagation not in ("auto", "delta")
    yield bounded, f"max_bytes is for propagation=auto and delta, not {config.propagation}"
    low, lr = config.schedule.min_lr, config.optimizer.lr
    yield low > lr, f"schedule.min_lr={low:g} is above optimizer.lr={lr:g}"
    kind, traced = config.profiler.kind, config.profiler.trace and config.profiler.with_stack
    yield kind and traced, f"profiler.with_stack and profiler.kind={kind} both hook into Python"
    several = config.ranks > 1 or config.mode != "train"
    one_call = f"the model {model.name} is fitted in one call, by one process in mode=train"
    yield model.fitted and several, one_call
    # A predictor that is fitted in one call has no loss; only DANGO reconstructs networks.
    other = loss.name == "dango" and model.name != "dango"
    wrong = other or model.fitted != (loss.name == "none")
    yield wrong, f"loss={loss.name} does not fit model={model.name}; omit one of the two"
