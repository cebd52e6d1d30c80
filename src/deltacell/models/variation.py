"""What of a training can be varied to find out what its time depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class VariationKind(StrEnum):
    """What a setting changes of the work or of its execution."""

    model = "model"
    propagation = "propagation"
    relations = "relations"
    metabolism = "metabolism"
    width = "width"
    layers = "layers"
    loss = "loss"
    gather = "gather"
    batch = "batch"
    accumulated = "accumulated batches"
    ranks = "ranks"
    threads = "threads"
    precision = "precision"
    compiled = "compiled parts"
    optimizer = "optimizer"
    data = "data"
    option = "option"


@dataclass(frozen=True)
class Variation:
    """Other values of some keys of a config, which `deltacell compare` tries."""

    kind: VariationKind
    settings: Mapping[str, object]  # by key of the whole config, such as "model.propagation"
    is_same_model: bool = False  # whether predictions stay the same, up to rounding
