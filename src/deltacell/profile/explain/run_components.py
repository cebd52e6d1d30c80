"""What the components of a model take of a step, from the recorded steps of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from deltacell.profile.component_rows import NO_COMPONENT, WITHIN, StepPass
from deltacell.profile.explain.account import Account, EvidenceTable, Waterfall
from deltacell.profile.trace.categories import Category

# The phases in which a pass runs, and their categories.
_PHASES = {
    StepPass.forward: ("forward", "loss"),
    StepPass.backward: ("backward",),
    StepPass.update: ("optimizer",),
}
OUTSIDE_COMPONENTS = "outside components"


@dataclass(frozen=True)
class ComponentTime:
    """Seconds per step of a component by pass, without those of components inside it."""

    path: str  # from the outermost component to this one
    seconds: Mapping[StepPass, float]

    @property
    def total(self) -> float:
        """The seconds in all passes."""
        return math.fsum(self.seconds.values())

    @property
    def outermost(self) -> str:
        """The component around it, or its own name."""
        return self.path.split(WITHIN)[0]


@dataclass(frozen=True)
class StepParts:
    """A step of a run in components and in the rest of its time, which add up to it."""

    components: tuple[ComponentTime, ...]
    rest: Mapping[str, float]  # by category, and what a pass spends outside components
    n_steps: int  # that were recorded

    @property
    def by_part(self) -> dict[str, float]:
        """Seconds per step by outermost component, and of the rest."""
        parts: dict[str, float] = {}
        for component in self.components:
            name = component.outermost
            parts[name] = parts.get(name, 0.0) + component.total
        for name, seconds in self.rest.items():
            parts[name] = parts.get(name, 0.0) + seconds
        return parts


def step_parts(
    components: pl.DataFrame, steady: pl.DataFrame, account: Account
) -> StepParts | None:
    """Return the parts of a step; None if no steady step was recorded.

    Each component has its share of the phases of the recorded steps, times what these phases take
    in all steady steps. So the parts add up to the step of the account.

    Parameters
    ----------
    components
        The rows of `read_components`.
    steady
        The rows of the phase timer for all steady steps, a row per rank and step.
    """
    keys = ["rank", "attempt", "step"]
    recorded = steady.join(components.select(keys).unique(), on=keys, how="semi")
    rows = components.join(recorded, on=keys, how="semi")
    if rows.is_empty():
        return None
    seconds: dict[str, dict[StepPass, float]] = {}
    rest = dict(account.parts)
    for step_pass, phases in _PHASES.items():
        measured = float(recorded.select(pl.sum_horizontal(f"{x}_s" for x in phases).sum()).item())
        titles = [Category[phase].title for phase in phases]
        whole = math.fsum(rest.pop(title, 0.0) for title in titles)
        if not measured > 0:
            continue
        of_pass = _seconds_of(rows, step_pass)
        for path, spent in of_pass.items():
            seconds.setdefault(path, {})[step_pass] = whole * spent / measured
        outside = whole * (1 - math.fsum(of_pass.values()) / measured)
        rest[f"{titles[0]} {OUTSIDE_COMPONENTS}"] = outside
    times = tuple(ComponentTime(path, by_pass) for path, by_pass in seconds.items())
    return StepParts(times, rest, recorded.select(keys[1:]).n_unique())


def _seconds_of(rows: pl.DataFrame, step_pass: StepPass) -> dict[str, float]:
    """Return the seconds of all recorded steps in a pass by component, without the rest."""
    of_pass = rows.filter(pl.col("pass") == step_pass.value, pl.col("component") != NO_COMPONENT)
    sums = of_pass.group_by("component", maintain_order=True).agg(pl.sum("seconds"))
    return dict(sums.iter_rows())


def parts_table(parts: StepParts, name: str, key: str, samples: float | None) -> EvidenceTable:
    """Return the components of a step and the rest of it, the longest first; rows add up to it."""
    whole = math.fsum(parts.by_part.values()) or 1.0
    rows: list[tuple[str, float | None, float | None, float | None, float]] = []
    for component in parts.components:
        forward, backward, update = [1e3 * component.seconds.get(one, 0.0) for one in StepPass]
        rows.append((component.path, forward, backward, update, component.total))
    rows += [(title, None, None, None, spent) for title, spent in parts.rest.items() if spent > 0]
    rows.sort(key=lambda row: -row[-1])
    passes = [f"{step_pass.value}, ms" for step_pass in StepPass]
    numbers = dict.fromkeys([*passes, "seconds"], pl.Float64())
    schema = {"component": pl.String(), **numbers}
    frame = pl.DataFrame(rows, schema=schema, orient="row").with_columns(
        (1e3 * pl.col("seconds")).alias("ms per step"),
        (pl.col("seconds") / whole).alias("share of a step"),
    )
    if samples:
        per_sample = (1e6 * pl.col("seconds") / samples).alias("µs per sample")
        frame = frame.with_columns(per_sample)
    title = f"components of {name}, from {parts.n_steps:,} recorded steps"
    return EvidenceTable(key, title, frame.drop("seconds"))


@dataclass(frozen=True)
class ComponentGap:
    """The component that makes most of the difference between two runs."""

    component: str
    change: float  # seconds per sample or step
    gap: float
    per: str
    forward: float  # of the change
    backward: float


def component_fall(a: StepParts, b: StepParts, sizes: tuple[float, float], per: str) -> Waterfall:
    """Return the changes from A to B by component, per sample if ``sizes`` are those of batches."""
    parts = []
    for side, size in zip((a, b), sizes, strict=True):
        parts.append({part: seconds / size for part, seconds in side.by_part.items()})
    return Waterfall.between(per, parts[0], parts[1])


def leading_component(
    a: StepParts,
    b: StepParts,
    sizes: tuple[float, float],
    per: str,
) -> ComponentGap | None:
    """Return the component with the largest change in the direction of the gap, if there is one."""
    fall = component_fall(a, b, sizes, per)
    names = {component.outermost for side in (a, b) for component in side.components}
    sign = 1 if fall.gap > 0 else -1
    bars = [bar for bar in fall.bars if bar.part in names and bar.change * sign > 0]
    if not bars:
        return None
    lead = bars[0]
    changes = {
        step_pass: _seconds_in(b.components, lead.part, step_pass) / sizes[1]
        - _seconds_in(a.components, lead.part, step_pass) / sizes[0]
        for step_pass in (StepPass.forward, StepPass.backward)
    }
    forward = changes[StepPass.forward]
    backward = changes[StepPass.backward]
    return ComponentGap(lead.part, lead.change, fall.gap, per, forward, backward)


def _seconds_in(components: Sequence[ComponentTime], outermost: str, step_pass: StepPass) -> float:
    inside = [component for component in components if component.outermost == outermost]
    return math.fsum(component.seconds.get(step_pass, 0.0) for component in inside)
