"""What a config names: the data, the split, the scale, the model and the loss."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deltacell.cell import Cell
from deltacell.data.import_folder import Imported
from deltacell.models import HeteroCell
from deltacell.models.interface import TargetScale
from deltacell.screen import Genotypes, Screen
from deltacell.train.config import Config, DataConfig, SplitConfig
from deltacell.train.data import load_data
from deltacell.train.predictor import build_model

Small = Callable[..., Config]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What `deltacell data import` makes: a cell and two screens of it."""
    cell = Cell.synthetic("demo", seed=0)
    names = enumerate(("first", "second"))
    screens = {name: Screen.synthetic(cell, n=150, seed=seed) for seed, name in names}
    Imported(cell, screens).save(tmp_path / "data")
    return tmp_path / "data"


def loaded(**data: Any) -> Any:
    return load_data(Config(data=DataConfig(**data)))


def test_a_folder_and_its_screens(folder, tmp_path, refused):
    for screen in (None, "third"):
        refused("unknown-screen", loaded, folder=str(folder), screen=screen)
    for given in ({"folder": str(tmp_path / "nowhere")}, {}):
        refused("no-data", loaded, **given)
    screen = Screen.load(folder / "screens" / "second")
    assert loaded(folder=str(folder), screen="second").screen.checksum == screen.checksum
    first = str(folder / "screens" / "first")
    assert len(loaded(cell=str(folder / "cell"), screen=first).screen) == 150
    cell = Cell.synthetic("demo", seed=0)
    cell.subset(np.arange(cell.n_genes // 2)).save(tmp_path / "half")
    refused("unknown-gene", loaded, cell=str(tmp_path / "half"), screen=first)
    Imported(cell, {"only": Screen.load(first)}).save(tmp_path / "one")
    assert len(loaded(folder=str(tmp_path / "one")).screen) == 150


def test_relations_are_chosen_merged_and_checked(small, refused):
    kept = load_data(small("data.relations=[physical,regulatory]"))
    assert list(kept.cell.relations) == ["physical", "regulatory"]
    merged = load_data(small("data.merge_relations.both=[physical,regulatory]"))
    assert "both" in merged.cell.relations
    assert "physical" not in merged.cell.relations
    for key in ("data.relations=[psychical]", "data.merge_relations.both=[psychical,physical]"):
        refused("unknown-relation", load_data, small(key))


def test_a_subset_and_only_its_genes(small):
    few = ["data.subset=20", "split.method=random"]
    whole, again, fewer = (
        load_data(small(*few, f"data.screen_genes_only={only}"))
        for only in ("false", "false", "true")
    )
    assert len(whole.screen) == 20
    assert whole.screen.checksum == again.screen.checksum
    deleted = np.unique(whole.screen.genotypes.genes.numpy())
    assert fewer.cell.n_genes == len(deleted) < whole.cell.n_genes
    names = [[d.cell.genes.label(int(g)) for g in d.screen.genotypes.genes] for d in (whole, fewer)]
    assert names[0] == names[1]


def test_the_scale_is_of_the_training_part_alone(small, refused):
    data = load_data(small())
    scores = data.screen.column("score").astype(np.float64)
    assert data.standard.mean == pytest.approx(scores[data.split.train].mean())
    assert data.standard.mean != pytest.approx(scores.mean(), rel=1e-3)
    targets = data.targets[data.split.train]
    assert (abs(targets.mean()) < 1e-5, targets.std()) == (True, pytest.approx(1, rel=1e-5))
    undone = data.standard.undo(torch.tensor(data.targets)).numpy()
    np.testing.assert_allclose(undone, scores, rtol=1e-4, atol=1e-6)
    plain = load_data(small("data.standardise=false"))
    assert np.array_equal(plain.targets, scores.astype(np.float32))
    many = np.full(3_000_000, 1.1, dtype=np.float32)
    many[::2] = 0.9
    assert TargetScale.of(many).mean == pytest.approx(1.0, abs=1e-7)
    for constant in ([1.0, 1.0], [1.0, np.nan]):
        refused("constant-targets", TargetScale.of, np.array(constant))


def test_genotypes_without_a_score_are_left_out_and_noted(small, monkeypatch):
    column = Screen.column

    def with_gaps(self: Screen, name: str) -> np.ndarray:
        found = np.array(column(self, name))
        if name == "score" and len(found) == 150:
            found[:7] = np.nan
        return found

    monkeypatch.setattr(Screen, "column", with_gaps)
    data = load_data(small())
    assert len(data.screen) == 143


@pytest.mark.parametrize(("sign", "is_list_of_hits"), [(-1, True), (0, False)])
def test_a_screen_without_any_score_is_not_called_empty(sign, is_list_of_hits, tmp_path, refused):
    cell = Cell.synthetic("demo", seed=0)
    hits = Screen.build(cell.genes, Genotypes.of([[0, 1], [2, 3]]), sign=sign)
    Imported(cell, {"hits": hits}).save(tmp_path / "data")
    error = refused("no-scores", loaded, folder=str(tmp_path / "data"))
    assert ("list of hits" in error.message) == is_list_of_hits


def test_a_split_without_a_file_or_a_test_part(small, refused):
    config = small("split.method=random")
    for method in ("named", "saved"):
        refused("no-split", load_data, replace(config, split=SplitConfig(method=method)))
    config.split.test = 0.0
    refused("empty-part", load_data, config)


def test_dango_uses_the_six_of_string_unless_told_otherwise(small, refused):
    config = small("model.relations=null")
    model: Any = build_model(config, load_data(config))
    assert len(model.relations) == 6
    assert model.facts() == {}
    lambdas = ["model.lambdas.physical=0.25", "model.lambdas.regulatory=0.5"]
    config = small("model.relations=[physical,regulatory]", *lambdas)
    model = build_model(config, load_data(config))
    assert model.reconstruction.lambdas == {"physical": 0.25, "regulatory": 0.5}
    config = small("data.relations=[physical,regulatory]", "model.relations=null")
    refused("unknown-relation", build_model, config, load_data(config))


@pytest.mark.parametrize("name", ["auto", "delta", "shared"])
def test_a_recorded_propagation_is_used_again(small, name):
    bound = ["model.max_bytes=1000000"] if name != "shared" else []
    config = small(f"model.propagation={name}", *bound, hetero=True)
    data = load_data(config)
    model = build_model(config, data)
    assert isinstance(model, HeteroCell)
    model.prepare(data.cell, data.screen.genotypes)
    facts = model.facts()
    assert facts["propagation"]["name"] == name
    again = build_model(config, data, facts)
    recorded = again.facts()["propagation"]
    # Why it was chosen is another reason now: that it was chosen before.
    assert {**recorded, "why": None} == {**facts["propagation"], "why": None}
