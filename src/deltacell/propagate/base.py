"""The interface of all strategies: their inputs, their results, and the base class."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, NamedTuple, Self, cast

import torch
from torch import Tensor

from deltacell.cell import Cell
from deltacell.profile.record import Messages
from deltacell.propagate.hop import GENE, REACTION, Aggregate, Hop, State
from deltacell.propagate.pool import WildPool, wild_pool
from deltacell.propagate.workers import ALL
from deltacell.screen import Genotypes


@dataclass(frozen=True, eq=False)
class DeletedNodes:
    """The deleted nodes of one kind, in the order of the genotypes."""

    nodes: Tensor  # int64 [total]
    owner: Tensor  # the genotype that deletes each node, ascending, int64 [total]

    @classmethod
    def of(cls, nodes: Tensor, offsets: Tensor) -> DeletedNodes:
        owner = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())
        return cls(nodes, owner)


@dataclass(frozen=True, eq=False)
class Deleted:
    """The genes that a batch of genotypes deletes, and the reactions that are lost with them.

    It is made on the host from gene lists, so that the step never has to wait for a device.
    """

    genotypes: Genotypes  # as given, after a check
    nodes: Mapping[str, DeletedNodes]  # by kind; kinds without deleted nodes may be absent
    plan: Any = None  # prepared by the strategy
    sent: int = 0  # bytes of the plan that a loader sends
    epistasis: bool = False  # whether to compute the part of z that no smaller set explains
    together: DeletedNodes | None = None  # the reactions that no smaller set loses, on request
    made_for: object = None  # the model, the cell and the strategy that it was prepared for

    @classmethod
    def of(
        cls,
        cell: Cell,
        genotypes: Genotypes,
        *,
        metabolism: bool = False,
        instead: Any = None,
    ) -> Deleted:
        """Return the deleted genes and, if `metabolism` is true, the lost reactions.

        With `instead`, a tensor [n_genes], a genotype with gene i deletes gene `instead[i]`.
        """
        genotypes = genotypes.to("cpu").check(cell.n_genes)
        genes = genotypes.genes if instead is None else instead[genotypes.genes]
        nodes = {GENE: DeletedNodes.of(genes, genotypes.offsets)}
        if metabolism and cell.metabolism is not None:
            lost = cell.metabolism.lost_reactions(Genotypes(genes, genotypes.offsets))
            nodes[REACTION] = DeletedNodes.of(*lost)
        return cls(genotypes, nodes)

    @property
    def lost(self) -> Genotypes:
        """The deleted genes of each genotype."""
        return Genotypes(self.nodes[GENE].nodes, self.genotypes.offsets)

    def __len__(self) -> int:
        return len(self.genotypes)

    @property
    def loader_bytes_per_genotype(self) -> float:
        return (self.genotypes.nbytes + self.sent) / max(len(self), 1)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        return cast(Self, mapped(self, lambda x: x.to(device, non_blocking=non_blocking), {}))


def mapped(value: Any, function: Callable[[Tensor], Tensor], made: dict[int, Any]) -> Any:
    """Apply a function to each tensor in a tree of dataclasses, tuples and mappings.

    A tensor that occurs twice is mapped once; `made` holds the results by identity.
    """
    if isinstance(value, Tensor):
        if id(value) not in made:
            made[id(value)] = function(value)
        return made[id(value)]
    if isinstance(value, tuple):
        return tuple(mapped(v, function, made) for v in value)
    if isinstance(value, Mapping):
        return {k: mapped(v, function, made) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: mapped(getattr(value, f.name), function, made) for f in fields(value)}
        return type(value)(**parts)
    return value


@dataclass(frozen=True, eq=False)
class WildType:
    """The wild type's vectors, computed once per step."""

    states: tuple[State, ...]  # before each hop, and after the last
    # For strategies that read them, for each message of each hop: the sum over the neighbours for
    # each of its aggregates, and the message, [n, hidden] each.
    sums: tuple[tuple[tuple[Tensor, ...], ...], ...] = ()
    messages: tuple[tuple[Tensor, ...], ...] = ()

    @property
    def last(self) -> State:
        return self.states[-1]

    def after(self, hops: int) -> WildType:
        """Return the wild type without the first hops, in which the mutants do not differ."""
        return WildType(self.states[hops:], self.sums[hops:], self.messages[hops:])


@dataclass(frozen=True, eq=False)
class Mutants:
    """The results for b mutants."""

    z: Tensor  # the pooled wild type minus the pooled mutant, [b, hidden]
    pooled: Tensor  # the pooled wild type, [hidden]
    # The part of z that no smaller set explains, float64 [b, hidden], 0 for a single deletion; only
    # on request, and only from strategies that compute it.
    epistasis: Tensor | None = None


class Batch(NamedTuple):
    """The mutants to propagate."""

    hops: Sequence[Hop]
    wild_type: WildType
    deleted: Deleted  # with the plan of the strategy
    readout: Any  # `deltacell.models.hetero_cell.model.Pooling`, which works row by row
    pool: WildPool


class Propagation:
    """A strategy: how message passing is carried out on many mutants of one cell.

    Strategies differ in time and memory only. Up to rounding, results and gradients equal those of
    deleting the nodes and their edges from the cell and propagating over the given hops.
    """

    name: ClassVar[str]  # in configurations
    passes: ClassVar[Messages]  # on what messages are passed

    def messages(self) -> Messages | None:
        """Return on what messages are passed; None if this is not known yet."""
        return self.passes

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        """Return a batch on the host with the plan of the strategy."""
        return deleted

    @abstractmethod
    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the wild type from the vectors of each kind of node, [n, hidden]."""

    def mutants(
        self,
        hops: Sequence[Hop],
        wild_type: WildType,
        deleted: Deleted,
        readout: Any,
    ) -> Mutants:
        """Propagate the mutants of a prepared batch and read them out, see `Batch`."""
        pool = wild_pool(readout.terms(wild_type.last[GENE], ALL))
        if not len(deleted):
            z = pool.value[:0]
            return Mutants(z, pool.pooled, z.double())
        return self._mutants(Batch(hops, wild_type, deleted, readout, pool))

    def _mutants(self, batch: Batch) -> Mutants:
        """Propagate at least one mutant and read it out."""
        raise NotImplementedError


def propagate(
    hops: Sequence[Hop],
    state: State,
    rows: Mapping[str, Any],
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
