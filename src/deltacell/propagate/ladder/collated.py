"""Message passing on many mutants as one large graph, the way PyG collates a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from deltacell.propagate.deleted import Deleted
from deltacell.propagate.hop import ALL, GENE, Aggregate, Hop, Rows, State
from deltacell.propagate.pool import Readout, Terms, pool_difference, wild_pool
from deltacell.propagate.protocol import Mutants, WildType

Receive = Callable[[Aggregate, str, torch.Tensor], torch.Tensor]
"""From an aggregate, its kind of target and the sources' x [m, hidden] to what targets receive."""


def propagated(
    hops: Sequence[Hop], state: State, rows: Mapping[str, Rows], receive: Receive
) -> list[State]:
    """Return the vectors before each hop and after the last.

    Everything in between is kept for the backward, as a plain model does.

    Parameters
    ----------
    hops
        Message passing, in order.
    state
        The vectors of each kind of node, [m, hidden].
    rows
        Which nodes of the cell these are, by kind.
    receive
        How messages are added up.
    """
    states = [state]
    for hop in hops:
        with hop.around():
            old = states[-1]
            received = [receive(a, hop.target, old[a.source]) for a in hop.aggregates]
            new = hop.update(
                old[hop.target].unsqueeze(1), torch.stack(received).unsqueeze(2), rows[hop.target]
            )
            states.append({**old, hop.target: new.squeeze(1).to(old[hop.target].dtype)})
    return states


def wild_type_of(hops: Sequence[Hop], state: State, receive: Receive) -> WildType:
    """Propagate the wild type by the given way of adding up messages."""
    return WildType(tuple(propagated(hops, state, dict.fromkeys(state, ALL), receive)))


def mutants_of(
    hops: Sequence[Hop],
    wild_type: WildType,
    deleted: Deleted,
    readout: Readout,
    receive: Receive,
    *,
    vectors: bool,
) -> Mutants:
    """Propagate and read out whole mutants, one after the other along the rows.

    Node i of mutant b is row ``b * n + i``. Deleted nodes are there too; no message may reach or
    leave them, and nothing reads them.

    Parameters
    ----------
    hops, wild_type, deleted, readout, vectors
        As in `Propagation.mutants`.
    receive
        How messages are added up.
    """
    batch, first = len(deleted), wild_type.first
    rows = {k: torch.arange(len(x), device=x.device).repeat(batch) for k, x in first.items()}
    state = {kind: x.repeat(batch, 1) for kind, x in first.items()}
    genes = propagated(hops, state, rows, receive)[-1][GENE]
    return read_out(genes, rows[GENE], wild_type, deleted, readout, vectors=vectors)


def read_out(
    vectors_of_rows: torch.Tensor,
    rows: torch.Tensor,
    wild_type: WildType,
    deleted: Deleted,
    readout: Readout,
    *,
    vectors: bool,
    owner: torch.Tensor | None = None,
) -> Mutants:
    """Pool mutants and take them from the pooled wild type.

    Parameters
    ----------
    vectors_of_rows
        Of the genes of all mutants, [m, hidden].
    rows
        Which gene each is, [m].
    wild_type, deleted, readout, vectors
        As in `Propagation.mutants`.
    owner
        Whose gene each is, [m]; where not given, all genes of one mutant after the other.
    """
    batch, wild = len(deleted), wild_type.last[GENE]
    n_genes, lost = len(wild), deleted.nodes[GENE]
    living = torch.ones(batch, n_genes, dtype=torch.bool, device=wild.device)
    living[lost.owner, lost.nodes] = False

    def spread(x: torch.Tensor) -> torch.Tensor:
        if owner is None:
            return x.reshape(batch, n_genes, *x.shape[1:])
        empty = x.new_zeros(batch, n_genes, *x.shape[1:])
        return empty.index_put((owner, rows), x)

    pool = wild_pool(readout.terms(wild, ALL))
    gate, value = readout.terms(vectors_of_rows, rows)
    terms = Terms(spread(gate).transpose(0, 1), spread(value).transpose(0, 1))
    return Mutants(
        pool_difference(pool, terms, living.t()),
        pool.pooled,
        spread(vectors_of_rows).masked_fill(~living.unsqueeze(2), 0) if vectors else None,
    )
