"""The config of a training: every key with its type, default, allowed values and meaning."""

# ruff: noqa: RUF009 -- key() returns a dataclass field

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from importlib import import_module
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from omegaconf import MISSING

# OmegaConf reads the annotations to check a config, and knows neither literals nor tuples.


class Range(NamedTuple):
    """The numbers that a key may have, in words and as a test that NaN fails."""

    text: str
    holds: Callable[[float], bool]


ONE = Range("at least 1", lambda n: 1 <= n < math.inf)
TWO = Range("at least 2", lambda n: 2 <= n < math.inf)
ZERO = Range("at least 0", lambda n: 0 <= n < math.inf)
POSITIVE = Range("greater than 0", lambda n: 0 < n < math.inf)
SHARE = Range("greater than 0 and less than 1", lambda n: 0 < n < 1)
BELOW_ONE = Range("at least 0 and less than 1", lambda n: 0 <= n < 1)
TO_ONE = Range("greater than 0 and at most 1", lambda n: 0 < n <= 1)

PROPAGATIONS = (
    *("shared", "delta", "late", "auto", "dense"),
    *("subgraph", "edge_mask", "stored_edges", "stored_masks", "device_mask"),
)


def key(default: Any, meaning: str, within: Range | None = None, choices: tuple[str, ...] = ()):  # type: ignore[no-untyped-def]
    """Return the field of a config key; numbers have a range, names may have choices."""
    about = {"meaning": meaning, "within": within, "choices": choices}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy(default), metadata=about)
    return field(default=default, metadata=about)


class Mode(StrEnum):
    """How much of a training step is carried out."""

    train = "train"
    step = "step"
    forward = "forward"
    data = "data"
    empty = "empty"
    fixed = "fixed"


@dataclass
class DataConfig:
    """The cell and the screen to train on."""

    folder: str | None = key(None, "Directory made by `deltacell data import`.")
    screen: str | None = key(
        None, "Name of a screen of the folder, or with `data.cell` its directory."
    )
    cell: str | None = key(None, "Directory of a cell, instead of a folder.")
    synthetic: str | None = key(
        None,
        "A synthetic cell and screen instead of a folder.",
        choices=("demo", "yeast", "redundancy"),
    )
    synthetic_seed: int = key(0, "Random seed of the synthetic data.", ZERO)
    synthetic_genotypes: int | None = key(None, "Number of synthetic genotypes.", ONE)
    relations: list[str] | None = key(None, "Relations of the cell to keep; all if null.")
    merge_relations: dict[str, list[str]] = key(
        {}, "New relations as unions: a name, and the names of the relations to merge."
    )
    screen_genes_only: bool = key(False, "Keep only genes that some genotype of the screen has.")
    where: dict[str, list[str]] = key(
        {}, "Genotypes to keep, by column of the screen, such as `{kind: [trigenic]}`."
    )
    merge: str | None = key(
        None, "How repeated genotypes become one.", choices=("mean", "median", "best-p")
    )
    subset: int | None = key(None, "Genotypes to keep, drawn by stratum; all if null.", ONE)
    batch_size: int = key(64, "Genotypes per step over all processes.", ONE)
    samples_per_epoch: int | None = key(
        None, "Genotypes per epoch, drawn anew for each; the whole training part if null.", ONE
    )
    grid: bool = key(
        True,
        "For a list of hits, assume that every query gene was crossed with every array gene, so "
        "that unlisted pairs were tested and do not interact.",
    )
    run_length: int | None = key(
        None,
        "Put genotypes that share a gene next to each other, in runs of at most this many, which "
        "makes late mutants cheaper.",
        ONE,
    )
    standardise: bool = key(True, "Scale targets to mean 0 and deviation 1 of the training part.")


@dataclass
class SplitConfig:
    """How the screen is split; see `deltacell.Split`."""

    method: str = key(
        "random",
        "How genotypes are assigned; `saved` loads any split of your own.",
        choices=("random", "gene", "set", "source", "named", "saved"),
    )
    seed: int = key(0, "Random seed of the split.", ZERO)
    validation: float = key(
        0.1, "Validation share; with `gene` and `source`, of the genotypes not tested.", SHARE
    )
    test: float = key(0.1, "Test share of the genotypes.", SHARE)
    held_out: float = key(0.2, "With `gene`: the share of genes to hold out.", SHARE)
    by: str = key("query", "With `set`: what stays together.", choices=("query", "pair"))
    studies: list[str] = key([], "With `source`: the studies of the test part.")
    file: str | None = key(
        None,
        "With `named`: a table of genes and `split` (train, validation, test); if null, the split "
        "imported with the screen.",
    )
    path: str | None = key(None, "With `saved`: the directory that `Split.save` wrote.")


