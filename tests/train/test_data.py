"""What a config names: the cell, the screen and its split."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from deltacell.cell import Cell
from deltacell.errors import DeltacellError, InputError
from deltacell.screen import Screen
from deltacell.train.config import Config, DataConfig, SplitConfig
from deltacell.train.data import load_data, make_split

Small = Callable[..., Config]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What `deltacell data import` makes: a cell and two screens of it."""
    cell = Cell.synthetic("demo", seed=0)
    cell.save(tmp_path / "data" / "cell")
    for seed, name in enumerate(("first", "second")):
        Screen.synthetic(cell, n=150, seed=seed).save(tmp_path / "data" / "screens" / name)
    return tmp_path / "data"


def config_of(**data: object) -> Config:
    return Config(data=DataConfig(**data))  # type: ignore[arg-type]


def test_a_folder_with_several_screens_asks_which(folder: Path) -> None:
    with pytest.raises(InputError, match=r"data.screen is not set; there are first, second"):
        load_data(config_of(folder=str(folder)))
    with pytest.raises(InputError, match=r"no screen 'third'; there are first, second"):
        load_data(config_of(folder=str(folder), screen="third"))
    second = load_data(config_of(folder=str(folder), screen="second"))
    assert second.screen.checksum == Screen.load(folder / "screens" / "second").checksum


def test_the_only_screen_needs_no_name(folder: Path) -> None:
    shutil.rmtree(folder / "screens" / "second")
    assert len(load_data(config_of(folder=str(folder))).screen) == 150


def test_an_import_without_a_screen_says_how_to_give_one(folder: Path) -> None:
    shutil.rmtree(folder / "screens")
    with pytest.raises(InputError, match=r"(?s)a cell and no screen.*data\.cell=.*data\.screen="):
        load_data(config_of(folder=str(folder)))


def test_what_is_not_there_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"(?s)no directory with a cell.*deltacell data import"):
        load_data(config_of(folder=str(tmp_path / "nowhere")))
    with pytest.raises(InputError, match=r"(?s)names no data.*experiment=demo"):
        load_data(config_of())
    with pytest.raises(InputError, match=r"data.cell is given and data.screen is not"):
        load_data(config_of(cell=str(folder / "cell")))


def test_a_cell_of_its_own_and_one_that_does_not_fit(folder: Path, tmp_path: Path) -> None:
    screen = str(folder / "screens" / "first")
    assert len(load_data(config_of(cell=str(folder / "cell"), screen=screen)).screen) == 150
    other = Cell.synthetic("demo", seed=0)
    other.subset(np.arange(other.n_genes // 2)).save(tmp_path / "half")
    with pytest.raises(DeltacellError, match="gene"):
        load_data(config_of(cell=str(tmp_path / "half"), screen=screen))


def test_relations_are_chosen_merged_and_checked(small: Small) -> None:
    kept = load_data(small("data.relations=[physical,regulatory]", hetero=False))
    assert list(kept.cell.relations) == ["physical", "regulatory"]
    merged = load_data(small("data.merge_relations.both=[physical,regulatory]"))
    assert "both" in merged.cell.relations
    assert "physical" not in merged.cell.relations
    for key in ("data.relations=[psychical]", "data.merge_relations.both=[psychical,physical]"):
        with pytest.raises(InputError, match="psychical"):
            load_data(small(key))


def test_only_the_genes_of_the_screen(small: Small) -> None:
    few = ["data.subset=20", "split.method=random"]
    whole, fewer = (
        load_data(small(*few, f"data.screen_genes_only={only}")) for only in ("false", "true")
    )
    deleted = np.unique(whole.screen.genotypes.genes.numpy())
    assert fewer.cell.n_genes == len(deleted) < whole.cell.n_genes
    names = [[d.cell.genes.label(int(g)) for g in d.screen.genotypes.genes] for d in (whole, fewer)]
    assert names[0] == names[1]


def test_the_scale_is_of_the_training_part_alone(small: Small) -> None:
    data = load_data(small())
    scores = data.screen.column("score").astype(np.float64)
    assert data.standard.mean == pytest.approx(scores[data.split.train].mean())
    assert data.standard.mean != pytest.approx(scores.mean(), rel=1e-3)
    assert abs(data.targets[data.split.train].mean()) < 1e-5
    assert data.targets[data.split.train].std() == pytest.approx(1, rel=1e-5)
    plain = load_data(small("data.standardise=false"))
    assert np.array_equal(plain.targets, scores.astype(np.float32))


def test_genotypes_without_a_score_are_left_out_and_said(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    column = Screen.column

    def with_gaps(self: Screen, name: str) -> np.ndarray:
        found = np.array(column(self, name))
        if name == "score" and len(found) == 150:
            found[:7] = np.nan
        return found

    monkeypatch.setattr(Screen, "column", with_gaps)
    data = load_data(small())
    assert len(data.screen) == 143
    assert data.notes == ("7 genotypes have no score and are left out.",)


def test_a_subset_is_the_same_every_time(small: Small) -> None:
    a, b = (load_data(small("data.subset=100")) for _ in range(2))
    assert len(a.screen) == 100
    assert a.screen.checksum == b.screen.checksum


@pytest.mark.parametrize("method", ["random", "gene", "set"])
def test_splits_are_those_of_the_config(small: Small, method: str) -> None:
    config = small(f"split.method={method}")
    data = load_data(config)
    parts = (data.split.train, data.split.validation, data.split.test)
    assert all(len(part) for part in parts)
    assert data.split.method == method
    everything = np.concatenate(parts)
    assert len(np.unique(everything)) == len(everything)


def test_a_split_that_is_not_there_and_one_without_a_test_part(small: Small) -> None:
    data = load_data(small())
    with pytest.raises(InputError, match="no split 'moon'; there are random"):
        make_split(data.screen, SplitConfig(method="moon"))
    config = small()
    config.split.method, config.split.test = "random", 0.0
    with pytest.raises(DeltacellError, match="test"):
        load_data(config)
