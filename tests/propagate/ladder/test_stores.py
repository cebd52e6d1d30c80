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
from deltacell.propagate.ladder import StoredEdges, StoredMasks, index_store
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


@BOTH
def test_another_cell_is_refused(
    name: str,
    tmp_path: Path,
    cell: Cell,
    model: HeteroCell,
    genotypes: Genotypes,
    cell_of: Callable[[int], Cell],
) -> None:
    _filled(name, tmp_path / "store", cell, model, genotypes)
    model(cell, genotypes)
    with pytest.raises(InputError, match="made for another cell: the checksum of its cell is"):
        model(cell_of(1), genotypes)
    model(cell, genotypes)


@BOTH
def test_another_screen_is_refused(
    name: str, tmp_path: Path, cell: Cell, model: HeteroCell, genotypes: Genotypes
) -> None:
    _filled(name, tmp_path / "store", cell, model, genotypes)
    with pytest.raises(InputError, match=r"made for another screen: .* deletes \[1, 2\] is not in"):
        model(cell, Genotypes.of([[3], [1, 2]]))
    fewer = genotypes.take(torch.tensor([0, 1]))
    model.propagation = strategy(name, store=tmp_path / "store", genotypes=fewer)
    with pytest.raises(InputError, match="another screen: the checksum of its genotypes is"):
        model(cell, fewer)
    model.propagation = strategy(name, store=tmp_path / "store", genotypes=genotypes)
    model(cell, fewer)


@BOTH
def test_no_store(name: str, tmp_path: Path, cell: Cell, model: HeteroCell) -> None:
    model.propagation = strategy(name, store=tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"nowhere: there is no store of .*\n.*`fill`"):
        model(cell, Genotypes.of([[0]]))
    model.propagation = strategy(name)
    with pytest.raises(InputError, match=f"'{name}' needs the folder of its store"):
        model(cell, Genotypes.of([[0]]))


def test_a_store_of_another_kind_and_a_damaged_one(
    tmp_path: Path, cell: Cell, model: HeteroCell, genotypes: Genotypes
) -> None:
    folder = tmp_path / "store"
    _filled("stored_masks", folder, cell, model, genotypes)
    model.propagation = StoredEdges(folder)
    with pytest.raises(InputError, match="this is a store of edge masks, and a store of removed"):
        model(cell, genotypes)
    data = bytearray((folder / "data.mdb").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "data.mdb").write_bytes(data)
    model.propagation = StoredMasks(folder)
    with pytest.raises(InputError, match="the store of edge masks is damaged"):
        model(cell, genotypes)
    (folder / "data.mdb").unlink()
    with pytest.raises(InputError, match="the store of edge masks is damaged"):
        model(cell, genotypes)


@BOTH
def test_a_store_is_replaced_only_when_told(
    name: str, tmp_path: Path, cell: Cell, model: HeteroCell, genotypes: Genotypes
) -> None:
    _filled(name, tmp_path / "store", cell, model, genotypes)
    hops, others = model.hops(cell), Deleted.of(cell, Genotypes.of([[1, 2]]))
    way = strategy(name, store=tmp_path / "store")
    assert isinstance(way, StoredEdges | StoredMasks)
    with pytest.raises(StoreError, match="there is already a store of"):
        way.fill(hops, others)
    way.fill(hops, others, overwrite=True)
    way.prepare(hops, others)
    with pytest.raises(InputError, match="another screen"):
        way.prepare(hops, Deleted.of(cell, genotypes))


def test_a_store_grows(
    tmp_path: Path,
    cell: Cell,
    model: HeteroCell,
    genotypes: Genotypes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_store, "FIRST_MAP_BYTES", 16 * 1024)
    monkeypatch.setattr(index_store, "GENOTYPES_AT_A_TIME", 3)
    everything = Genotypes.of([*([g] for g in range(20)), *(s.tolist() for s in genotypes)])
    _filled("stored_masks", tmp_path / "store", cell, model, everything)
    assert (tmp_path / "store" / "data.mdb").stat().st_size > 16 * 1024
    assert model(cell, everything).score.shape == (24,)


def test_without_lmdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(
        MissingExtraError, match=r"'stored_edges' needs .*'lmdb'\n.*deltacell\[lmdb"
    ):
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
