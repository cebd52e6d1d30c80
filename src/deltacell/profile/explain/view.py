"""A trace as a judgement sees it: seconds of a counted step in several breakdowns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import polars as pl

from deltacell.base.arrays import Doubles
from deltacell.profile.trace.attribution import Attribution
from deltacell.profile.trace.calls import Calls
from deltacell.profile.trace.components import StepComponents
from deltacell.profile.trace.device import PARTS

Seconds = dict[str, float]


class View:
    """Seconds of a counted step in several breakdowns, averaged over ranks.

    ``parts`` divide the device's time and are empty without one; ``kernels`` is the time of the
    kernels launched in the step. ``times`` are nanoseconds of each counted step, averaged over
    ranks if they have equally many steps.
    """

    def __init__(self, name: str, ranks: Sequence[Attribution]) -> None:
        self.name = name
        self.ranks = ranks
        self.traits = ranks[0].traits
        self.parts: Seconds = {}
        self.kernels = 0.0
        devices = [rank.device.steps.filter("counted") for rank in ranks if rank.device is not None]
        if devices:
            # The mean over steps, and then over ranks.
            means = pl.concat([steps.mean() for steps in devices]).mean()
            self.parts = {part: means[part].item() / 1e9 for part in PARTS}
            self.kernels = means["kernels"].item() / 1e9
        times = [rank.step_times for rank in ranks]
        is_rectangular = len({len(of_rank) for of_rank in times}) == 1
        self.times = np.mean(times, axis=0) if is_rectangular else times[0].astype(np.float64)
        self._sums: dict[tuple[str, str], Seconds] = defaultdict(lambda: defaultdict(float))
        for rank in ranks:
            steps = rank.n_counted * len(ranks) * 1e9
            for breakdown, rows in _breakdowns(rank):
                for group, operation, time in rows.iter_rows():
                    self._sums[breakdown, group][operation] += time / steps

    def by(self, breakdown: str, group: str = "") -> Seconds:
        """Return seconds by name in a breakdown; its group is a category, part or reason."""
        return self._sums[breakdown, group]

    def component(self, name: str) -> float:
        """Return the seconds of a range or module, with everything inside it."""
        components = self.by("components")
        return components.get(name, 0.0) or components.get(f"nn.Module: {name}", 0.0)

    @cached_property
    def step_parts(self) -> StepComponents:
        """The components of a step and the rest of it, in seconds averaged over ranks."""
        components: Seconds = defaultdict(float)
        others: Seconds = defaultdict(float)
        for rank in self.ranks:
            for name, seconds in rank.step_parts.components.items():
                components[name] += seconds / len(self.ranks)
            for name, seconds in rank.step_parts.others.items():
                others[name] += seconds / len(self.ranks)
        return StepComponents(dict(components), dict(others))

    @property
    def kernel_spread(self) -> float | None:
        """How steady repeated kernels of the first rank are; None if few are repeated."""
        return self.ranks[0].kernel_spread

    @property
    def operator_spread(self) -> float | None:
        """How steady repeated operators of the first rank are; None if few are repeated."""
        return self.ranks[0].operator_spread

    @property
    def computing_share(self) -> float:
        """The share of a step in which the device computes; 0 without a device."""
        whole = sum(self.parts.values())
        return self.parts["compute"] / whole if whole else 0.0

    @cached_property
    def kernel_times(self) -> Doubles:
        """Nanoseconds of the computing kernels of each counted step of the first rank."""
        device = self.ranks[0].device
        if device is None:
            return np.zeros(0)
        return device.steps.filter("counted")["kernels"].to_numpy().astype(np.float64)

    @property
    def calls(self) -> Calls:
        """The calls of the first rank."""
        return self.ranks[0].calls

    @cached_property
    def operator_names(self) -> frozenset[str]:
        """The names of operators that no other one called, and of nodes of the backward."""
        return frozenset(self.calls.operators["name"]) | self.calls.nodes.keys()

    def host_calls(self, name: str) -> float:
        """Return how often a step of the first rank calls an operation of the host."""
        rank = self.ranks[0]
        return int(rank.doing.filter(name=name)["count"].sum()) / rank.n_counted

    def steps_of(self, name: str) -> Doubles:
        """Return the seconds of an operation of the host in each counted step of the first rank."""
        rank = self.ranks[0]
        host = rank.host
        steps = rank.steps
        if name not in host.names:
            return np.zeros(rank.n_counted)
        pieces = host.name == host.names.index(name)
        length = (host.end - host.begin)[pieces]
        of_step = np.bincount(host.step[pieces], weights=length, minlength=len(steps))
        seconds: Doubles = of_step[steps.counted] / 1e9
        return seconds

    def launches(self, name: str) -> float:
        """Return how often a step of the first rank launches a kernel, by operator or kernel."""
        rank = self.ranks[0]
        work = rank.work
        table = work.operators if name in work.operators["name"] else work.kernels
        return int(table.filter(name=name)["count"].sum()) / rank.n_counted

    @property
    def categories(self) -> Seconds:
        """Seconds of the host by category."""
        seconds: Seconds = defaultdict(float)
        for (category, _), time in self.host.items():
            seconds[category] += time
        return seconds

    @property
    def host(self) -> dict[tuple[str, str], float]:
        """Seconds of the host by category and name."""
        seconds = {}
        for (breakdown, category), by_name in self._sums.items():
            if breakdown == "host":
                for name, time in by_name.items():
                    seconds[category, name] = time
        return seconds


def _breakdowns(rank: Attribution) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the name of each breakdown of a rank's time, with rows of group, name and time."""
    ungrouped = pl.lit("").alias("group")
    yield "host", rank.doing.select("category", "name", "time")
    yield "operations", rank.doing.select(ungrouped, "name", "time")
    yield "kernels", rank.work.kernels.select("part", "name", "time")
    yield "operators", rank.work.operators.select(ungrouped, "name", "time")
    yield "modules", rank.work.modules.select(ungrouped, "name", "time")
    yield "components", rank.work.modules.select(ungrouped, "name", "total")
    if rank.device is not None:
        yield "idle", rank.device.idle.select(ungrouped, "reason", "time")
        yield "meanwhile", rank.device.idle_by_name.select("reason", "name", "time")