@dataclass
class ModelConfig:
    """A predictor; `home` is ``module:name`` of its class."""

    home: ClassVar[str] = ""
    fitted: ClassVar[bool] = True
    name: str = MISSING

    @classmethod
    def built(cls) -> Any:
        """Import the class of the predictor; PyTorch is not loaded before this."""
        module, _, name = cls.home.partition(":")
        return getattr(import_module(module), name)


@dataclass
class NetworkConfig(ModelConfig):
    """A neural network on the cell, trained by the training loop."""

    fitted: ClassVar[bool] = False
    relations: list[str] | None = key(
        None, "Relations to use; if null, the six channels of STRING for DANGO, else all."
    )
    hidden: int = key(64, "Width of the vectors.", ONE)
    layers: int = key(2, "Attention layers of DANGO, message-passing layers of HeteroCell.", ONE)
    features: list[str] | None = key(None, "Features of the cell to use; none if null.")


@dataclass
class DangoConfig(NetworkConfig):
    """`deltacell.models.Dango`."""

    home: ClassVar[str] = "deltacell.models:Dango"
    name: str = "dango"
    lambdas: dict[str, float] = key(
        {}, "Weight of a non-edge in the reconstruction, for relations without a default."
    )
    heads: int = key(4, "Attention heads of Hyper-SAGNN; they divide the width.", ONE)


@dataclass
class HeteroCellConfig(NetworkConfig):
    """`deltacell.models.HeteroCell`."""

    home: ClassVar[str] = "deltacell.models:HeteroCell"
    name: str = "hetero_cell"
    layers: int = key(3, "Message-passing layers.", ONE)
    gin_layers: int = key(2, "Linear layers of each relation's MLP in each layer.", ONE)
    combine: str = key(
        "sum",
        "How the messages of the relations become one vector.",
        choices=("sum", "mean", "attention", "pairwise"),
    )
    output: str = key("mean", "Which heads are read.", choices=("mean", "gate", "global"))
    residual: bool = key(False, "Add the input of a layer to its output.")
    metabolism: bool = key(False, "Also pass messages through the cell's metabolism.")
    local_heads: int = key(8, "Attention heads of the local head; they divide the width.", ONE)
    local_layers: int = key(2, "Attention layers of the local head.", ONE)
    aggregation: str = key("sum", "How messages are aggregated.", choices=("sum", "mean"))
    activation: str = key(
        "gelu", "The activation function.", choices=("gelu", "relu", "silu", "tanh")
    )
    z_norm: str = key(
        "norm", "Normalisation of z before the global head.", choices=("scale", "norm", "none")
    )
    dropout: float = key(
        0.0,
        "Dropout, with one mask per gene, layer and relation in a step, shared by the wild type "
        "and all mutants.",
        BELOW_ONE,
    )
    mutant_layers: int | None = key(
        None, "How many of the last layers see the deletion; all if null.", ONE
    )
    epistasis: bool = key(
        False,
        "The global head also reads the part of z that no smaller set of deletions explains, and "
        "with metabolism the reactions that no smaller set loses.",
    )
    mutants: str = key(
        "true",
        "`matched` computes mutants of wrong genes, `none` keeps only the local head; the "
        "difference is what a mutant is worth.",
        choices=("true", "matched", "none"),
    )


@dataclass
class GlobalMeanConfig(ModelConfig):
    """`deltacell.models.baselines.GlobalMean`."""

    home: ClassVar[str] = "deltacell.models.baselines:GlobalMean"
    name: str = "global_mean"


@dataclass
class AdditiveConfig(ModelConfig):
    """`deltacell.models.baselines.Additive`."""

    home: ClassVar[str] = "deltacell.models.baselines:Additive"
    name: str = "additive"
    penalty: float = key(
        3.0, "Ridge penalty: halves the effect of a gene seen in this many genotypes.", POSITIVE
    )


@dataclass
class QueryPairMeanConfig(ModelConfig):
    """`deltacell.models.baselines.QueryPairMean`."""

    home: ClassVar[str] = "deltacell.models.baselines:QueryPairMean"
    name: str = "query_pair_mean"
    shrinkage: float = key(3.0, "Weight of what is shrunk toward, in genotypes.", POSITIVE)
    toward: str = key(
        "additive",
        "Shrink toward the sum of gene effects, or the mean of all training scores.",
        choices=("additive", "mean"),
    )
    penalty: float = key(3.0, "Ridge penalty of the additive effects.", POSITIVE)


