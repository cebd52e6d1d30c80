"""A trained model as a predictor: what scores genotypes, without what trained it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from deltacell.cell import Cell
from deltacell.models import Dango, Prediction
from deltacell.screen import Genotypes
from deltacell.train.standard import Standard

WIDE = 4096
"""Genotypes that a DANGO scores at once: its cost hardly depends on them."""


@dataclass(frozen=True, eq=False)
class Predictor:
    """A model with its cell and the scale of its targets.

    Parameters
    ----------
    model
        `Dango` or `HeteroCell`, with its weights.
    cell
        The wild type.
    standard
        The scale of its targets.
    """

    model: nn.Module
    cell: Cell
    standard: Standard

    @torch.no_grad()
    def __call__(self, genotypes: Genotypes) -> torch.Tensor:
        """Return the scores [b] in the unit of the screen.

        Parameters
        ----------
        genotypes
            ``b`` of them.
        """
        return self.prediction(genotypes).score

    @torch.no_grad()
    def prediction(self, genotypes: Genotypes) -> Prediction:
        """Return all that is predicted, scores in the unit of the screen.

        Parameters
        ----------
        genotypes
            ``b`` of them.
        """
        options = {"reconstruct": False} if isinstance(self.model, Dango) else {}
        found: Prediction = self.model(self.cell, genotypes, **options)
        given_hit = None if found.given_hit is None else self.standard.undo(found.given_hit)
        return Prediction(self.standard.undo(found.score), hit=found.hit, given_hit=given_hit)
