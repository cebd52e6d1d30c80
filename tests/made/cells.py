"""Random cells, sets of genes and screens, and the memory that a step takes."""

import numpy as np
import polars as pl
import torch

from deltacell.bench.process import PeakMemory
from deltacell.cell import Cell, Relation
from deltacell.models.hetero_cell.model import HeteroCell
from deltacell.propagate import Delta
from deltacell.propagate.product import product
from deltacell.screen import Coverage, Genotypes, Screen


def random_cell(n_genes, edges, *, directed=(), weighted=False, seed=0, **more):
    """Return a cell with so many edges drawn for each relation; its genes are not in order."""
    rng, relations = np.random.default_rng(seed), []
    for name, n in edges.items():
        ends = rng.integers(0, n_genes, (2, n))
        weights = rng.uniform(-1, 1, n) if weighted else None
        options = {"n_genes": n_genes, "directed": name in directed}
        relations.append(Relation.from_edges(name, *ends, weights, **options))
    return Cell([f"G{i:04}" for i in rng.permutation(n_genes)], relations, **more)


def random_sets(n_genes, n, sizes=(1, 2, 3, 4), seed=0):
    """Return sets of genes, which may repeat."""
    rng = np.random.default_rng(seed)
    return [rng.choice(n_genes, rng.choice(sizes), replace=False).tolist() for _ in range(n)]


def measured_step(max_bytes, n_genes=2_500):
    """Return the peak memory of a step of `Delta` with a bound, in MiB."""
    torch.set_num_threads(2)
    cell = random_cell(n_genes, dict.fromkeys("abcdef", 4 * n_genes))
    way = Delta(max_bytes=max_bytes)
    model = HeteroCell(cell, hidden=64, layers=3, output="global", propagation=way)
    for aggregate in model.hops(cell)[0].aggregates:
        # What is made or loaded at the first product does not count.
        product(aggregate.matrix, torch.zeros(n_genes, 1))
    prepared = model.prepare(cell, Genotypes.of(random_sets(n_genes, 8, sizes=(3,))))
    peak = PeakMemory()
    model(cell, prepared).score.sum().backward()
    return {"mib": peak.mib()}


def screen_of(genes, sets, score, role, study, *, complete):
    """Return a screen whose coverage is that of its rows: all that was crossed, or its hits."""
    genotypes = Genotypes.of(sets)
    rows = genotypes.genes.numpy(), genotypes.offsets.numpy(), pl.Series(role), pl.Series(study)
    columns = {"score": score, "role": role, "study": study}
    coverage = Coverage.from_rows(*rows, complete=complete)
    return Screen.build(genes, genotypes, coverage=coverage, **columns)