@dataclass
class EmbeddingMLPConfig(ModelConfig):
    """`deltacell.models.baselines.EmbeddingMLP`."""

    home: ClassVar[str] = "deltacell.models.baselines:EmbeddingMLP"
    name: str = "embedding_mlp"
    width: int = key(64, "Width of the vectors and of all layers.", ONE)
    learning_rate: float = key(1e-3, "Learning rate of AdamW.", TO_ONE)
    weight_decay: float = key(0.1, "Weight decay of AdamW.", ZERO)
    dropout: float = key(0.2, "Dropout of the pooled vector.", BELOW_ONE)
    forget: float = key(0.1, "Probability that a gene counts as unseen in training.", BELOW_ONE)
    batch_size: int = key(512, "Genotypes per step.", ONE)
    epochs: int = key(60, "Maximum number of passes over the training part.", ONE)
    patience: int = key(6, "Epochs without improvement before stopping.", ONE)


@dataclass
class BoostedTreesConfig(ModelConfig):
    """`deltacell.models.baselines.BoostedTrees`."""

    home: ClassVar[str] = "deltacell.models.baselines:BoostedTrees"
    name: str = "boosted_trees"
    rounds: int = key(300, "Number of trees.", ONE)
    leaves: int = key(63, "Maximum number of leaves of a tree.", TWO)
    learning_rate: float = key(0.1, "Share of each tree that is added.", TO_ONE)
    dimensions: int = key(8, "Width of the spectral embedding of each relation.", ONE)
    feature_dimensions: int = key(16, "Principal components kept of a wider gene feature.", ONE)
    penalty: float = key(3.0, "Ridge penalty of the additive effects.", POSITIVE)
    folds: int = key(5, "Folds of the cross-fitting.", TWO)
    forget: float = key(0.1, "Probability that a gene's effect is hidden in training.", BELOW_ONE)
    features: list[str] | None = key(None, "Features of the cell to use; all if null.")


@dataclass
class PairTreesConfig(ModelConfig):
    """`deltacell.models.pairs.PairTrees`."""

    home: ClassVar[str] = "deltacell.models.pairs:PairTrees"
    name: str = "pair_trees"
    rounds: int = key(400, "Maximum number of trees of each part.", ONE)
    patience: int = key(40, "Trees without a better validation before stopping.", ONE)
    leaves: int = key(63, "Maximum number of leaves of a tree.", TWO)
    learning_rate: float = key(0.05, "Share of each tree that is added.", TO_ONE)
    column_share: float = key(0.3, "Share of the columns that a tree sees.", TO_ONE)
    row_share: float = key(0.6, "Share of the rows that a tree sees.", TO_ONE)
    penalty: float = key(3.0, "Ridge penalty of the additive effects.", POSITIVE)
    folds: int = key(5, "Folds of sets, so that a set's own score never enters.", TWO)
    gene_folds: int = key(5, "Folds of genes, each of which is taken for unseen in turn.", TWO)
    gene_rounds: int = key(1, "How often folds of genes are drawn.", ZERO)
    zeros: float = key(1.0, "Tested sets without a hit to draw per hit.", ZERO)
    features: list[str] | None = key(None, "Features of the cell to use; all if null.")


@dataclass
class EnsembleConfig(ModelConfig):
    """`deltacell.train.predictor.Ensemble`; the data and the split are those of its runs."""

    home: ClassVar[str] = "deltacell.train.predictor:Ensemble"
    name: str = "ensemble"
    runs: list[str] = key([], "Run directories, at least two.")


@dataclass
class PairCellConfig(ModelConfig):
    """`deltacell.models.pairs.PairCell`."""

    home: ClassVar[str] = "deltacell.models.pairs:PairCell"
    fitted: ClassVar[bool] = False
    name: str = "pair_cell"
    features: list[str] | None = key(None, "Features of the cell to use; all if null.")
    hidden: int = key(64, "Width of the vectors.", ONE)
    heads: int = key(8, "Number of heads.", ONE)
    nearest: int = key(48, "Neighbours of a gene that vote.", ONE)
    nearest_both: int = key(12, "Those that vote on both genes at once.", ONE)
    drop_genes: float = key(
        0.2, "Share of the genes taken for unseen, in half of the steps.", BELOW_ONE
    )
    dropout: float = key(0.1, "Dropout in the readout.", BELOW_ONE)
    penalty: float = key(3.0, "Ridge penalty of the additive effects.", POSITIVE)
    folds: int = key(5, "Folds of the cross-fitting.", TWO)


