"""Predicted against measured: what a ranking's scores were worth where the answer is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from deltacell.arrays import AnyArray, Ints
from deltacell.predict.gene_names import gene_texts
from deltacell.predict.scorer import Scorer
from deltacell.screen.keys import comparable_keys
from deltacell.train.loaded_run import LoadedRun

PARTS = ("test", "validation", "training")
_SHARES = (0.5, 0.25, 0.25)
_FEWEST = 3


class Known(NamedTuple):
    """Measured sets with their predictions, and how near these are.

    Parameters
    ----------
    measured
        As ``measured`` of `Ranking.to_json`.
    agreement
        As ``agreement`` of `Ranking.to_json`.
    """

    measured: list[dict[str, Any]]
    agreement: list[dict[str, Any]]


def against_measured(
    runs: Sequence[LoadedRun],
    scorer: Scorer,
    sizes: Sequence[int],
    *,
    most: int = 2_000,
    seed: int = 0,
) -> Known:
    """Score sets that were measured.

    Parameters
    ----------
    runs
        One or more; the measured sets are those of the first, see `distinct_measured`.
    scorer
        Of the runs.
    sizes
        Genes of the sets.
    most
        How many are drawn: half of them of the test part where it has as many.
    seed
        Of the draw.
    """
    screen = runs[0].data.screen
    rows, measured, part = distinct_measured(runs)
    fitting = np.isin(np.diff(screen.offsets)[rows], list(sizes)) & (part >= 0)
    rng = np.random.default_rng(seed)
    chosen = _drawn([np.flatnonzero(fitting & (part == p)) for p in range(len(PARTS))], most, rng)
    genes = screen.genotypes.genes.numpy()
    sets = [np.sort(genes[screen.offsets[r] : screen.offsets[r + 1]]) for r in rows[chosen]]
    predicted = np.zeros(len(chosen), dtype=np.float32)
    n_genes = np.array([len(one) for one in sets], dtype=np.int64)
    for size in np.unique(n_genes).tolist():
        of_size = np.flatnonzero(n_genes == size)
        predicted[of_size] = scorer.score(np.stack([sets[i] for i in of_size])).score
    cell_genes = runs[0].data.cell.genes
    names = gene_texts(cell_genes)
    listed = [
        {
            "genes": [cell_genes[g] for g in sets[i].tolist()],
            "names": [names[g] for g in sets[i].tolist()],
            "predicted": float(predicted[i]),
            "measured": float(measured[row]),
            "part": PARTS[part[row]],
        }
        for i, row in enumerate(chosen.tolist())
    ]
    agreement = [
        {"part": name, "sets": int(mine.sum()), "pearson": _pearson(predicted[mine], values[mine])}
        for name, mine, values in (
            (name, part[chosen] == p, measured[chosen]) for p, name in enumerate(PARTS)
        )
        if mine.any()
    ]
    return Known(listed, agreement)


def distinct_measured(runs: Sequence[LoadedRun]) -> tuple[Ints, AnyArray, Ints]:
    """Return a row of each distinct set, the mean of its scores, and its part, -1 for none.

    Parameters
    ----------
    runs
        As in `against_measured`.
    """
    screen = runs[0].data.screen
    screens = [run.data.screen for run in runs]
    keys = comparable_keys(
        len(screen.genes), *((s.genotypes.genes.numpy(), s.offsets) for s in screens)
    )
    distinct, rows, group = np.unique(keys[0], return_index=True, return_inverse=True)
    score = screen.column("score").astype(np.float64)
    mean = np.bincount(group, score) / np.bincount(group)
    part = np.full(len(distinct), -1, dtype=np.int64)
    for run, of_run in zip(runs, keys, strict=True):
        split = run.data.split
        # A part that comes later here wins: what a run was trained on is never called test.
        for p, mine in enumerate((split.test, split.validation, split.train)):
            at = np.searchsorted(distinct, of_run[mine])
            at = np.minimum(at, len(distinct) - 1)
            at = at[distinct[at] == of_run[mine]]
            part[at] = np.maximum(part[at], p)
    return rows, mean, part


def _drawn(parts: Sequence[Ints], most: int, rng: np.random.Generator) -> Ints:
    """Return about so many of all parts, by their shares, and more of one where another has few."""
    wanted = [min(len(part), int(share * most)) for part, share in zip(parts, _SHARES, strict=True)]
    for p, part in enumerate(parts):
        wanted[p] += min(len(part) - wanted[p], most - sum(wanted))
    found = [
        np.sort(rng.choice(part, n, replace=False)) for part, n in zip(parts, wanted, strict=True)
    ]
    return np.concatenate(found)


def _pearson(predicted: AnyArray, measured: AnyArray) -> float | None:
    if len(predicted) < _FEWEST or np.ptp(predicted) == 0 or np.ptp(measured) == 0:
        return None
    return float(np.corrcoef(predicted.astype(np.float64), measured.astype(np.float64))[0, 1])
