"""The interface of all strategies: a plan on the host, then the wild type, then the mutants."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from deltacell.profile.record import Messages
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.hop import GENE, Aggregate, Hop, HopShape, State
from deltacell.propagate.parallel.chunks import ALL, RowFunction, Rows
from deltacell.propagate.pool import Terms, WildPool, wild_pool


@dataclass(frozen=True, eq=False)
class WildMessage:
    """A message in the wild type: the sum over each aggregate's matrix, and what comes of them."""

    sums: tuple[Tensor, ...]  # for each aggregate, not divided for a mean, [n, hidden]
    message: Tensor  # [n, hidden]


@dataclass(frozen=True, eq=False)
class WildType:
    """The wild type's vectors, computed once per step."""

    states: tuple[State, ...]  # before each hop, and after the last
    # Of each hop, for strategies that read them; empty from those that do not.
    messages: tuple[tuple[WildMessage, ...], ...] = ()

    @property
    def last(self) -> State:
        """The vectors after the last hop."""
        return self.states[-1]

    def after(self, n_hops: int) -> WildType:
        """Return the wild type without the first hops, in which the mutants do not differ."""
        return WildType(self.states[n_hops:], self.messages[n_hops:])


@dataclass(frozen=True, eq=False)
class Mutants:
    """The results for b mutants."""

    z: Tensor  # the pooled wild type minus the pooled mutant, [b, hidden]
    pooled: Tensor  # the pooled wild type, [hidden]
    # The part of z that no smaller set explains, float64 [b, hidden], 0 for a single deletion; only
    # from plans with epistasis.
    epistasis: Tensor | None = None


class Readout(Protocol):
    """Reads the genes of a cell row by row; `Pooling` of HeteroCell is one."""

    def terms(self, vectors: Tensor, rows: Rows) -> Terms:
        """Return the gates and values of genes, from their vectors [..., hidden]."""

    def parameters(self) -> Iterable[nn.Parameter]:
        """Return the tensors that need a gradient."""


class ReadoutTerms(RowFunction):
    """The terms of a readout as a row-wise function."""

    def __init__(self, readout: Readout) -> None:
        self._readout = readout
        self.parameters = list(readout.parameters())

    def forward(self, rows: Rows, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the gates and values of genes from their vectors."""
        return self._readout.terms(inputs[0], rows)


@dataclass(frozen=True, eq=False)
class Step:
    """What all mutants of a step have in common."""

    hops: Sequence[Hop]
    wild_type: WildType
    readout: Readout
    pool: WildPool

    @property
    def parameters(self) -> list[Tensor]:
        """The tensors that need a gradient."""
        of_hops = chain.from_iterable(hop.parameters for hop in self.hops)
        return [*of_hops, *self.readout.parameters()]


@dataclass(frozen=True, eq=False)
class Plan:
    """How a strategy computes a batch of mutants: tensors and numbers, and no functions.

    It is made on the host, where it can run ahead of the step, and then moved to the device.
    """

    n_mutants: int

    @property
    def sent_bytes(self) -> int:
        """The bytes that the loader has to send, beyond the genotypes; 0 if not counted."""
        return 0


PlanT = TypeVar("PlanT", bound=Plan)


class Strategy(ABC, Generic[PlanT]):
    """How message passing is carried out on many mutants of one cell.

    Strategies differ in time and memory only. Up to rounding, results and gradients equal those of
    deleting the nodes and their edges from the cell and propagating over the given hops.

    ::

        plan = strategy.plan(shapes, deleted, device)
        wild_type = strategy.wild_type(hops, state)
        mutants = strategy.mutants(plan, hops, wild_type, readout)
    """

    name: ClassVar[str]  # in configurations
    passes: ClassVar[Messages]  # on what messages are passed

    @abstractmethod
    def plan(
        self,
        shapes: Sequence[HopShape],
        deleted: Deleted,
        device: torch.device,
        *,
        dtype: torch.dtype = torch.float32,
        epistasis: bool = False,
    ) -> PlanT:
        """Return how to compute a batch of mutants, as tensors on the host.

        Parameters
        ----------
        shapes
            The hops that see the deletion.
        deleted
            What each genotype deletes.
        device
            Where the step will run.
        dtype
            The precision of the step, which decides how much fits into a bound.
        epistasis
            Whether the step needs the part of z that no smaller set explains.
        """

    @abstractmethod
    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the wild type from the vectors of each kind of node, [n, hidden]."""

    def mutants(
        self,
        plan: PlanT,
        hops: Sequence[Hop],
        wild_type: WildType,
        readout: Readout,
    ) -> Mutants:
        """Propagate the mutants of a plan and read them out.

        `hops` are those that the plan was made for, and `wild_type` begins before the first.
        """
        pool = wild_pool(readout.terms(wild_type.last[GENE], ALL))
        if not plan.n_mutants:
            z = pool.value[:0]
            return Mutants(z, pool.pooled, z.double())
        return self._mutants(plan, Step(hops, wild_type, readout, pool))

    @abstractmethod
    def _mutants(self, plan: PlanT, step: Step) -> Mutants:
        """Propagate at least one mutant and read it out."""


AnyStrategy = Strategy[Any]


def propagate(
    hops: Sequence[Hop],
    state: State,
    rows: Mapping[str, Rows],
    receive: Callable[[Aggregate, str, Tensor], Tensor],
) -> list[State]:
    """Return the vectors [m, hidden] before each hop and after the last.

    `rows` are the nodes of the cell that the vectors belong to, by kind; `receive` computes an
    aggregate for the nodes of a kind from the vectors of its sources.
    """
    states = [state]
    for hop in hops:
        with hop.around():
            old = states[-1]
            received = [receive(a, hop.target, old[a.source]) for a in hop.aggregates]
            new = hop.update(old[hop.target], received, rows[hop.target])
            states.append({**old, hop.target: new})
    return states
