"""What a step costs whatever its batch, and what each sample adds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

FEW_OF_SIZE = 3  # steps of one size that are too few to count
LEAST_RATIO = 1.5  # of the largest and the smallest size, below which they say too little


@dataclass(frozen=True)
class StepCost:
    """``seconds of a step = fixed + samples * per_sample``."""

    fixed: float
    per_sample: float
    sizes: tuple[int, ...]  # samples of the steps that it was computed from

    def seconds(self, samples: float) -> float:
        """Return the seconds of a step with so many samples."""
        return self.fixed + samples * self.per_sample


def step_cost(steady: pl.DataFrame) -> StepCost | None:
    """Return the cost by steps of different size, by the medians of each size.

    None if there are not two sizes with several steps each that differ by `LEAST_RATIO`, or if
    larger steps do not take longer.
    """
    sizes = steady.filter(pl.col("samples") > 0).group_by("samples")
    medians = sizes.agg(pl.median("wall_s").alias("seconds"), pl.len().alias("steps"))
    medians = medians.filter(pl.col("steps") >= FEW_OF_SIZE).sort("samples")
    samples = medians["samples"].to_numpy().astype(np.float64)
    if len(samples) < 2 or samples[-1] < LEAST_RATIO * samples[0]:
        return None
    # The variance of a median falls with the number of steps.
    weights = np.sqrt(medians["steps"].to_numpy())
    per_sample, fixed = np.polyfit(samples, medians["seconds"].to_numpy(), 1, w=weights)
    if not per_sample > 0:
        return None
    return StepCost(max(float(fixed), 0.0), float(per_sample), tuple(medians["samples"].to_list()))


@dataclass(frozen=True)
class EqualBatch:
    """How long a step of B would take compared with one of A, if both had one batch."""

    samples: float
    ratio: float  # of B to A
    run: str  # whose step at this batch follows from its steps of different size
    cost: StepCost


def at_equal_batch(
    a: tuple[str, StepCost | None, float, float],
    b: tuple[str, StepCost | None, float, float],
) -> EqualBatch | None:
    """Return the ratio at the batch of one of them; None if no run has steps of different size.

    Each is a name, its cost, and the samples and seconds of its mean step. The run whose steps
    reach closer to the other batch is the one that is computed.
    """
    candidates = []
    for (name, cost, _, _), (_, _, samples, seconds) in ((a, b), (b, a)):
        if cost is None:
            continue
        reach = abs(np.log(samples / np.clip(samples, cost.sizes[0], cost.sizes[-1])))
        ratio = seconds / cost.seconds(samples)
        is_of_a = name == a[0]
        result = EqualBatch(samples, ratio if is_of_a else 1 / ratio, name, cost)
        candidates.append((float(reach), result))
    return min(candidates, key=lambda candidate: candidate[0])[1] if candidates else None