@dataclass
class LossConfig:
    """What every loss has: its name."""

    name: str = MISSING


@dataclass
class NoLossConfig(LossConfig):
    """No loss: the predictor is fitted in one call and has an objective of its own."""

    name: str = "none"


@dataclass
class LogCoshConfig(LossConfig):
    """`deltacell.models.LogCosh`."""

    name: str = "log_cosh"


@dataclass
class DangoLossConfig(LossConfig):
    """`deltacell.models.DangoLoss`: the interaction and the reconstruction, weighted by alpha."""

    name: str = "dango"
    schedule: str = key(
        "linear_until_uniform",
        "How alpha changes: `pre_then_post` is 1 before epoch `turn` and then 0, "
        "`linear_until_uniform` falls from 1 to 0.5 at `turn`, `linear_until_flipped` from 1 to "
        "0; `additive` is interaction + factor * reconstruction throughout.",
        choices=("pre_then_post", "linear_until_uniform", "linear_until_flipped", "additive"),
    )
    turn: int = key(10, "Epoch at which alpha reaches its last value.", ONE)
    factor: float = key(0.001, "With `additive`: weight of the reconstruction.", ZERO)


@dataclass
class PointDistributionContrastConfig(LossConfig):
    """`deltacell.models.PointDistributionContrast`; the width is the model's."""

    name: str = "point_distribution_contrast"
    lambda_mse: float = key(1.0, "Weight of the squared error.", ZERO)
    lambda_w: float = key(0.1, "Weight of the distance of distributions.", ZERO)
    lambda_c: float = key(0.0, "Weight of the contrast of vectors.", ZERO)
    buffer: int = key(256, "Rows of the ring buffer.", ZERO)
    warmup: int = key(100, "Epoch at which the buffer's share reaches 0.3.", ONE)
    stable: int = key(500, "Epoch at which the buffer's share reaches 0.9.", ONE)
    temperature: float = key(1.0, "Temperature of SupCR in the first epoch.", POSITIVE)
    final_temperature: float = key(0.1, "Temperature of SupCR in the last epoch.", POSITIVE)
    gather_interval: int = key(1, "Steps between gathers over all ranks; never if 0.", ZERO)


@dataclass
class OptimizerConfig:
    """AdamW."""

    lr: float = key(1e-3, "Learning rate.", POSITIVE)
    weight_decay: float = key(
        1e-5, "Decay of matrices and vectors; gains, biases and scales are not decayed.", ZERO
    )
    beta1: float = key(0.9, "Decay of the mean of the gradients.", BELOW_ONE)
    beta2: float = key(0.999, "Decay of the mean of their squares.", BELOW_ONE)
    clip: float | None = key(10.0, "Maximum norm of the gradient; no limit if null.", POSITIVE)
    accumulate: int = key(1, "Batches per optimizer step.", ONE)


@dataclass
class ScheduleConfig:
    """How the learning rate changes."""

    name: str = key(
        "constant",
        "Chosen with `schedule=NAME`.",
        choices=("constant", "cosine", "warm_restarts", "plateau"),
    )
    warmup_steps: int = key(0, "Steps over which the rate first rises from 0.", ZERO)
    period: int = key(10, "With `warm_restarts`: epochs to the first restart.", ONE)
    period_factor: int = key(1, "With `warm_restarts`: growth of the period per restart.", ONE)
    min_lr: float = key(0.0, "The lowest rate.", ZERO)
    factor: float = key(0.5, "With `plateau`: what the rate is multiplied by.", SHARE)
    patience: int = key(5, "With `plateau`: validations without a better one before that.", ZERO)


