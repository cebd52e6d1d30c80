"""Trials whose times follow from the config alone, so that the cause of each gap is known."""

from __future__ import annotations

from functools import cache
from random import Random

from deltacell.train.comparing.sides import TriedSide
from deltacell.train.comparing.trials import AnyArm, TrialRow
from deltacell.train.config import Config
from deltacell.train.config.compose import compose

BASE = (
    *("experiment=demo_hetero", "loss=point_distribution_contrast", "data.batch_size=64"),
    *("model.propagation=shared", "model.layers=2", "trainer.threads=2"),
)
_SLOWER = {"subgraph": 12.0, "edge_mask": 20.0, "shared": 2.0, "delta": 1.2, "auto": 1.0}
_MODES = {"data": 1, "forward": 2, "step": 3, "train": 4}


def step_seconds(config: Config, mode: str, *, delay: float = 0.0) -> float:
    """The seconds of a step: a fixed cost, and work that each setting multiplies or adds."""
    batch = config.data.batch_size
    options = config.model.options()
    relations = options["relations"] or config.data.relations
    n_relations = len(relations or ())
    if config.data.merge_relations:
        n_relations = max(1, n_relations - 1)
    messages = 1e-4 * batch * n_relations * _SLOWER[options["propagation"]]
    messages *= (options["hidden"] / 16) ** 2 * (options["mutant_layers"] or options["layers"])
    messages *= 4 if options["metabolism"] else 1
    messages *= {None: 1, 1: 2, 2: 1}[config.trainer.threads]
    gather = 0.2 if getattr(config.loss, "gather_interval", 0) and config.ranks > 1 else 0.0
    per_rank = 1 / config.ranks
    parts = {
        "data": 2e-5 * batch + delay,
        "forward": (messages + gather) * per_rank + 0.004,
        "backward": 2 * messages * per_rank + 0.006,
        "optimizer": 0.002,
    }
    return sum(list(parts.values())[: _MODES[mode]])


class SimulatedRunner:
    """Measures trials by `step_seconds`, with some noise that depends on the trial alone."""

    def __init__(self, delay_of_b: float = 0.0, stops_after: int | None = None) -> None:
        self.delay_of_b = delay_of_b
        self.stops_after = stops_after
        self.ran: list[tuple[str, int]] = []

    def __call__(self, arm: AnyArm, turn: int, steps: int) -> TrialRow:
        if self.stops_after is not None and len(self.ran) >= self.stops_after:
            raise KeyboardInterrupt
        self.ran.append((arm.name, turn))
        is_of_b = arm.name == "b" or arm.name.startswith("b,") or arm.name.startswith("b with")
        delay = self.delay_of_b if is_of_b else 0.0
        draw = Random(f"{arm.name} {turn}")
        seconds = step_seconds(arm.config, arm.mode, delay=delay) * draw.uniform(0.99, 1.01)
        times = tuple(seconds * draw.uniform(0.97, 1.03) for _ in range(steps))
        samples = float(arm.config.data.batch_size)
        return TrialRow(arm.name, turn, 5.0 + sum(times), times, samples, {"forward": seconds})


@cache
def _composed(words: tuple[str, ...]) -> Config:
    return compose(words)


def side(name: str, *words: str) -> TriedSide:
    return TriedSide(name, _composed((*BASE, *words)))
