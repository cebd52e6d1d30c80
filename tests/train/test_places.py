"""The paths of a run lead to its data from everywhere, also those that earlier versions wrote."""

import shutil
from dataclasses import replace

import pytest

from deltacell.models.loss_config import NoLossConfig
from deltacell.train.config import Config, DataConfig, SplitConfig
from deltacell.train.ensemble_config import EnsembleConfig
from deltacell.train.places import changes, for_disk, from_disk


@pytest.fixture
def project(tmp_path, monkeypatch):
    project = tmp_path / "project"
    for name in ("data", "runs/a", "elsewhere"):
        (project / name).mkdir(parents=True)
    monkeypatch.chdir(project)
    return project


def config_of(folder, directory):
    return Config(directory=directory, data=DataConfig(folder=folder))


def test_moved_together_or_alone_and_from_any_directory(project, tmp_path, monkeypatch):
    written = for_disk(config_of("data", "runs/a"), project / "runs" / "a")
    assert (written.data.folder, written.directory) == ("../../data", str(project / "runs" / "a"))
    monkeypatch.chdir("/")
    read = from_disk(written, project / "runs" / "a")
    assert read.data.folder == str(project / "data")
    assert changes(read, config_of(str(project / "data"), None)) == []
    alone = tmp_path / "archive" / "of" / "a"
    alone.mkdir(parents=True)
    assert from_disk(written, alone).data.folder == str(project / "data")
    moved = tmp_path / "b" / "c"
    shutil.copytree(project, moved)
    assert from_disk(written, moved / "runs" / "a").data.folder == str(moved / "data")
    shutil.rmtree(project)
    read = from_disk(written, moved / "runs" / "a")
    assert (read.data.folder, read.directory) == (str(moved / "data"), str(moved / "runs" / "a"))


@pytest.mark.parametrize("absolute", [False, True])
def test_earlier_runs_find_their_data(project, tmp_path, absolute, monkeypatch):
    base = f"{project}/" if absolute else ""
    written = config_of(f"{base}data", f"{base}runs/a")
    assert from_disk(written, project / "runs" / "a").data.folder == str(project / "data")
    moved = tmp_path / "moved"
    shutil.move(project, moved)
    monkeypatch.chdir("/")
    assert from_disk(written, moved / "runs" / "a").data.folder == str(moved / "data")


def test_an_absolute_path_keeps_its_meaning(project, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(project, moved)
    written = config_of(f"{project}/data", f"{project}/runs/a")
    assert from_disk(written, moved / "runs" / "a").data.folder == str(project / "data")


def test_every_path_and_no_name_is_relative(project):
    split = SplitConfig(method="saved", path="split", file="parts.tsv")
    model, loss = EnsembleConfig(runs=["runs/x", "runs/y"]), NoLossConfig()
    config = Config(data=DataConfig(cell="c", screen="s"), split=split, model=model, loss=loss)
    written = for_disk(config, project / "runs" / "a")
    assert (written.data.cell, written.data.screen) == ("../../c", "../../s")
    assert (written.split.path, written.split.file) == ("../../split", "../../parts.tsv")
    assert written.model.runs == ["../x", "../y"]
    named = for_disk(Config(data=DataConfig(folder="data", screen="name")), project / "runs" / "a")
    assert named.data.screen == "name"
    assert changes(from_disk(named, project / "runs/a"), from_disk(named, project / "runs/a")) == []


def test_only_settings_that_differ_are_listed_as_changes():
    before = Config(seed=1)
    (change,) = changes(before, replace(before, seed=2, directory="other"))
    assert (change.key, change.before, change.now) == ("seed", 1, 2)
