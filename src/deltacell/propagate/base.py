"""What every strategy has in common: what goes in, what comes out, and how it begins."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, NamedTuple, Self, cast

import torch
from torch import Tensor

from deltacell.cell import Cell
from deltacell.propagate.hop import ALL, GENE, REACTION, Aggregate, Hop, State
from deltacell.propagate.pool import WildPool, wild_pool
from deltacell.screen import Genotypes


@dataclass(frozen=True, eq=False)
class DeletedNodes:
    """The deleted nodes of one kind, genotype after genotype."""

    nodes: Tensor  # int64 [total]
    owner: Tensor  # the genotype that deletes each, ascending, int64 [total]

    @classmethod
    def of(cls, nodes: Tensor, offsets: Tensor) -> DeletedNodes:
        owner = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())
        return cls(nodes, owner)


@dataclass(frozen=True, eq=False)
class Deleted:
    """What a batch of genotypes deletes: its genes, and the reactions that are lost with them.

    Found on the host from gene lists, so that the step never has to wait for a device.
    """

    genotypes: Genotypes  # as they were given, checked
    nodes: Mapping[str, DeletedNodes]  # by kind; a kind that is absent is never deleted
    plan: Any = None  # what the strategy has to know of it
    sent: int = 0  # bytes of the plan that a loader sends
    epistasis: bool = False  # whether the part of z that no smaller set explains is wanted too
    # The reactions that each genotype loses and no smaller set does, where they are wanted.
    together: DeletedNodes | None = None
    made_for: object = None  # the model, the cell and the strategy that it was prepared for

    @classmethod
    def of(
        cls, cell: Cell, genotypes: Genotypes, *, metabolism: bool = False, instead: Any = None
    ) -> Deleted:
        """Find what genotypes delete, with the lost reactions where `metabolism` is true.

        With `instead`, a tensor [n_genes], they delete other genes than those named.
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
        """The genes that are deleted."""
        return Genotypes(self.nodes[GENE].nodes, self.genotypes.offsets)

    def __len__(self) -> int:
        return len(self.genotypes)

    @property
    def loader_bytes_per_genotype(self) -> float:
        return (self.genotypes.nbytes + self.sent) / max(len(self), 1)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        return cast(Self, mapped(self, lambda x: x.to(device, non_blocking=non_blocking), {}))


def mapped(value: Any, function: Callable[[Tensor], Tensor], made: dict[int, Any]) -> Any:
    """Return a tree of dataclasses, tuples and mappings with a function of each tensor.

    A tensor that is there twice is mapped once, and kept in `made` by its identity.
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
    """The wild type's vectors, computed once per step and used by all that reads them."""

    states: tuple[State, ...]  # before each hop, and after the last
    # Where the strategy reads them, for each message of each hop: what was received over each of
    # its aggregates before a mean divides, and the message, [n, hidden] each.
    sums: tuple[tuple[tuple[Tensor, ...], ...], ...] = ()
    messages: tuple[tuple[Tensor, ...], ...] = ()

    @property
    def first(self) -> State:
        return self.states[0]

    @property
    def last(self) -> State:
        return self.states[-1]

    def after(self, hops: int) -> WildType:
        """Return what is left without the first hops, for mutants that they do not see."""
        return WildType(self.states[hops:], self.sums[hops:], self.messages[hops:])


@dataclass(frozen=True, eq=False)
class Mutants:
    """What was found of b mutants."""

    z: Tensor  # the pooled wild type less the pooled mutant, [b, hidden]
    pooled: Tensor  # the pooled wild type, [hidden]
    # The part of z that no smaller set explains, float64 [b, hidden], 0 for a single deletion;
    # where it was asked for and the strategy forms it.
    epistasis: Tensor | None = None


class Batch(NamedTuple):
    """Mutants to propagate."""

    hops: Sequence[Hop]
    wild_type: WildType
    deleted: Deleted  # with the plan of the strategy
    readout: Any  # the terms of genes, row by row: `deltacell.models.hetero_cell.Pooling`
    pool: WildPool


class Propagation:
    """A strategy: how message passing is carried out on many mutants of one cell.

    Strategies differ in time and memory only. Each equals, to rounding, deleting the nodes and all
    that touches them from the cell before the first of the given hops and propagating what is left,
    in results and gradients.
    """

    name: ClassVar[str]  # in configurations

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        """Return a batch on the host with what else the strategy has to find out about it."""
        return deleted

    @abstractmethod
    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the wild type from the vectors of each kind of node, [n, hidden]."""

    def mutants(
        self, hops: Sequence[Hop], wild_type: WildType, deleted: Deleted, readout: Any
    ) -> Mutants:
        """Propagate the mutants of a prepared batch and read them out, see `Batch`."""
        pool = wild_pool(readout.terms(wild_type.last[GENE], ALL))
        if not len(deleted):
            z = pool.value[:0]
            return Mutants(z, pool.pooled, z.double())
        return self._mutants(Batch(hops, wild_type, deleted, readout, pool))

    def _mutants(self, batch: Batch) -> Mutants:
        """Propagate the mutants, of which there is at least one, and read them out."""
        raise NotImplementedError


def propagate(
    hops: Sequence[Hop],
    state: State,
    rows: Mapping[str, Any],
    receive: Callable[[Aggregate, str, Tensor], Tensor],
) -> list[State]:
    """Return the vectors [m, hidden] before each hop and after the last, plainly.

    `rows` says which nodes of the cell they are, by kind; `receive` finds what the nodes of a kind
    receive over an aggregate from the vectors of its sources.
    """
    states = [state]
    for hop in hops:
        with hop.around():
            old = states[-1]
            received = [receive(a, hop.target, old[a.source]) for a in hop.aggregates]
            new = hop.update(old[hop.target], received, rows[hop.target])
            states.append({**old, hop.target: new})
    return states
