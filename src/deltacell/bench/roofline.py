"""The least time that a mutant could take at the speeds this machine reaches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from deltacell.cell import Cell
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate.hop import ALL, sizes_of

GEMM_SIZE = 1024


def roofline(model: HeteroCell, cell: Cell, *, repeats: int = 5) -> dict[str, Any]:
    """Return the least time a whole mutant takes forward and backward, and what it is made of.

    ``s_per_genotype = flop / gemm_flop_per_s + entries * hidden / csr_entries_hidden_per_s``. The
    FLOP are those of the row-wise parts; the entries are those of all products, in both directions.
    The rates are the best of some tries here and now: a square product of dense matrices, and the
    product of the cell's largest relation with one mutant's vectors.
    """
    matrices = [a.matrix for hop in model.hops(cell) for a in hop.aggregates]
    hidden = model.encoder.embedding.shape[1]
    flop, entries = _row_wise_flop(model, cell), 2 * sum(m.n_entries for m in matrices)
    largest = max(matrices, key=lambda m: m.n_entries)
    csr, x = largest.csr(device="cpu", dtype=torch.float32), torch.randn(largest.shape[1], hidden)
    a, b = torch.randn(2, GEMM_SIZE, GEMM_SIZE).unbind()
    gemm_rate = 2 * GEMM_SIZE**3 / _least_time(lambda: a @ b, repeats)
    csr_rate = max(largest.n_entries, 1) * hidden / _least_time(lambda: csr @ x, repeats)
    return {
        "s_per_genotype": flop / gemm_rate + entries * hidden / csr_rate,
        "flop": flop,
        "gemm_flop_per_s": gemm_rate,
        "entries": entries,
        "hidden": hidden,
        "csr_entries_hidden_per_s": csr_rate,
    }


def _row_wise_flop(model: HeteroCell, cell: Cell) -> int:
    """Count the FLOP of all updates and of the readout, forward and backward."""
    embedding, hops = model.encoder.embedding, model.hops(cell)
    sizes = sizes_of(hops)
    with FlopCounterMode(display=False) as counter:
        for hop in hops:
            shape = sizes[hop.target], 1, embedding.shape[1]
            vectors = embedding.new_zeros(shape, requires_grad=True)
            received = embedding.new_zeros(len(hop.aggregates), *shape, requires_grad=True)
            torch.autograd.backward(hop.update(vectors, received, ALL).sum())
        gate, value = model.pooling.terms(torch.zeros_like(embedding, requires_grad=True), ALL)
        torch.autograd.backward(gate.sum() + value.sum())
    model.zero_grad()
    return int(counter.get_total_flops())


def _least_time(work: Callable[[], object], repeats: int) -> float:
    work()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
