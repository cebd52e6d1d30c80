"""What each pair of genes adds to the score of its set under uniform attention."""

from __future__ import annotations

import torch

from deltacell.arrays import Ints
from deltacell.models.hyper_sagnn import PaddedSets
from deltacell.predict.axis_cache import AxisCache
from deltacell.predict.dango_tables import UniformTables
from deltacell.train.standard import Standard

KEPT = 2**27
"""Bytes of tables that are kept, 16 KiB each for axes of 64 genes."""


class PairTables:
    r"""Tables whose sum over the pairs of a set is its score under uniform attention.

    With y and z of `UniformTables`, n others and w the weights of the score,

        size * G_ij = 2 w . (y_i z_j + z_i y_j + (n - 1) z_i z_j) + (f_i + f_j) / n + 2 b / n,
        f_i = w . (y_i^2 + n z_i^2),

    in the unit of the screen: one matrix product for all pairs of two axes.

    Parameters
    ----------
    sets
        The weights, in double precision.
    tables
        Of the size of the sets.
    standard
        The scale of the targets.
    """

    def __init__(self, sets: PaddedSets, tables: UniformTables, standard: Standard) -> None:
        size, others = tables.size, tables.size - 1
        weight = sets.score.weight[0] * (standard.std / size)
        y, z = tables.y, tables.z
        alone = (y.square() + others * z.square()) @ weight / others
        shift = float(standard.undo(sets.score.bias[0])) / (size * others / 2)
        one = torch.ones_like(alone).unsqueeze(1)
        alone = alone.unsqueeze(1)
        self._left = torch.cat([y, z, alone + shift, one], 1)
        self._right = torch.cat(
            [2 * weight * z, 2 * weight * (y + (others - 1) * z), one, alone], 1
        )
        self._kept: AxisCache[torch.Tensor] = AxisCache(KEPT)

    def of(self, first: Ints, second: Ints) -> torch.Tensor:
        """Return the table of two axes, float32 [len, len].

        Parameters
        ----------
        first, second
            Gene indices.
        """
        return self._kept.get(
            (first, second), lambda: (self._left[first] @ self._right[second].t()).float()
        )
