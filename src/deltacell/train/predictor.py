"""A trained model as a predictor: what scores genotypes, without what trained it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from deltacell.cell import Cell
from deltacell.models import Dango, Prediction
from deltacell.models.baselines import FittedPredictor
from deltacell.screen import Genotypes
from deltacell.train.standard import Standard

WIDE = 4096
"""Genotypes that a DANGO scores at once: its cost hardly depends on them."""

WHOLE_BLOCK = 65_536
"""Genotypes that a fitted predictor scores at once."""

NETWORK = 64
"""Genotypes that any other network scores at once, where nothing else is asked for."""


@dataclass(frozen=True, eq=False)
class Predictor:
    """A model with its cell and the scale of its targets.

    Parameters
    ----------
    model
        A network with its weights, or a fitted predictor.
    cell
        The wild type.
    standard
        The scale of its targets.
    at_once
        Genotypes to score at once; by the kind of model where not given.
    """

    model: nn.Module | FittedPredictor
    cell: Cell
    standard: Standard
    at_once: int | None = None

    def rescaled(self, factor: float, shift: float) -> Predictor:
        """Return a predictor whose scores are ``factor * score + shift``."""
        mean, std = factor * self.standard.mean + shift, factor * self.standard.std
        return replace(self, standard=Standard(mean, std))

    @property
    def batch(self) -> int:
        """Genotypes that are scored at once."""
        if isinstance(self.model, FittedPredictor):
            return WHOLE_BLOCK
        if isinstance(self.model, Dango):
            return WIDE
        return self.at_once or NETWORK

    def __call__(self, genotypes: Genotypes) -> torch.Tensor:
        """Return the expected scores [b] in the unit of the screen.

        Parameters
        ----------
        genotypes
            ``b`` of them.
        """
        return self.predict(genotypes).score

    @torch.no_grad()
    def predict(
        self, genotypes: Genotypes, progress: Callable[[int, int], None] | None = None
    ) -> Prediction:
        """Return all that is predicted, in the unit of the screen, without intermediate results.

        Parameters
        ----------
        genotypes
            ``b`` of them; scored in batches.
        progress
            Called with the genotypes done and all of them.
        """
        n, found = len(genotypes), []
        for begin in range(0, max(n, 1), self.batch):
            if progress is not None:
                progress(begin, n)
            rows = torch.arange(begin, min(begin + self.batch, n))
            some = genotypes if len(rows) == n else genotypes.take(rows)
            found.append(self._batch(some))
        return Prediction(
            self.standard.undo(torch.cat([one.score for one in found])),
            hit=_joined([one.hit for one in found]),
            given_hit=_joined(
                [None if p.given_hit is None else self.standard.undo(p.given_hit) for p in found]
            ),
        )

    def _batch(self, genotypes: Genotypes) -> Prediction:
        options = {"reconstruct": False} if isinstance(self.model, Dango) else {}
        prediction: Prediction = self.model(self.cell, genotypes, **options)
        return prediction


def _joined(parts: list[torch.Tensor | None]) -> torch.Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.cat(there) if there else None
