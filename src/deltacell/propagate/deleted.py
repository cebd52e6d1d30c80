"""The nodes that each genotype of a batch takes away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Self, cast

import torch

from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.propagate.hop import GENE, REACTION
from deltacell.screen import Genotypes


@dataclass(frozen=True, eq=False)
class DeletedNodes:
    """The deleted nodes of one kind, genotype after genotype.

    Parameters
    ----------
    nodes, owner
        The node, and the genotype that deletes it, int64 [total].
    starts
        Where each genotype begins, and the end; on the host, so that a tile is a slice.
    """

    nodes: torch.Tensor
    owner: torch.Tensor
    starts: tuple[int, ...]

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
    """The non-empty subsets of genotypes, each once.

    Parameters
    ----------
    deleted
        What they delete, prepared.
    subset, owner
        A subset, and a genotype that it is part of, int64 [m].
    sign
        -1 where the subset lacks an odd number of the genotype's genes, otherwise 1, float64 [m].
    """

    deleted: Deleted
    subset: torch.Tensor
    owner: torch.Tensor
    sign: torch.Tensor


@dataclass(frozen=True, eq=False)
class Deleted:
    """What a batch of genotypes deletes: its genes, and the reactions that are lost with them.

    Found on the host from gene lists, before the step and ahead of it if one likes; the step then
    never has to wait for a device.

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
        """Find what genotypes delete, or raise where they do not fit the cell.

        Parameters
        ----------
        cell
            The wild type.
        genotypes
            Sets of one gene or more; where they are on a device, this waits for it.
        metabolism
            Whether to find the reactions that are lost.
        """
        genotypes = genotypes.to("cpu").check(cell.n_genes)
        nodes = {GENE: DeletedNodes.of(genotypes.genes, genotypes.offsets)}
        if metabolism:
            if cell.metabolism is None:
                raise InputError("the cell has no metabolism to find lost reactions in")
            nodes[REACTION] = DeletedNodes.of(*cell.metabolism.lost_reactions(genotypes))
        return cls(genotypes, nodes)

    def __len__(self) -> int:
        return len(self.genotypes)

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

    A tensor that is there twice is mapped once.

    Parameters
    ----------
    value
        The tree.
    function
        What is done to each tensor.
    made
        The results so far, by the tensor's identity.
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
