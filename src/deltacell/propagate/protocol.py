"""What every way of propagating mutants has in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from deltacell.propagate.deleted import Deleted
from deltacell.propagate.hop import Hop, State
from deltacell.propagate.pool import Readout


@dataclass(frozen=True, eq=False)
class WildType:
    """The wild type's vectors, computed once a step and used by all that reads them.

    Parameters
    ----------
    states
        Before each hop, and after the last.
    """

    states: tuple[State, ...]

    @property
    def first(self) -> State:
        """The vectors that message passing starts from."""
        return self.states[0]

    @property
    def last(self) -> State:
        """The vectors after the last hop."""
        return self.states[-1]

    def after(self, hops: int) -> WildType:
        """Return what is left without the first hops, for mutants that they do not see."""
        return WildType(self.states[hops:])


@dataclass(frozen=True, eq=False)
class Mutants:
    """What was found of b mutants.

    Parameters
    ----------
    z
        The pooled wild type less the pooled mutant, [b, hidden].
    pooled
        The pooled wild type, [hidden].
    vectors
        Per-gene vectors [b, n, hidden] where they were asked for, 0 where a gene is deleted.
    epistasis
        The part of z that no smaller set of deletions explains, float64 [b, hidden], 0 for a
        single deletion; where it was asked for and the strategy finds it by itself.
    """

    z: torch.Tensor
    pooled: torch.Tensor
    vectors: torch.Tensor | None = None
    epistasis: torch.Tensor | None = None


class Propagation(Protocol):
    """A strategy: how message passing is carried out on many mutants of one cell.

    Strategies differ in time and memory only. Each equals, to rounding, deleting the nodes and all
    that touches them from the cell before the first of the given hops and propagating what is left,
    in results and gradients.
    """

    @property
    def name(self) -> str:
        """What it is called in configurations."""

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        """Do the host's work for a batch, ahead of the step if one likes.

        Parameters
        ----------
        hops
            For their targets and matrices; nothing is computed with them.
        deleted
            What the batch deletes, on the host.

        Returns
        -------
        Deleted
            The same, with whatever else the strategy found out.
        """

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the wild type.

        Parameters
        ----------
        hops
            Message passing, in order.
        state
            The vectors it starts from, [n, hidden] of each kind of node.
        """

    def mutants(
        self,
        hops: Sequence[Hop],
        wild_type: WildType,
        deleted: Deleted,
        readout: Readout,
        *,
        vectors: bool = False,
    ) -> Mutants:
        """Propagate the mutants and read them out.

        Parameters
        ----------
        hops
            The same that the wild type went through.
        wild_type
            What `wild_type` returned in this step.
        deleted
            What `prepare` returned, on the device of the vectors.
        readout
            What is pooled.
        vectors
            Whether to return the per-gene vectors of all mutants, which takes memory.
        """
