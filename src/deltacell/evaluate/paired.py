"""Predicted and measured numbers of the same rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deltacell.errors import InputError
from deltacell.words import count_text

Doubles = npt.NDArray[np.float64]


def paired(predicted: npt.ArrayLike, measured: npt.ArrayLike) -> tuple[Doubles, Doubles]:
    """Return both as columns, without the rows that were not measured.

    Parameters
    ----------
    predicted, measured
        One number a row, NaN where it was not measured.
    """
    x, y = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise InputError(f"predictions of shape {x.shape} for measured scores of shape {y.shape}")
    known = np.isfinite(y)
    x, y = x[known], y[known]
    if not len(x):
        raise InputError("no row has a measured score")
    if not np.isfinite(x).all():
        n = int((~np.isfinite(x)).sum())
        not_finite = count_text(
            n, "prediction is not a finite number", "predictions are not finite numbers"
        )
        raise InputError(not_finite)
    return x, y
