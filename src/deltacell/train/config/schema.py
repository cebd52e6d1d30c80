"""The schema of configs: every key of docs/reference/config.md, with its type and default.

OmegaConf checks the types; `deltacell.train.config.checks` checks the values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

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
from deltacell.train.mode import MODES


@dataclass
class DataConfig:
    """The cell and the screen to train on."""

    folder: str | None = None
    screen: str | None = None
    context: list[str] = field(default_factory=list)
    orthologues: str | None = None
    cell: str | None = None
    synthetic: Annotated[str, one_of("demo yeast redundancy")] | None = None
    synthetic_seed: AtLeast0 = 0
    synthetic_genotypes: AtLeast1 | None = None
    relations: list[str] | None = None
    merge_relations: dict[str, list[str]] = field(default_factory=dict)
    screen_genes_only: bool = False
    where: dict[str, list[str]] = field(default_factory=dict)
    hits: dict[str, Any] = field(default_factory=dict)
    merge: Annotated[str, one_of("mean median best-p")] | None = None
    subset: AtLeast1 | None = None
    batch_size: AtLeast1 = 64
    samples_per_epoch: AtLeast1 | None = None
    residual: Annotated[str, one_of("additive multiplicative")] | None = None
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
    """An optimizer of `torch.optim`, by the name of its class, with its own arguments.

    ``lr`` is only the initial learning rate: before every update, the training sets the rate that
    the schedule computes from it.
    """

    name: str = "AdamW"
    options: dict[str, Any] = field(default_factory=dict)
    lr: Positive = 1e-3
    weight_decay: Weight = 1e-5
    clip: Positive | None = 10.0
    accumulate: AtLeast1 = 1


@dataclass
class ScheduleConfig:
    """How the learning rate of each step follows from ``optimizer.lr``."""

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
    best: list[str] = field(default_factory=lambda: ["pearson"])
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
    window: list[int] = field(default_factory=lambda: [5, 2, 6, 1])
    record_shapes: bool = True
    profile_memory: bool = False
    with_stack: bool = False
    kind: Annotated[str, one_of("cprofile lines memory")] | None = None
    functions: list[str] = field(default_factory=list)


@dataclass
class Config:
    """The whole config of a run."""

    name: str = "run"
    directory: str | None = None
    seed: AtLeast0 = 0
    mode: Annotated[str, one_of(" ".join(MODES))] = "train"
    mode_steps: AtLeast1 | None = None
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
        """The number of processes that train together."""
        return self.trainer.devices * self.trainer.nodes
