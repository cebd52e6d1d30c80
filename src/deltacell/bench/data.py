"""How fast batches come: this loader beside two pipelines that build a record per genotype."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from deltacell.bench.process import in_turns, silent
from deltacell.cell import Cell
from deltacell.screen import Genotypes, Loader, Screen
from deltacell.words import Progress


def run(quick: bool = False, *, progress: Progress = silent) -> dict[str, Any]:
    """Measure three ways of loading the same random triples, side by side.

    ``columnar`` is the `Loader`. Through PyG's DataLoader, ``per_record`` makes a `Data` per
    genotype, with its deleted genes and its score, and ``lazy`` a `HeteroData`, with every edge of
    the cell and masks of what lives. They take turns, and the median after the first turn counts.
    """
    cell = Cell.synthetic("demo" if quick else "yeast")
    ways = pipelines(cell, random_triples(cell, 20_000 if quick else 100_000))
    repeats, seconds = (3, 0.3) if quick else (5, 1.0)
    rates = {name: partial(_rate, batches, seconds) for name, batches in ways.items()}
    speed = {
        name: median(of_turns[1:])
        for name, of_turns in in_turns(rates, repeats + 1, progress).items()
    }
    rows = []
    for name, batches in ways.items():
        size = bytes_per_sample(next(iter(batches)))
        rows.append({"name": name, "samples_per_s": speed[name], "bytes_per_sample": size})
    ratios = {f"columnar_over_{k}": speed["columnar"] / speed[k] for k in ("per_record", "lazy")}
    return {"rows": rows, "ratios": ratios}


def random_triples(cell: Cell, n: int, seed: int = 0) -> Screen:
    rng = np.random.default_rng(seed)
    drawn = rng.integers(cell.n_genes, size=(2 * n + 100, 3))
    a, b, c = drawn.T
    genes = drawn[(a != b) & (a != c) & (b != c)][:n].ravel()
    genotypes = Genotypes(torch.from_numpy(genes), torch.arange(0, 3 * n + 1, 3))
    score = rng.normal(scale=0.05, size=n).astype(np.float32)
    return Screen.build(cell.genes, genotypes, score=score)


def pipelines(cell: Cell, screen: Screen) -> dict[str, Iterable[Any]]:
    from torch_geometric.loader import DataLoader

    shuffled: Any = {"shuffle": True, "generator": torch.Generator().manual_seed(0)}
    return {
        "columnar": Loader(screen, batch_size=64, seed=0),
        "per_record": DataLoader(_Records(screen), batch_size=64, **shuffled),
        "lazy": DataLoader(_Mutants(cell, screen), batch_size=8, **shuffled),
    }


def bytes_per_sample(batch: Any) -> float:
    if not hasattr(batch, "stores"):
        return float(batch.nbytes / len(batch))
    values = [value for part in batch.stores for value in part.values()]
    held = sum(value.nbytes for value in values if isinstance(value, torch.Tensor))
    return float(held / batch.num_graphs)


def _rate(batches: Iterable[Any], seconds: float) -> float:
    """Return samples per second, over whole epochs of the loader, or at least one batch."""
    begin, samples = time.perf_counter(), 0
    while True:
        for batch in batches:
            samples += getattr(batch, "num_graphs", None) or len(batch)
            # The loader gathers a whole epoch at once, so a part of one would be too cheap.
            if not isinstance(batches, Loader) and time.perf_counter() >= begin + seconds:
                break
        if time.perf_counter() >= begin + seconds:
            return samples / (time.perf_counter() - begin)


class _Records(Dataset[Any]):
    """A record per genotype, made into a `Data` when asked for, as DANGO does."""

    def __init__(self, screen: Screen) -> None:
        sets = [one.tolist() for one in screen.genotypes]
        self.records = list(zip(sets, screen.column("score").tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        from torch_geometric.data import Data

        deleted, score = self.records[index]
        # With as many nodes as deleted genes, PyG's `batch` vector says whose each of them is.
        return Data(deleted=torch.tensor(deleted), y=torch.tensor([score]), num_nodes=len(deleted))


class _Mutants(_Records):
    """A whole mutant per genotype: all edges of the cell with masks of what lives."""

    def __init__(self, cell: Cell, screen: Screen) -> None:
        super().__init__(screen)
        self.n_genes = cell.n_genes
        self.edges = {
            name: torch.from_numpy(np.stack(relation.edges()[:2]))
            for name, relation in cell.relations.items()
        }

    def __getitem__(self, index: int) -> Any:
        from torch_geometric.data import HeteroData

        deleted, score = self.records[index]
        living = torch.ones(self.n_genes, dtype=torch.bool)
        living[deleted] = False
        parts: dict[Any, dict[str, Any]] = {
            ("gene", name, "gene"): {"edge_index": edges, "living": living[edges].all(0)}
            for name, edges in self.edges.items()
        }
        gene = {"num_nodes": self.n_genes, "living": living, "y": torch.tensor([score])}
        return HeteroData({"gene": gene, **parts})
