"""How fast batches come: this loader beside two pipelines that build a record per genotype."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from deltacell.bench.process import machine
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.screen import Genotypes, Loader, Screen
from deltacell.words import Progress

#: How many times faster than each of the others the columnar loader has to be.
BARS = {"columnar_over_per_record": 100.0, "columnar_over_lazy": 10_000.0}


def run(
    n_genotypes: int = 100_000,
    batch_size: int = 64,
    cell: Cell | None = None,
    *,
    repeats: int = 5,
    seconds: float = 1.0,
    lazy_batch_size: int = 8,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure three ways of loading the same genotypes, side by side.

    ``columnar`` is the `Loader`. ``per_record`` makes one PyG `Data` per genotype, with its deleted
    genes and its score. ``lazy`` makes one PyG `HeteroData` per genotype, with every edge of the
    cell and masks of what lives in the mutant. Both go through PyG's DataLoader in this process.
    The three take turns, and the median over the turns counts.
    """
    if repeats < 1 or seconds < 0 or lazy_batch_size < 1:
        raise InputError(
            f"repeats {repeats}, seconds {seconds}, lazy_batch_size {lazy_batch_size}: "
            "expected at least 1, 0 and 1",
            code="out-of-range",
        )
    report = progress or (lambda what, done, total: None)
    total = 2 + 3 * (repeats + 1)
    report("making the cell", 0, total)
    cell = Cell.synthetic("yeast", seed=seed) if cell is None else cell
    report("making the genotypes", 1, total)
    screen = random_triples(cell, n_genotypes, seed)
    pipelines = _pipelines(cell, screen, batch_size, lazy_batch_size, seed)
    rates: dict[str, list[float]] = {p.name: [] for p in pipelines}
    turns = [(turn, pipeline) for turn in range(repeats + 1) for pipeline in pipelines]
    for done, (turn, pipeline) in enumerate(turns, 2):
        report(f"{'timing' if turn else 'warming up'} {pipeline.name}", done, total)
        rate = pipeline.rate(seconds if turn else 0.0)
        rates[pipeline.name] += [rate] if turn else []
    report("done", total, total)
    speed = {name: statistics.median(of_turns) for name, of_turns in rates.items()}
    ratios = {
        f"columnar_over_{name}": speed["columnar"] / speed[name] for name in ("per_record", "lazy")
    }
    return {
        "benchmark": "data",
        "command": "deltacell bench data",
        "rows": [
            {
                "name": p.name,
                "samples_per_s": speed[p.name],
                "bytes_per_sample": p.bytes_per_sample,
                "batch_size": p.batch_size,
                "samples_per_s_of_each_turn": rates[p.name],
            }
            for p in pipelines
        ],
        "ratios": ratios,
        "bars": {
            name: {"at_least": bar, "measured": ratios[name], "met": ratios[name] >= bar}
            for name, bar in BARS.items()
        },
        "settings": {
            "genotypes": n_genotypes,
            "genes_per_genotype": 3,
            "genes": cell.n_genes,
            "edges": sum(r.n_edges for r in cell.relations.values()),
            "repeats": repeats,
            "seconds": seconds,
            "seed": seed,
        },
        "machine": {**machine(), **_versions()},
    }


def random_triples(cell: Cell, n: int, seed: int = 0) -> Screen:
    """Return a screen of `n` random triples of different genes with random scores."""
    if cell.n_genes < 3:
        what = f"the cell has {cell.n_genes} genes, too few for a triple"
        raise InputError(what, code="too-few-genes")
    rng = np.random.default_rng(seed)
    # Distinct by construction: each gene is drawn among those still left, then shifted past them.
    first = rng.integers(cell.n_genes, size=n)
    second = rng.integers(cell.n_genes - 1, size=n)
    second += second >= first
    third = rng.integers(cell.n_genes - 2, size=n)
    third += third >= np.minimum(first, second)
    third += third >= np.maximum(first, second)
    genes = np.stack([first, second, third], axis=1).ravel()
    genotypes = Genotypes(torch.from_numpy(genes), torch.arange(0, 3 * n + 1, 3))
    score = rng.normal(scale=0.05, size=n).astype(np.float32)
    return Screen.build(cell.genes, genotypes, score=score)


class _Pipeline(NamedTuple):
    """One way of loading: how to begin an epoch, and how many genotypes a batch of it has."""

    name: str
    batch_size: int
    bytes_per_sample: float
    epoch: Callable[[], Iterable[Any]]
    size: Callable[[Any], int]
    whole_epochs: bool

    def rate(self, seconds: float) -> float:
        """Return samples per second, over at least one epoch or one batch."""
        begin = time.perf_counter()
        samples = 0
        while True:
            for batch in self.epoch():
                samples += self.size(batch)
                if not self.whole_epochs and time.perf_counter() >= begin + seconds:
                    break
            if time.perf_counter() >= begin + seconds:
                return samples / (time.perf_counter() - begin)


class _Records(Dataset[Any]):
    """A record per genotype, made into a `Data` when asked for, as DANGO does."""

    def __init__(self, screen: Screen) -> None:
        deleted, ends = screen.genotypes.genes.tolist(), screen.offsets.tolist()
        sets = [deleted[a:b] for a, b in pairwise(ends)]
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
        data = HeteroData()
        data["gene"].num_nodes = self.n_genes
        data["gene"].living = living
        data["gene"].y = torch.tensor([score])
        for name, edge_index in self.edges.items():
            relation = data["gene", name, "gene"]
            relation.edge_index = edge_index
            relation.living = living[edge_index[0]] & living[edge_index[1]]
        return data


def _pipelines(
    cell: Cell, screen: Screen, batch_size: int, lazy_batch_size: int, seed: int
) -> list[_Pipeline]:
    from torch_geometric.loader import DataLoader

    columnar = Loader(screen, batch_size=batch_size, seed=seed)
    first = next(iter(columnar))
    bytes_each = first.nbytes / len(first)
    pipelines = [
        _Pipeline("columnar", batch_size, bytes_each, columnar.__iter__, len, whole_epochs=True)
    ]
    generator = torch.Generator().manual_seed(seed)
    for name, records, size in (
        ("per_record", _Records(screen), batch_size),
        ("lazy", _Mutants(cell, screen), lazy_batch_size),
    ):
        loader = DataLoader(records, batch_size=size, shuffle=True, generator=generator)
        batch = next(iter(loader))
        values = [value for part in batch.stores for value in part.values()]
        held = sum(value.nbytes for value in values if isinstance(value, torch.Tensor))
        each = held / batch.num_graphs
        pipelines.append(_Pipeline(name, size, each, loader.__iter__, _n_graphs, False))
    return pipelines


def _n_graphs(batch: Any) -> int:
    return int(batch.num_graphs)


def _versions() -> dict[str, str]:
    import torch_geometric

    return {"numpy": np.__version__, "torch_geometric": torch_geometric.__version__}
