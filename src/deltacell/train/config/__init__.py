"""The config of a run: its schema, its checks, and how it is composed and saved."""

from deltacell.train.config.schema import (
    Config,
    DataConfig,
    LoggersConfig,
    OptimizerConfig,
    ProfilerConfig,
    ScheduleConfig,
    SplitConfig,
    TrainerConfig,
)

__all__ = [
    "Config",
    "DataConfig",
    "LoggersConfig",
    "OptimizerConfig",
    "ProfilerConfig",
    "ScheduleConfig",
    "SplitConfig",
    "TrainerConfig",
]
