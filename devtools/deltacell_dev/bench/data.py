"""Throughput of the loader, compared with two pipelines that build a record per genotype."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import DataLoader

from deltacell.base.arrays import offsets_of
from deltacell.bench.process import in_turns, random_genotypes
from deltacell.cell import Cell
from deltacell.screen import Loader, Screen


def run(quick: bool = False) -> dict[str, Any]:
    """Measure three ways of loading the same random triples.

    ``columnar`` is the `Loader`. The others use PyG's DataLoader: ``per_record`` builds a `Data`
    per genotype, with its deleted genes and its score, and ``lazy`` a `HeteroData`, with every edge
    of the cell and masks of the living ones, in as many worker processes as there are cores. They
    take turns; the median after the first counts.
    """
    cell = Cell.synthetic("demo" if quick else "yeast")
    screen = random_triples(cell, 5_000 if quick else 100_000)
    shuffled: Any = {"shuffle": True, "generator": torch.Generator().manual_seed(0)}
    in_workers: Any = {"num_workers": os.cpu_count() or 1, "persistent_workers": True}
    ways: dict[str, Iterable[Any]] = {
        "columnar": Loader(screen, batch_size=64, seed=0),
        "per_record": DataLoader(Records(screen), batch_size=64, **shuffled),
        "lazy": DataLoader(Mutants(cell, screen), batch_size=8, **shuffled, **in_workers),
    }
    repeats, seconds = (3, 0.1) if quick else (5, 1.0)
    rates = {name: partial(rate, batches, seconds) for name, batches in ways.items()}
    turns = in_turns(rates, repeats + 1)
    speed = {name: median(of_turns[1:]) for name, of_turns in turns.items()}
    rows = []
    for name, batches in ways.items():
        size = bytes_per_sample(next(iter(batches)))
        rows.append({"name": name, "samples_per_s": speed[name], "bytes_per_sample": size})
    ratios = {f"columnar_over_{k}": speed["columnar"] / speed[k] for k in ("per_record", "lazy")}
    return {"rows": rows, "ratios": ratios}


def random_triples(cell: Cell, n: int) -> Screen:
    """Return a screen of n random triples of genes with random scores."""
    score = np.random.default_rng(0).normal(scale=0.05, size=n).astype(np.float32)
    return Screen.build(cell.genes, random_genotypes(cell, n), score=score)


def bytes_per_sample(batch: Any) -> float:
    """Return the bytes of the arrays of a batch, per sample."""
    if not hasattr(batch, "stores"):
        return float(batch.nbytes / len(batch))
    values = [value for part in batch.stores for value in part.values()]
    held = sum(value.nbytes for value in values if isinstance(value, torch.Tensor))
    return float(held / batch.num_graphs)


def rate(batches: Iterable[Any], seconds: float) -> float:
    """Return samples per second over whole epochs of `Loader`, or over batches of a DataLoader.

    The time of a DataLoader begins with its first batch, because its workers start with an empty
    queue, and covers at least one batch per worker after that.
    """
    if isinstance(batches, Loader):
        return _rate_of_epochs(batches, seconds)
    at_least = 1 + getattr(batches, "num_workers", 0)
    begin = 0.0
    samples = 0
    n_batches = 0
    took = 0.0
    while took < seconds or n_batches < at_least:
        for batch in batches:
            if not begin:
                begin = time.perf_counter()
                continue
            samples += batch.num_graphs
            n_batches += 1
            took = time.perf_counter() - begin
            if took >= seconds and n_batches >= at_least:
                break
    return samples / took


def _rate_of_epochs(loader: Loader, seconds: float) -> float:
    """Return samples per second over whole epochs, because a `Loader` gathers many batches."""
    begin = time.perf_counter()
    samples = 0
    took = 0.0
    while took < seconds:
        samples += sum(len(batch) for batch in loader)
        took = time.perf_counter() - begin
    return samples / took


class Records(Dataset[Any]):
    """A record per genotype, turned into a `Data` on access, as in DANGO."""

    def __init__(self, screen: Screen) -> None:
        sets = [one.tolist() for one in screen.genotypes]
        self.records = list(zip(sets, screen.column("score").tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        deleted, score = self.records[index]
        # With one node per deleted gene, PyG's `batch` vector assigns genes to genotypes.
        return Data(deleted=torch.tensor(deleted), y=torch.tensor([score]), num_nodes=len(deleted))


class Mutants(Records):
    """A whole mutant per genotype: all edges of the cell, with masks of the living ones.

    An incidence index from every gene to the positions of its edges makes the mask of a relation,
    so that a mask costs the degrees of the deleted genes and not a look at every edge. The edges
    themselves are shared by all samples, and copied when a batch is collated.
    """

    def __init__(self, cell: Cell, screen: Screen) -> None:
        super().__init__(screen)
        self.n_genes = cell.n_genes
        self.edges = {
            name: torch.from_numpy(np.stack(relation.edges()[:2]))
            for name, relation in cell.relations.items()
        }
        self.incidence = {
            name: Incidence.of(edges, cell.n_genes) for name, edges in self.edges.items()
        }

    def __getitem__(self, index: int) -> Any:
        deleted, score = self.records[index]
        living = torch.ones(self.n_genes, dtype=torch.bool)
        living[deleted] = False
        parts: dict[Any, dict[str, Any]] = {}
        for name, edges in self.edges.items():
            mask = torch.ones(edges.shape[1], dtype=torch.bool)
            mask[self.incidence[name].positions_of(deleted)] = False
            parts["gene", name, "gene"] = {"edge_index": edges, "living": mask}
        gene = {"num_nodes": self.n_genes, "living": living, "y": torch.tensor([score])}
        return HeteroData({"gene": gene, **parts})


class Incidence(NamedTuple):
    """The positions of every gene's edges, one gene after the other."""

    positions: torch.Tensor
    offsets: list[int]

    @classmethod
    def of(cls, edges: torch.Tensor, n_genes: int) -> Incidence:
        """Sort the ends of edges [2, edges] by gene."""
        ends = edges.reshape(-1)
        offsets = offsets_of(torch.bincount(ends, minlength=n_genes).numpy())
        return cls(ends.argsort() % max(edges.shape[1], 1), offsets.tolist())

    def positions_of(self, genes: Sequence[int]) -> torch.Tensor:
        """Return the positions of the edges of some genes."""
        slices = [slice(self.offsets[gene], self.offsets[gene + 1]) for gene in genes]
        return torch.cat([self.positions[each] for each in slices])
