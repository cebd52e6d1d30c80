"""What every way of propagating mutants has in common: what goes in, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Protocol, Self, cast

import torch

from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.propagate.hop import GENE, REACTION, Hop, Readout, State
from deltacell.screen import Genotypes


@dataclass(frozen=True, eq=False)
class DeletedNodes:
    """The deleted nodes of one kind, genotype after genotype."""

    nodes: torch.Tensor  # int64 [total]
    owner: torch.Tensor  # the genotype that deletes each, int64 [total]
    starts: tuple[int, ...]  # where each genotype begins, and the end; on the host

    @classmethod
    def of(cls, nodes: torch.Tensor, offsets: torch.Tensor) -> DeletedNodes:
        """Make them from a ragged pair on the host."""
        owner = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())
        return cls(nodes, owner, tuple(offsets.tolist()))

    def tile(self, begin: int, end: int) -> DeletedNodes:
        """Return those of genotypes ``begin`` to ``end``, the first of which becomes 0."""
        first, last = self.starts[begin], self.starts[end]
        starts = tuple(s - first for s in self.starts[begin : end + 1])
        return DeletedNodes(self.nodes[first:last], self.owner[first:last] - begin, starts)


@dataclass(frozen=True, eq=False)
class Smaller:
    """The non-empty subsets of genotypes, each once."""

    deleted: Deleted  # what they delete, prepared
    subset: torch.Tensor  # a subset, and in `owner` a genotype that it is part of, int64 [m]
    owner: torch.Tensor
    sign: torch.Tensor  # -1 where the subset lacks an odd number of genes, float64 [m]


@dataclass(frozen=True, eq=False)
class Deleted:
    """What a batch of genotypes deletes: its genes, and the reactions that are lost with them.

    Found on the host from gene lists, ahead of the step if one likes; the step then never has to
    wait for a device.

    Parameters
    ----------
    genotypes
        The batch, checked.
    nodes
        The deleted nodes, by kind. A kind that is absent is never deleted.
    epistasis
        Whether the part of z that no smaller set explains is wanted too.
    together
        The reactions that each genotype loses and no smaller set does, where they are wanted.
    smaller
        All subsets of the genotypes, where `epistasis` is found by taking their z from each other.
    """

    genotypes: Genotypes
    nodes: Mapping[str, DeletedNodes]
    epistasis: bool = field(default=False, kw_only=True)
    together: DeletedNodes | None = field(default=None, kw_only=True)
    smaller: Smaller | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, cell: Cell, genotypes: Genotypes, *, metabolism: bool = False) -> Deleted:
        """Find what genotypes delete, with the lost reactions where `metabolism` is true.

        Waits for the device where the genotypes are on one.
        """
        genotypes = genotypes.to("cpu").check(cell.n_genes)
        nodes = {GENE: DeletedNodes.of(genotypes.genes, genotypes.offsets)}
        if metabolism:
            if cell.metabolism is None:
                raise InputError("the cell has no metabolism", code="no-metabolism")
            nodes[REACTION] = DeletedNodes.of(*cell.metabolism.lost_reactions(genotypes))
        return cls(genotypes, nodes)

    def __len__(self) -> int:
        return len(self.genotypes)

    @property
    def loader_bytes_per_genotype(self) -> float:
        """What a loader sends for a genotype: its genes, unless the strategy sends more."""
        return self.genotypes.nbytes / max(len(self), 1)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Return the same with its tensors on a device."""
        return cast(Self, mapped(self, lambda x: x.to(device, non_blocking=non_blocking)))

    def pin_memory(self) -> Self:
        """Return a copy in pinned memory, for transfers that do not block."""
        return cast(Self, mapped(self, torch.Tensor.pin_memory))


def mapped(
    value: Any, function: Callable[[torch.Tensor], torch.Tensor], made: dict[int, Any] | None = None
) -> Any:
    """Return a tree of dataclasses, tuples and mappings with a function of each tensor.

    A tensor that is there twice is mapped once, and kept in `made` by its identity.
    """
    made = {} if made is None else made
    if isinstance(value, torch.Tensor):
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
    if hasattr(value, "pin_memory"):
        # A graph of PyG, which moves in place, and this one is not ours to move.
        return copy(value).apply(function)
    return value


@dataclass(frozen=True, eq=False)
class WildType:
    """The wild type's vectors, computed once per step and used by all that reads them."""

    states: tuple[State, ...]  # before each hop, and after the last
    # Where the strategy reads them: for each hop, what was received over each aggregate before a
    # mean divides, and its messages where it has any, [n, hidden] each.
    sums: tuple[tuple[torch.Tensor, ...], ...] = ()
    messages: tuple[tuple[torch.Tensor, ...], ...] = ()

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
        return WildType(self.states[hops:], self.sums[hops:], self.messages[hops:])


@dataclass(frozen=True, eq=False)
class Mutants:
    """What was found of b mutants."""

    z: torch.Tensor  # the pooled wild type less the pooled mutant, [b, hidden]
    pooled: torch.Tensor  # the pooled wild type, [hidden]
    vectors: torch.Tensor | None = None  # [b, n, hidden] if asked for, 0 where a gene is deleted
    # The part of z that no smaller set explains, float64 [b, hidden], 0 for a single deletion;
    # where it was asked for and the strategy finds it by itself.
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

        Nothing is computed with the hops. Returns what was given, on the host, with whatever else
        the strategy found out.
        """

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the wild type from the vectors of each kind of node, [n, hidden]."""

    def mutants(
        self,
        hops: Sequence[Hop],
        wild_type: WildType,
        deleted: Deleted,
        readout: Readout,
        *,
        vectors: bool = False,
    ) -> Mutants:
        """Propagate the mutants and read them out."""
