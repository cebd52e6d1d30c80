"""The loaders of a training, and the batches of each optimizer step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from deltacell.screen import Batch, Loader
from deltacell.train.config import Config
from deltacell.train.data import TrainingData
from deltacell.train.position import Position


@dataclass(frozen=True)
class StepBatches:
    """The batches of one optimizer step, which are loaded when they are asked for."""

    batches: Iterator[Batch]
    sizes: tuple[int, ...]  # genotypes of each batch, over all ranks


@dataclass(frozen=True)
class Loaders:
    """The loaders of the training and the validation part."""

    training: Loader
    validation: Loader | None
    accumulate: int = 1  # batches of an optimizer step
    has_whole_batches: bool = False  # whether every batch counts as a whole one, see `Mode`

    @property
    def steps_per_epoch(self) -> int:
        """The number of optimizer steps of an epoch."""
        return -(-len(self.training) // self.accumulate)

    def steps(self, position: Position) -> Iterator[StepBatches]:
        """Yield the batches of every optimizer step of an epoch that is left.

        The caller moves the position on by the batches of a step before the next one.
        """
        batches = iter(self.training)
        while position.batch < len(self.training):
            yield StepBatches(batches, self._sizes_from(position.batch))

    def _sizes_from(self, first: int) -> tuple[int, ...]:
        """Return the genotypes of each batch of an optimizer step that begins at a batch.

        The last batch of an epoch may be short, and the last step may have fewer batches.
        """
        size = self.training.batch_size
        n_batches = min(self.accumulate, len(self.training) - first)
        if self.has_whole_batches:
            return (size,) * n_batches
        n_left = self.training.samples_per_epoch - first * size
        return tuple(min(size, n_left - place * size) for place in range(n_batches))


def build_loaders(
    config: Config,
    data: TrainingData,
    sets_per_call: int,
    *,
    rank: int = 0,
    world_size: int = 1,
    has_whole_batches: bool = False,
) -> Loaders:
    """Return the loaders of a config; those of the validation have batches of `sets_per_call`."""
    settings = config.data
    training = Loader(
        data.screen,
        data.split.train,
        batch_size=settings.batch_size,
        samples_per_epoch=settings.samples_per_epoch,
        run_length=settings.run_length,
        targets=data.targets,
        seed=config.seed,
        rank=rank,
        world_size=world_size,
    )
    validation = None
    if len(data.split.validation):
        validation = Loader(
            data.screen,
            _validation_rows(config, data),
            batch_size=sets_per_call,
            shuffle=False,
            targets=data.targets,
            seed=config.seed,
            rank=rank,
            world_size=world_size,
        )
    return Loaders(training, validation, config.optimizer.accumulate, has_whole_batches)


def _validation_rows(config: Config, data: TrainingData) -> np.ndarray:
    """Return the rows to validate: the validation part, or a sample that the split's seed draws."""
    rows = data.split.validation
    n_samples = config.trainer.validation_samples
    if n_samples is None or n_samples >= len(rows):
        return rows
    order = np.random.default_rng(config.split.seed).permutation(rows)
    return np.sort(order[:n_samples])
