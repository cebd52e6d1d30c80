"""The config of a training: every key there is, with its type and default."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from omegaconf import MISSING

# OmegaConf reads these annotations to check a config, and it knows no literals and no tuples.


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
    """What is trained on.

    Parameters
    ----------
    folder, screen
        A directory made by ``deltacell data import``, and the name of one of its screens; the only
        one where not given.
    cell
        A cell of its own, in place of the folder's; then ``screen`` is a directory.
    synthetic
        ``demo``, ``yeast`` or ``redundancy``: a made-up cell and screen in place of a folder.
    synthetic_seed, synthetic_genotypes
        Of the made-up ones; as many genotypes as are the default where not given.
    relations
        Relations of the cell to keep, by name; all where not given.
    merge_relations
        New relations as unions: a name, and the names of those that become one.
    screen_genes_only
        Keep only the genes that some genotype of the screen deletes.
    where
        Genotypes to keep, by column of the screen: such as ``{kind: [trigenic]}``.
    merge
        How repeated genotypes become one: ``mean``, ``median`` or ``best-p``; none where null.
    subset
        Genotypes to keep, drawn by stratum; all where null.
    batch_size
        Genotypes a step over all processes.
    samples_per_epoch
        Genotypes an epoch, drawn anew for each; all of the training part where null.
    grid
        Whether to assume, of a list of hits, that every query gene was crossed with every array
        gene, so that pairs that are not listed were tested and have no interaction.
    run_length
        Genotypes that share a gene follow each other in runs of at most this many, which makes
        late mutants cheaper; in any order where null.
    standardise
        Whether targets are brought to mean 0 and deviation 1 of the training part.
    """

    folder: str | None = None
    screen: str | None = None
    cell: str | None = None
    synthetic: str | None = None
    synthetic_seed: int = 0
    synthetic_genotypes: int | None = None
    relations: list[str] | None = None
    merge_relations: dict[str, list[str]] = field(default_factory=dict)
    screen_genes_only: bool = False
    where: dict[str, list[str]] = field(default_factory=dict)
    merge: str | None = None
    subset: int | None = None
    batch_size: int = 64
    samples_per_epoch: int | None = None
    grid: bool = True
    run_length: int | None = None
    standardise: bool = True


@dataclass
class SplitConfig:
    """How the screen is split; see `deltacell.Split`.

    Parameters
    ----------
    method
        ``random``, ``gene``, ``set``, ``source``, ``named``, or ``saved``: any split of your own.
    seed
        Of all that is drawn.
    validation, test
        Shares of the genotypes; with ``gene`` and ``source``, validation of those not tested.
    held_out
        With ``gene``: the share of the genes.
    by
        With ``set``: ``query`` or ``pair``.
    studies
        With ``source``: the studies of the test part.
    file
        With ``named``: a table of genes and ``split`` (train, validation, test); where not given,
        the split that was imported with the screen.
    path
        With ``saved``: the directory that `Split.save` wrote.
    """

    method: str = "random"
    seed: int = 0
    validation: float = 0.1
    test: float = 0.1
    held_out: float = 0.2
    by: str = "query"
    studies: list[str] = field(default_factory=list)
    file: str | None = None
    path: str | None = None


@dataclass
class ModelConfig:
    """What every predictor has: its name, one of `deltacell.train.registry.MODELS`."""

    name: str = MISSING


@dataclass
class NetworkConfig(ModelConfig):
    """A neural network on the cell, trained by the training loop.

    Parameters
    ----------
    relations
        By name; where null, the six channels of STRING for DANGO and all for HeteroCell.
    hidden
        Width of a vector.
    layers
        Attention layers of DANGO; message-passing layers of HeteroCell.
    features
        Features of the cell to use, by name; none where null.
    """

    relations: list[str] | None = None
    hidden: int = 64
    layers: int = 2
    features: list[str] | None = None


@dataclass
class DangoConfig(NetworkConfig):
    """`deltacell.models.Dango`; ``lambdas`` are for relations that have no default."""

    name: str = "dango"
    lambdas: dict[str, float] = field(default_factory=dict)
    heads: int = 4


@dataclass
class HeteroCellConfig(NetworkConfig):
    """`deltacell.models.HeteroCell`."""

    name: str = "hetero_cell"
    layers: int = 3
    gin_layers: int = 2
    combine: str = "sum"
    output: str = "mean"
    residual: bool = False
    metabolism: bool = False
    local_heads: int = 8
    local_layers: int = 2
    aggregation: str = "sum"
    activation: str = "gelu"
    z_norm: str = "norm"
    dropout: float = 0.0
    mutant_layers: int | None = None
    epistasis: bool = False
    mutants: str = "true"


@dataclass
class GlobalMeanConfig(ModelConfig):
    """`deltacell.models.baselines.GlobalMean`."""

    name: str = "global_mean"


@dataclass
class AdditiveConfig(ModelConfig):
    """`deltacell.models.baselines.Additive`."""

    name: str = "additive"
    penalty: float = 3.0


@dataclass
class QueryPairMeanConfig(ModelConfig):
    """`deltacell.models.baselines.QueryPairMean`."""

    name: str = "query_pair_mean"
    shrinkage: float = 3.0
    toward: str = "additive"
    penalty: float = 3.0


@dataclass
class EmbeddingMLPConfig(ModelConfig):
    """`deltacell.models.baselines.EmbeddingMLP`."""

    name: str = "embedding_mlp"
    width: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    dropout: float = 0.2
    forget: float = 0.1
    batch_size: int = 512
    epochs: int = 60
    patience: int = 6


@dataclass
class BoostedTreesConfig(ModelConfig):
    """`deltacell.models.baselines.BoostedTrees`."""

    name: str = "boosted_trees"
    rounds: int = 300
    leaves: int = 63
    learning_rate: float = 0.1
    dimensions: int = 8
    feature_dimensions: int = 16
    penalty: float = 3.0
    folds: int = 5
    forget: float = 0.1
    features: list[str] | None = None


@dataclass
class PairTreesConfig(ModelConfig):
    """`deltacell.models.pairs.PairTrees`."""

    name: str = "pair_trees"
    rounds: int = 400
    patience: int = 40
    leaves: int = 63
    learning_rate: float = 0.05
    column_share: float = 0.3
    row_share: float = 0.6
    penalty: float = 3.0
    folds: int = 5
    gene_folds: int = 5
    gene_rounds: int = 1
    zeros: float = 1.0
    features: list[str] | None = None


@dataclass
class EnsembleConfig(ModelConfig):
    """`deltacell.train.ensemble.Ensemble`."""

    name: str = "ensemble"
    runs: list[str] = field(default_factory=list)


@dataclass
class PairCellConfig(ModelConfig):
    """`deltacell.models.pairs.PairCell`."""

    name: str = "pair_cell"
    features: list[str] | None = None
    hidden: int = 64
    heads: int = 8
    nearest: int = 48
    nearest_both: int = 12
    drop_genes: float = 0.2
    dropout: float = 0.1
    penalty: float = 3.0
    folds: int = 5


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
    """`deltacell.models.DangoLoss`."""

    name: str = "dango"
    schedule: str = "linear_until_uniform"
    turn: int = 10
    factor: float = 0.001


@dataclass
class PointDistributionContrastConfig(LossConfig):
    """`deltacell.models.PointDistributionContrast`; the width is the model's."""

    name: str = "point_distribution_contrast"
    lambda_mse: float = 1.0
    lambda_w: float = 0.1
    lambda_c: float = 0.0
    buffer: int = 256
    warmup: int = 100
    stable: int = 500
    temperature: float = 1.0
    final_temperature: float = 0.1
    gather_interval: int = 1


