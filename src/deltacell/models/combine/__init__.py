"""How what the relations tell a gene becomes one vector: one file a way."""

from __future__ import annotations

from torch import nn

from deltacell.errors import InputError
from deltacell.models.combine.attention import AttentionCombination
from deltacell.models.combine.pairwise import PairwiseCombination
from deltacell.models.combine.plain import MeanCombination, SumCombination

COMBINATIONS = ("sum", "mean", "attention", "pairwise")
"""All of them map messages [r, m, hidden] to vectors [m, hidden], gene by gene."""


def combination(name: str, relations: int, hidden: int, activation: str) -> nn.Module:
    """Make a combination by its name.

    Parameters
    ----------
    name
        One of `COMBINATIONS`.
    relations
        How many relations.
    hidden
        Width of a vector.
    activation
        One of `ACTIVATIONS`.
    """
    if name == "sum":
        return SumCombination()
    if name == "mean":
        return MeanCombination()
    if name == "attention":
        return AttentionCombination(relations, hidden)
    if name == "pairwise":
        return PairwiseCombination(relations, hidden, activation)
    raise InputError(f"there is no combination '{name}'; there are {', '.join(COMBINATIONS)}")


__all__ = [
    "COMBINATIONS",
    "AttentionCombination",
    "MeanCombination",
    "PairwiseCombination",
    "SumCombination",
    "combination",
]
