"""What mutants are computed from: parts of the wild type and parameters, each under a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from deltacell.propagate.hop import Hop
from deltacell.propagate.pool import Readout, WildPool
from deltacell.propagate.wild import WildTypeInParts


@dataclass(frozen=True)
class First:
    """The wild type's vectors before all hops, [n, hidden], of one kind of node."""

    kind: str


@dataclass(frozen=True)
class After:
    """The wild type's new vectors after a hop, [n, hidden], of the hop's target."""

    hop: int


@dataclass(frozen=True)
class SumsOf:
    """What the wild type receives in a hop, before a mean divides, [k, n, hidden]."""

    hop: int


@dataclass(frozen=True)
class MessagesOf:
    """The wild type's messages in a hop, [k, n, hidden]."""

    hop: int


@dataclass(frozen=True)
class PoolPart:
    """A part of the pooled wild type, see `WildPool`."""

    part: str


@dataclass(frozen=True)
class ParameterOf:
    """Parameter i of a hop's message k, or of its update, where k is 0."""

    hop: int
    k: int
    i: int


@dataclass(frozen=True)
class ReadoutParameter:
    """Parameter i of the readout."""

    i: int


Name = First | After | SumsOf | MessagesOf | PoolPart | ParameterOf | ReadoutParameter
Given = Mapping[Name, torch.Tensor]


def given_by(
    hops: Sequence[Hop], wild: WildTypeInParts, pool: WildPool, readout: Readout
) -> dict[Name, torch.Tensor]:
    """Return all that mutants are computed from.

    Parameters
    ----------
    hops, readout
        For their parameters.
    wild
        The wild type, with or without its parts.
    pool
        The pooled wild type.
    """
    given: dict[Name, torch.Tensor] = {First(kind): x for kind, x in wild.first.items()}
    for h, hop in enumerate(hops):
        given[After(h)] = wild.states[h + 1][hop.target]
        groups = [hop.parameters] if hop.messages is None else [m.parameters for m in hop.messages]
        for k, group in enumerate(groups):
            given |= {ParameterOf(h, k, i): p for i, p in enumerate(group)}
    given |= {SumsOf(h): x for h, x in enumerate(wild.sums) if x is not None}
    given |= {MessagesOf(h): x for h, x in enumerate(wild.messages) if x is not None}
    given |= {PoolPart(part): x for part, x in pool._asdict().items()}
    given |= {ReadoutParameter(i): p for i, p in enumerate(readout.parameters())}
    return given


class GradientSums:
    """Sums of gradients of what is given, by name; begun where something is added.

    Parameters
    ----------
    wanted
        What wants a gradient.
    """

    def __init__(self, wanted: Given) -> None:
        self._wanted = wanted
        self.sums: dict[Name, torch.Tensor] = {}

    def wants(self, name: Name) -> bool:
        """Whether a gradient is wanted."""
        return name in self._wanted

    def of(self, name: Name) -> torch.Tensor:
        """Return the sum so far, to be added to."""
        if name not in self.sums:
            like = self._wanted[name]
            self.sums[name] = torch.zeros(like.shape, dtype=like.dtype, device=like.device)
        return self.sums[name]

    def add(self, name: Name, gradient: torch.Tensor | None) -> None:
        """Add to a sum, where one is wanted."""
        if gradient is not None and self.wants(name):
            self.of(name).add_(gradient)

    def join(self, other: GradientSums) -> None:
        """Add the sums of another."""
        for name, gradient in other.sums.items():
            self.add(name, gradient)