@dataclass
class OptimizerConfig:
    """AdamW.

    Parameters
    ----------
    lr, beta1, beta2
        Of AdamW.
    weight_decay
        Of AdamW, on matrices and vectors; gains, biases and scales are not decayed.
    clip
        The largest norm of the gradient; any where null.
    accumulate
        Batches a step.
    """

    lr: float = 1e-3
    weight_decay: float = 1e-5
    beta1: float = 0.9
    beta2: float = 0.999
    clip: float | None = 10.0
    accumulate: int = 1


@dataclass
class ScheduleConfig:
    """How the learning rate goes.

    Parameters
    ----------
    name
        ``constant``, ``cosine``, ``warm_restarts`` or ``plateau``.
    warmup_steps
        Optimizer steps over which it first rises from 0, with any of them.
    period, period_factor
        With ``warm_restarts``: epochs to the first restart, and how much longer each is than
        the one before.
    min_lr
        Where it ends.
    factor, patience
        With ``plateau``: what it is multiplied by after so many validations without a better one.
    """

    name: str = "constant"
    warmup_steps: int = 0
    period: int = 10
    period_factor: int = 1
    min_lr: float = 0.0
    factor: float = 0.5
    patience: int = 5


@dataclass
class TrainerConfig:
    """How it runs.

    Parameters
    ----------
    epochs
        In all.
    devices, nodes
        Processes a node, one a device, and nodes.
    accelerator
        ``auto``, ``cpu`` or ``cuda``.
    threads
        Of each process on a CPU; where null, OMP_NUM_THREADS or the cores shared out.
    precision
        ``32``, ``64`` or ``bf16``.
    compile
        Whether the row-wise parts are compiled.
    ema
        Decay of an average of the weights, which then is what is validated; none where null.
    validate_every
        Epochs from one validation to the next.
    validation_batch_size
        Genotypes a step there; where null, 4,096 with DANGO and else the training batch.
    validation_samples
        Genotypes of the validation part that are looked at, the same every time; all where null.
    checkpoint_every_steps, checkpoint_every_minutes
        Between the ends of epochs; whichever comes first.
    keep
        Checkpoints to keep beside the best.
    figures_every
        Epochs from one set of figures to the next; none where 0.
    patience
        Validations without a better one after which it stops; all epochs where null.
    progress
        Whether a bar shows it, where someone watches.
    """

    epochs: int = 10
    devices: int = 1
    nodes: int = 1
    accelerator: str = "auto"
    threads: int | None = None
    precision: str = "32"
    compile: bool = False
    ema: float | None = None
    validate_every: int = 1
    validation_batch_size: int | None = None
    validation_samples: int | None = None
    checkpoint_every_steps: int | None = None
    checkpoint_every_minutes: float | None = 10.0
    keep: int = 2
    figures_every: int = 5
    patience: int | None = None
    progress: bool = True


