"""The ways that read from a store: what is refused, and what is never left behind."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from deltacell.cell import Cell
from deltacell.errors import InputError, MissingExtraError, StoreError
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import Deleted, strategy
from deltacell.propagate.ladder import StoredEdges, StoredMasks
from deltacell.propagate.ladder import masks as stored
from deltacell.screen import Genotypes

BOTH = pytest.mark.parametrize("name", ["stored_edges", "stored_masks"])


def _filled(name: str, folder: Path, cell: Cell, model: HeteroCell, genotypes: Genotypes) -> None:
    made = strategy(name, store=folder)
    assert isinstance(made, StoredEdges | StoredMasks)
    made.fill(model.hops(cell), Deleted.of(cell, genotypes))
    model.propagation = made


@BOTH
def test_a_store_is_made_and_read(
    name: str, tmp_path: Path, cell: Cell, model: HeteroCell, genotypes: Genotypes
) -> None:
    expected = model(cell, genotypes).score
    _filled(name, tmp_path / "store", cell, model, genotypes)
    assert sorted(p.name for p in (tmp_path / "store").iterdir()) == ["data.mdb", "manifest.json"]
    assert [p.name for p in tmp_path.iterdir()] == ["store"]
    torch.testing.assert_close(model(cell, genotypes).score, expected, rtol=1e-4, atol=1e-6)
    # Opened anew, by a copy, in another order of genotypes and genes.
    twin = copy.deepcopy(model)
    turned = Genotypes.of([[7, 5, 6], [19, 0]])
    score = twin(cell, turned).score
    torch.testing.assert_close(score, expected[[2, 1]], rtol=1e-4, atol=1e-6)


def refused(code: str, model: HeteroCell, cell: Cell, genotypes: Genotypes) -> None:
    with pytest.raises(InputError) as caught:
        model(cell, genotypes)
    assert caught.value.code == code


@BOTH
def test_what_does_not_fit_is_refused(
    name: str,
    tmp_path: Path,
    cell: Cell,
    model: HeteroCell,
    genotypes: Genotypes,
    cell_of: Callable[[int], Cell],
) -> None:
    folder = tmp_path / "store"
    model.propagation = strategy(name, store=folder)
    refused("no-store", model, cell, genotypes)
    model.propagation = strategy(name)
    refused("no-store", model, cell, genotypes)
    _filled(name, folder, cell, model, genotypes)
    model(cell, genotypes)
    refused("store-of-another-cell", model, cell_of(1), genotypes)
    refused("store-of-another-screen", model, cell, Genotypes.of([[3], [1, 2]]))
    fewer = genotypes.take(torch.tensor([0, 1]))
    model.propagation = strategy(name, store=folder, genotypes=fewer)
    refused("store-of-another-screen", model, cell, fewer)
    model.propagation = strategy(name, store=folder, genotypes=genotypes)
    model(cell, fewer)
    other = {"stored_edges": "stored_masks", "stored_masks": "stored_edges"}[name]
    model.propagation = strategy(other, store=folder)
    refused("wrong-kind", model, cell, genotypes)
    data = bytearray((folder / "data.mdb").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "data.mdb").write_bytes(data)
    model.propagation = strategy(name, store=folder)
    refused("damaged-store", model, cell, genotypes)
    (folder / "data.mdb").unlink()
    refused("damaged-store", model, cell, genotypes)


@BOTH
def test_a_store_is_replaced_only_when_told(
    name: str, tmp_path: Path, cell: Cell, model: HeteroCell, genotypes: Genotypes
) -> None:
    _filled(name, tmp_path / "store", cell, model, genotypes)
    hops, others = model.hops(cell), Deleted.of(cell, Genotypes.of([[1, 2]]))
    way = strategy(name, store=tmp_path / "store")
    assert isinstance(way, StoredEdges | StoredMasks)
    with pytest.raises(StoreError):
        way.fill(hops, others)
    way.fill(hops, others, overwrite=True)
    way.prepare(hops, others)
    with pytest.raises(InputError):
        way.prepare(hops, Deleted.of(cell, genotypes))


def test_a_store_grows(
    tmp_path: Path,
    cell: Cell,
    model: HeteroCell,
    genotypes: Genotypes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stored, "FIRST_MAP_BYTES", 16 * 1024)
    monkeypatch.setattr(stored, "GENOTYPES_AT_A_TIME", 3)
    everything = Genotypes.of([*([g] for g in range(20)), *(s.tolist() for s in genotypes)])
    _filled("stored_masks", tmp_path / "store", cell, model, everything)
    assert (tmp_path / "store" / "data.mdb").stat().st_size > 16 * 1024
    assert model(cell, everything).score.shape == (24,)


def test_without_lmdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(MissingExtraError, match="lmdb"):
        strategy("stored_edges", store="somewhere")


FULL_DISK = """
import resource, sys
from deltacell.cell import Cell
from deltacell.errors import StoreError
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import Deleted, strategy
from deltacell.screen import Genotypes

cell = Cell.synthetic("demo")
model = HeteroCell(cell, hidden=8)
deleted = Deleted.of(cell, Genotypes.of([[g] for g in range(40)]))
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    strategy("stored_masks", store=sys.argv[1]).fill(model.hops(cell), deleted)
except StoreError as error:
    print(error)
"""


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "store"
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(folder)], capture_output=True, text=True, check=True
    )
    assert "the store of edge masks could not be written: " in done.stdout
    assert "Nothing was left half-written" in done.stdout
    assert list(tmp_path.iterdir()) == []