@dataclass
class TrainerConfig:
    """How the training runs."""

    epochs: int = key(10, "Number of epochs.", ONE)
    devices: int = key(1, "Processes per node, one per device.", ONE)
    nodes: int = key(1, "Number of nodes.", ONE)
    accelerator: str = key("auto", "Where it trains.", choices=("auto", "cpu", "cuda"))
    threads: int | None = key(
        None, "Threads per CPU process; if null, OMP_NUM_THREADS or an equal share of cores.", ONE
    )
    precision: str = key("32", "Floating-point precision.", choices=("32", "64", "bf16"))
    compile: bool = key(False, "Compile the row-wise parts of the model.")
    ema: float | None = key(
        None, "Decay of an average of the weights, which is then what is validated.", SHARE
    )
    validate_every: int = key(1, "Epochs per validation.", ONE)
    validation_batch_size: int | None = key(
        None, "If null, 4,096 for DANGO and PairCell and the training batch otherwise.", ONE
    )
    validation_samples: int | None = key(
        None, "Genotypes to validate on, the same every time; all if null.", ONE
    )
    checkpoint_every_steps: int | None = key(
        None, "Steps between checkpoints within an epoch.", ONE
    )
    checkpoint_every_minutes: float | None = key(
        10.0, "Minutes between checkpoints within an epoch.", POSITIVE
    )
    keep: int = key(2, "Last checkpoints to keep, in addition to the best.", ONE)
    figures_every: int = key(5, "Epochs between figures; none if 0.", ZERO)
    patience: int | None = key(
        None, "Validations without a better one before stopping; never if null.", ONE
    )
    progress: bool = key(True, "Show a progress bar in a terminal.")


@dataclass
class LoggersConfig:
    """Where metrics are logged in addition to `metrics.csv`."""

    tensorboard: bool = key(True, "Write TensorBoard event files into the run.")
    wandb: bool = key(False, "Log to Weights & Biases; needs the extra `wandb`.")
    mlflow: bool = key(False, "Log to MLflow; needs the extra `mlflow`.")
    offline: bool = key(False, "Keep what W&B and MLflow log in the run.")
    project: str = key("deltacell", "The W&B project or the MLflow experiment.")


@dataclass
class ProfilerConfig:
    """What is recorded of the time."""

    phases: bool = key(True, "Record the phases of every step.")
    trace: bool = key(False, "Record a trace of the window per rank.")
    window: list[int] = key([5, 2, 5, 1], "Steps of the trace: `[wait, warmup, active, repeat]`.")
    record_shapes: bool = key(True, "Record shapes of tensors in the trace.")
    profile_memory: bool = key(False, "Record memory in the trace.")
    with_stack: bool = key(False, "Record Python stacks in the trace.")
    nvtx: bool = key(False, "Mark phases and parts of the model as NVTX ranges.")
    kind: str | None = key(
        None, "A host profiler in addition to the trace.", choices=("cprofile", "lines", "memory")
    )


@dataclass
class Config:
    """The whole config of a run."""

    name: str = key("run", "Name of the run, with which its directory begins.")
    directory: str | None = key(
        None, "The run directory; if null, made under `runs` from name, seed and time."
    )
    seed: int = key(0, "Random seed of weights, order and dropout.", ZERO)
    mode: Mode = key(Mode.train, "How much of a step is carried out.")
    mode_steps: int | None = key(
        None, "Batches after which the run stops; if null, 50 in modes other than `train`.", ONE
    )
    propagation: str = key("auto", "How HeteroCell computes mutants.", choices=PROPAGATIONS)
    max_bytes: int | None = key(
        None, "With `delta` and `auto`: bound on the memory of a batch's mutants.", ONE
    )
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
        """Number of processes."""
        return self.trainer.devices * self.trainer.nodes


MODELS: Mapping[str, type[ModelConfig]] = MappingProxyType(
    {
        "additive": AdditiveConfig,
        "boosted_trees": BoostedTreesConfig,
        "dango": DangoConfig,
        "embedding_mlp": EmbeddingMLPConfig,
        "ensemble": EnsembleConfig,
        "global_mean": GlobalMeanConfig,
        "hetero_cell": HeteroCellConfig,
        "pair_cell": PairCellConfig,
        "pair_trees": PairTreesConfig,
        "query_pair_mean": QueryPairMeanConfig,
    }
)
"""The config of every predictor, by name; a new one also has a file in ``conf/model``."""

LOSSES: Mapping[str, type[LossConfig]] = MappingProxyType(
    {
        "dango": DangoLossConfig,
        "log_cosh": LogCoshConfig,
        "none": NoLossConfig,
        "point_distribution_contrast": PointDistributionContrastConfig,
    }
)
"""The config of every loss, by name."""


def is_fitted(model: ModelConfig) -> bool:
    """Return whether a predictor is fitted in one call, without the training loop."""
    return type(model).fitted


def options_of(config: ModelConfig | LossConfig) -> dict[str, Any]:
    """Return the keys of a config with their values, except its name."""
    return {name: value for name, value in asdict(config).items() if name != "name"}
