"""What the hops of a model tell of its size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from deltacell.propagate.hop import Hop


def sizes_of(hops: Sequence[Hop]) -> dict[str, int]:
    """Return the number of nodes of each kind."""
    sizes: dict[str, int] = {}
    for hop in hops:
        for a in hop.aggregates:
            sizes[hop.target], sizes[a.source] = a.matrix.shape
    return sizes


def width_of(hop: Hop) -> int:
    """Return the width of vectors, as far as parameters tell: their commonest last size."""
    sizes = Counter(p.shape[-1] for p in hop.parameters if p.dim())
    return sizes.most_common(1)[0][0] if sizes else 1


def row_flop(hop: Hop) -> float:
    """Return the floating-point operations of a hop's update for one row, forward."""
    return 2.0 * sum(p.numel() for p in hop.parameters)


def place_of(hops: Sequence[Hop]) -> tuple[torch.device, torch.dtype]:
    """Return where the parameters are and of what type; float32 on a CPU where there are none."""
    for hop in hops:
        for parameter in hop.parameters:
            return parameter.device, torch.promote_types(parameter.dtype, torch.float32)
    return torch.device("cpu"), torch.float32
