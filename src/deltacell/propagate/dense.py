"""The strategy `dense`: cut the deleted nodes out of the cell and propagate what is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from deltacell.propagate.hop import GENE, Aggregate, Hop, Readout, State
from deltacell.propagate.protocol import Deleted, Mutants, WildType

Living = Mapping[str, torch.Tensor]
"""The nodes that are left, by kind, ascending."""


@dataclass(frozen=True)
class Dense:
    """The definition, carried out to the letter: slow, large, and plainly right.

    For each mutant, matrices as rectangles of numbers without the rows and columns of its deleted
    nodes, message passing on them, and a pool over the genes that are left.
    """

    name = "dense"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        """Return what was given: there is nothing more to find out."""
        return deleted

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the whole cell."""
        living = {kind: torch.arange(len(x), device=x.device) for kind, x in state.items()}
        return WildType(tuple(_propagate(hops, state, living)))

    def mutants(
        self,
        hops: Sequence[Hop],
        wild_type: WildType,
        deleted: Deleted,
        readout: Readout,
        *,
        vectors: bool = False,
    ) -> Mutants:
        """Propagate each mutant as a smaller cell of its own."""
        genes = wild_type.last[GENE]
        whole = _pooled(readout, genes, torch.arange(len(genes), device=genes.device))
        z, per_gene = [whole.new_zeros(0, len(whole))], [genes.new_zeros(0, *genes.shape)]
        for b in range(len(deleted)):
            living = {}
            for kind, x in wild_type.first.items():
                kept = torch.ones(len(x), dtype=torch.bool, device=x.device)
                if (lost := deleted.nodes.get(kind)) is not None:
                    kept[lost.nodes[lost.owner == b]] = False
                living[kind] = kept.nonzero().squeeze(1)
            smaller = {kind: x[living[kind]] for kind, x in wild_type.first.items()}
            left = _propagate(hops, smaller, living)[-1][GENE]
            z.append((whole - _pooled(readout, left, living[GENE])).unsqueeze(0))
            per_gene.append(torch.zeros_like(genes).index_copy(0, living[GENE], left).unsqueeze(0))
        return Mutants(
            torch.cat(z).to(genes.dtype),
            whole.to(genes.dtype),
            torch.cat(per_gene) if vectors else None,
        )


def _propagate(hops: Sequence[Hop], state: State, living: Living) -> list[State]:
    states = [state]
    for hop in hops:
        old = states[-1]
        received = [_received(a, old[a.source], hop.target, living) for a in hop.aggregates]
        new = hop.update(
            old[hop.target].unsqueeze(1), torch.stack(received).unsqueeze(2), living[hop.target]
        )
        states.append({**old, hop.target: new.squeeze(1).to(old[hop.target].dtype)})
    return states


def _received(a: Aggregate, x: torch.Tensor, target: str, living: Living) -> torch.Tensor:
    rows, columns, values = a.matrix.entries(device=x.device, dtype=x.dtype)
    matrix, edges = x.new_zeros(2, *a.matrix.shape).unbind()
    matrix[rows, columns] = values
    edges[rows, columns] = 1
    matrix, edges = (m[living[target]][:, living[a.source]] for m in (matrix, edges))
    with torch.autocast(x.device.type, enabled=False):
        total = matrix @ x
    return total / edges.sum(1, keepdim=True).clamp(min=1) if a.mean else total


def _pooled(readout: Readout, vectors: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    gate, value = readout.terms(vectors, rows)
    return gate.double().softmax(0) @ value.double()
