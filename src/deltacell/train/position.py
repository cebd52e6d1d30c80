"""The position of a training: counters from which its learning rate and its end follow."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class Position:
    """How far a training is, over all of its attempts."""

    epoch: int = 0  # complete epochs
    batch: int = 0  # batches of the current epoch
    step: int = 0  # optimizer steps
    best: float = -math.inf  # highest validation metric
    waited: int = 0  # validations since the best
    drops: int = 0  # how often the schedule ``plateau`` has lowered the learning rate
    seconds: float = 0.0  # training time until the last checkpoint

    def note_validation(self, metric: float, patience: int) -> None:
        """Record a validation metric; higher is better, and NaN is never better.

        `patience` is that of the schedule: the rate drops after ``patience + 1`` validations in a
        row without improvement.
        """
        if metric > self.best:
            self.best = metric
            self.waited = 0
            return
        self.waited += 1
        if self.waited % (patience + 1) == 0:
            self.drops += 1
