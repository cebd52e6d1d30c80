"""The least time that a mutant could take at the speeds this machine reaches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from deltacell.cell import Cell
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import GENE, METABOLITE, REACTION, SparseMatrix
from deltacell.propagate.hop import ALL

GEMM_SIZE = 1024


def roofline(model: HeteroCell, cell: Cell, *, repeats: int = 5) -> dict[str, Any]:
    """Return the least time a whole mutant takes forward and backward, and what it is made of.

    ``s_per_genotype = flop / gemm_flop_per_s + entries * hidden / csr_entries_hidden_per_s``. The
    FLOP are those of the row-wise parts; the entries are those of all products, in both directions.
    The rates are the best of some tries here and now: a square product of dense matrices, and the
    product of the cell's largest relation with one mutant's vectors.

    Parameters
    ----------
    model, cell
        What is propagated.
    repeats
        Tries of each rate.
    """
    hops = model.hops(cell)
    hidden = model.encoder.embedding.shape[1]
    flop = _row_wise_flop(model, cell)
    entries = 2 * sum(a.matrix.n_entries for hop in hops for a in hop.aggregates)
    largest = max((a.matrix for hop in hops for a in hop.aggregates), key=lambda m: m.n_entries)
    gemm, csr = _gemm_rate(repeats), _csr_rate(largest, hidden, repeats)
    return {
        "s_per_genotype": flop / gemm + entries * hidden / csr,
        "flop": flop,
        "gemm_flop_per_s": gemm,
        "entries": entries,
        "hidden": hidden,
        "csr_entries_hidden_per_s": csr,
    }


def _row_wise_flop(model: HeteroCell, cell: Cell) -> int:
    """Count the FLOP of all updates and of the readout, forward and backward."""
    counts = {GENE: cell.n_genes}
    if cell.metabolism is not None:
        counts |= {REACTION: cell.metabolism.n_reactions, METABOLITE: cell.metabolism.n_metabolites}
    embedding = model.encoder.embedding
    with FlopCounterMode(display=False) as counter:
        for hop in model.hops(cell):
            shape = counts[hop.target], 1, embedding.shape[1]
            vectors = embedding.new_zeros(shape, requires_grad=True)
            received = embedding.new_zeros(len(hop.aggregates), *shape, requires_grad=True)
            torch.autograd.backward(hop.update(vectors, received, ALL).sum())
        genes = torch.zeros_like(embedding, requires_grad=True)
        gate, value = model.pooling.terms(genes, ALL)
        torch.autograd.backward(gate.sum() + value.sum())
    model.zero_grad()
    return int(counter.get_total_flops())


def _gemm_rate(repeats: int) -> float:
    a, b = torch.randn(2, GEMM_SIZE, GEMM_SIZE).unbind()
    return 2 * GEMM_SIZE**3 / _least_time(lambda: a @ b, repeats)


def _csr_rate(matrix: SparseMatrix, hidden: int, repeats: int) -> float:
    csr = matrix.csr(device="cpu", dtype=torch.float32)
    x = torch.randn(matrix.shape[1], hidden)
    return max(matrix.n_entries, 1) * hidden / _least_time(lambda: csr @ x, repeats)


def _least_time(work: Callable[[], object], repeats: int) -> float:
    work()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
