"""How the learning rate goes from step to step."""

from __future__ import annotations

import math
from typing import Any

import torch

from deltacell.errors import InputError
from deltacell.train.config import ScheduleConfig

SCHEDULES = ("constant", "cosine", "warm_restarts", "plateau")


class Schedule:
    """Sets the learning rate before every optimizer step.

    With ``t`` the steps done, and ``T`` the steps there are (``cosine``) or those of the period
    that ``t`` is in (``warm_restarts``), the rate is ``min_lr + (lr - min_lr) * f`` with
    ``f = (1 + cos(pi * t / T)) / 2``, so the first step has the full rate and the step after a
    restart has it again. Over the first ``warmup_steps`` it is ``lr * (t + 1) / warmup_steps``
    where that is less. ``plateau`` lets ``patience`` validations in a row be without a better one,
    and multiplies it at the next.

    Parameters
    ----------
    optimizer
        Whose learning rate it is.
    config
        Which schedule.
    steps_per_epoch, epochs
        Of the optimizer.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        config: ScheduleConfig,
        steps_per_epoch: int,
        epochs: int,
    ) -> None:
        if config.name not in SCHEDULES:
            raise InputError(
                f"there is no schedule '{config.name}'; there are {', '.join(SCHEDULES)}"
            )
        self.optimizer = optimizer
        self.config = config
        self.steps_per_epoch = steps_per_epoch
        self.epochs = epochs
        self.lr: float = optimizer.param_groups[0]["lr"]
        if config.min_lr > self.lr:
            raise InputError(
                f"schedule.min_lr is {config.min_lr:g}, above optimizer.lr, {self.lr:g}"
            )
        self._plateau = {"factor": 1.0, "best": -math.inf, "waited": 0}
        self.apply(0)

    def apply(self, done: int) -> None:
        """Set the rate of the next step.

        Parameters
        ----------
        done
            Steps that the optimizer has done.
        """
        rate = self.rate(done)
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def rate(self, done: int) -> float:
        """Return the rate of the step after so many."""
        config, least = self.config, self.config.min_lr
        if config.name == "plateau":
            rate = max(least, self.lr * self._plateau["factor"])
        else:
            rate = least + (self.lr - least) * self._cosine(done)
        if done < config.warmup_steps:
            rate = min(rate, self.lr * (done + 1) / config.warmup_steps)
        return rate

    def validated(self, metric: float) -> None:
        """Take note of a validation; higher is better.

        Parameters
        ----------
        metric
            Such as Pearson's correlation; one that is not a number is no better one.
        """
        state = self._plateau
        if metric > state["best"]:
            state["best"], state["waited"] = metric, 0
            return
        state["waited"] += 1
        if state["waited"] > self.config.patience:
            state["factor"] *= self.config.factor
            state["waited"] = 0

    def state_dict(self) -> dict[str, Any]:
        """Return what is not a function of the steps done."""
        return dict(self._plateau)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._plateau = dict(state)

    def _cosine(self, done: int) -> float:
        if self.config.name == "constant":
            return 1.0
        at, period = done, self.steps_per_epoch * self.epochs
        if self.config.name == "warm_restarts":
            period = self.steps_per_epoch * self.config.period
            while at >= period:
                at -= period
                period *= self.config.period_factor
        return (1 + math.cos(math.pi * min(at / period, 1.0))) / 2