@dataclass
class LoggersConfig:
    """Where metrics go beside ``metrics.csv``.

    Parameters
    ----------
    tensorboard
        Event files in the run.
    wandb, mlflow
        Those services; extras.
    offline
        Keep what is for W&B in the run.
    project
        The name of the W&B project or the MLflow experiment.
    """

    tensorboard: bool = True
    wandb: bool = False
    mlflow: bool = False
    offline: bool = False
    project: str = "deltacell"


@dataclass
class ProfilerConfig:
    """What is recorded of its time.

    Parameters
    ----------
    phases
        The phases of every step.
    trace
        A trace of the window, one a rank.
    window
        Steps to wait, to warm up and to record, and how often; ``[wait, warmup, active, repeat]``.
    record_shapes, profile_memory, with_stack
        Of the trace.
    nvtx
        Phases and parts of the model as NVTX ranges.
    kind
        ``cprofile``, ``lines`` or ``memory`` beside the trace; none where null.
    """

    phases: bool = True
    trace: bool = False
    window: list[int] = field(default_factory=lambda: [5, 2, 5, 1])
    record_shapes: bool = True
    profile_memory: bool = False
    with_stack: bool = False
    nvtx: bool = False
    kind: str | None = None


@dataclass
class Config:
    """The whole config of a run.

    Parameters
    ----------
    name
        Of the run; the beginning of its directory's name.
    directory
        Of the run; made under ``runs`` from the name, the seed and the time where null.
    seed
        Of weights, order and dropout.
    mode
        How much of a step is carried out.
    mode_steps
        Batches after which it stops; where null, 50 in the modes other than ``train``.
    propagation
        How mutants are propagated, by HeteroCell.
    max_bytes
        Bound on the memory of a batch's mutants; for ``delta`` and ``auto``.
    """

    name: str = "run"
    directory: str | None = None
    seed: int = 0
    mode: Mode = Mode.train
    mode_steps: int | None = None
    propagation: str = "auto"
    max_bytes: int | None = None
    data: DataConfig = field(default_factory=DataConfig)
    split: SplitConfig = field(default_factory=SplitConfig)
    model: ModelConfig = field(default_factory=DangoConfig)
    loss: LossConfig = field(default_factory=DangoLossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    loggers: LoggersConfig = field(default_factory=LoggersConfig)
    profiler: ProfilerConfig = field(default_factory=ProfilerConfig)
