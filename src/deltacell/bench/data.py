"""How fast batches come: this loader beside two pipelines that build a record per genotype."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.screen import Genotypes, Loader, Screen

#: How many times faster than each of the others the columnar loader has to be.
BARS = {"columnar_over_per_record": 100.0, "columnar_over_lazy": 10_000.0}

Progress = Callable[[str, int, int], None]


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

    ``columnar`` is the `Loader`. ``per_record`` makes one PyG `Data` a genotype, with its deleted
    genes and its score. ``lazy`` makes one PyG `HeteroData` a genotype, with every edge of the cell
    and masks of what lives in the mutant. Both go through PyG's DataLoader in this process. The
    three take turns, and the median over the turns counts.

    Parameters
    ----------
    n_genotypes
        Number of random triples to load from.
    batch_size
        Of ``columnar`` and ``per_record``.
    cell
        The wild type; the synthetic yeast cell where not given.
    repeats
        Number of turns.
    seconds
        How long each is measured in a turn, or for one epoch (``columnar``) or one batch (the
        others) where that takes longer.
    lazy_batch_size
        Of ``lazy``, small because each genotype carries all edges.
    seed
        Of the genotypes and of the order they come in.
    progress
        Called as ``progress(what, done, total)``.
    """
    if repeats < 1 or seconds < 0 or lazy_batch_size < 1:
        raise InputError(
            f"repeats {repeats}, seconds {seconds}, lazy_batch_size {lazy_batch_size}: "
            "expected at least 1, 0 and 1"
        )
    told = progress or _silent
    total = 2 + 3 * (repeats + 1)
    told("making the cell", 0, total)
    cell = Cell.synthetic("yeast", seed=seed) if cell is None else cell
    told("making the genotypes", 1, total)
    screen = random_triples(cell, n_genotypes, seed)
    pipelines = _pipelines(cell, screen, batch_size, lazy_batch_size, seed)
    rates: dict[str, list[float]] = {p.name: [] for p in pipelines}
    done = 2
    for turn in range(repeats + 1):
        for pipeline in pipelines:
            told(f"{'timing' if turn else 'warming up'} {pipeline.name}", done, total)
            rate = pipeline.rate(seconds if turn else 0.0)
            if turn:
                rates[pipeline.name].append(rate)
            done += 1
    told("done", done, total)
    speed = {name: statistics.median(of_turns) for name, of_turns in rates.items()}
    rows = [
        {
            "name": p.name,
            "samples_per_s": speed[p.name],
            "bytes_per_sample": p.bytes_per_sample,
            "batch_size": p.batch_size,
            "samples_per_s_of_each_turn": rates[p.name],
        }
        for p in pipelines
    ]
    ratios = {
        "columnar_over_per_record": speed["columnar"] / speed["per_record"],
        "columnar_over_lazy": speed["columnar"] / speed["lazy"],
    }
    return {
        "benchmark": "data",
        "command": "deltacell bench data",
        "rows": rows,
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
        "machine": _machine(),
    }


def random_triples(cell: Cell, n: int, seed: int = 0) -> Screen:
    """Return a screen of random triples of different genes with random scores.

    Parameters
    ----------
    cell
        Whose genes to delete; it needs three at least.
    n
        Number of genotypes.
    seed
        Of all that is drawn.
    """
    if cell.n_genes < 3:
        raise InputError(f"the cell has {cell.n_genes} genes, too few for a triple")
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


@dataclass(frozen=True)
class _Pipeline:
    """One way of loading: how to begin an epoch, and what a batch of it is."""

    name: str
    batch_size: int
    bytes_per_sample: float
    epoch: Callable[[], Iterable[Any]]
    whole_epochs: bool

    def rate(self, seconds: float) -> float:
        """Return samples a second, over at least one epoch or one batch."""
        timed = self._count_epochs if self.whole_epochs else self._count_batches
        begin = time.perf_counter()
        samples = timed(begin + seconds)
        return samples / (time.perf_counter() - begin)

    def _count_epochs(self, end: float) -> int:
        samples = 0
        while True:
            for batch in self.epoch():
                samples += len(batch)
            if time.perf_counter() >= end:
                return samples

    def _count_batches(self, end: float) -> int:
        samples = 0
        while True:
            for batch in self.epoch():
                samples += int(batch.num_graphs)
                if time.perf_counter() >= end:
                    return samples


class _Records(Dataset[Any]):
    """DANGO's way: a record a genotype, made into a `Data` when asked for."""

    def __init__(self, screen: Screen) -> None:
        scores = screen.column("score").tolist()
        deleted = screen.genotypes.genes.tolist()
        ends = screen.offsets.tolist()
        self.records = [
            {"deleted": deleted[a:b], "score": score}
            for a, b, score in zip(ends[:-1], ends[1:], scores, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        from torch_geometric.data import Data

        record = self.records[index]
        # With as many nodes as deleted genes, PyG's `batch` vector says whose each of them is.
        return Data(
            deleted=torch.tensor(record["deleted"]),
            y=torch.tensor([record["score"]]),
            num_nodes=len(record["deleted"]),
        )


class _Mutants(Dataset[Any]):
    """The lazy way: a whole mutant a genotype, all edges of the cell with masks."""

    def __init__(self, cell: Cell, screen: Screen) -> None:
        self.records = _Records(screen).records
        self.n_genes = cell.n_genes
        self.edges = {}
        for name, relation in cell.relations.items():
            source, target, _ = relation.edges()
            self.edges[name] = torch.from_numpy(np.stack([source, target]))

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        from torch_geometric.data import HeteroData

        record = self.records[index]
        living = torch.ones(self.n_genes, dtype=torch.bool)
        living[record["deleted"]] = False
        data = HeteroData()
        data["gene"].num_nodes = self.n_genes
        data["gene"].living = living
        data["gene"].y = torch.tensor([record["score"]])
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
    generator = torch.Generator().manual_seed(seed)
    per_record = DataLoader(
        _Records(screen), batch_size=batch_size, shuffle=True, generator=generator
    )
    lazy = DataLoader(
        _Mutants(cell, screen), batch_size=lazy_batch_size, shuffle=True, generator=generator
    )
    first = next(iter(columnar))
    pipelines = [
        _Pipeline(
            "columnar", batch_size, first.nbytes / len(first), columnar.__iter__, whole_epochs=True
        )
    ]
    for name, loader in (("per_record", per_record), ("lazy", lazy)):
        collated = next(iter(loader))
        pipelines.append(
            _Pipeline(
                name,
                loader.batch_size,
                sum(tensor.nbytes for tensor in _tensors(collated)) / collated.num_graphs,
                loader.__iter__,
                whole_epochs=False,
            )
        )
    return pipelines


def _tensors(collated: Any) -> Iterator[torch.Tensor]:
    for part in collated.stores:
        for value in part.values():
            if isinstance(value, torch.Tensor):
                yield value


def _machine() -> dict[str, Any]:
    import torch_geometric

    return {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
    }


def _silent(what: str, done: int, total: int) -> None:
    """Report to nobody."""
