"""The record of a run and its metrics: what is written is read, and damage is noticed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from deltacell.base.files import seal_of
from deltacell.profile.record import (
    Attempt,
    CellFacts,
    Reached,
    RunRecord,
    Samples,
    ScreenFacts,
    Status,
    Target,
    read_run,
    write_run,
)

NOON = "2026-01-31T12:00:00Z"
BARE = RunRecord(
    status=Status.running,
    name="demo",
    mode="train",
    seed=0,
    command=("train",),
    started=NOON,
)
FULL = replace(
    BARE,
    status=Status.failed,
    ended="2026-01-31T12:10:00Z",
    attempts=(
        Attempt(started=NOON, status=Status.interrupted),
        Attempt(started=NOON, ended=NOON, status=Status.failed, from_step=12, world_size=2),
    ),
    versions={"torch": "2.6.0"},
    commit="0" * 40,
    cell=CellFacts(checksum="c", n_genes=60, relations=("physical", "regulatory")),
    screen=ScreenFacts(checksum="s", genotypes=300, studies=("demo",)),
    split={"method": "random", "genotypes": {"train": 240}, "leakage": "None.", "notes": []},
    samples=Samples(train=240, validation=30, test=30),
    device="cpu",
    precision="32",
    propagation={"name": "delta", "explanation": "It is the fastest here."},
    **dict.fromkeys(("threads", "world_size", "batch_size", "accumulate"), 2),
    **dict.fromkeys(("steps_per_epoch", "epochs", "n_parameters"), 8),
    best=Reached(epoch=1, step=8, file="step-00000008.ckpt", metric="pearson", value=0.25),
    last=Reached(epoch=2, step=16, file="step-00000016.ckpt"),
    error="the loss is not finite at step 17",
    target=Target(mean=-0.5, std=2.0),
    limits="Backward takes 61 % of the time.",
)


def written(folder: Path, **changes) -> None:
    """Write a record with fields changed by hand, and sealed again."""
    write_run(folder, FULL)
    data = json.loads((folder / "run.json").read_text()) | changes
    data = {name: value for name, value in data.items() if value is not ...}
    data["seal"] = seal_of(data)
    (folder / "run.json").write_text(json.dumps(data))


class TestRecord:
    @pytest.mark.parametrize("record", [BARE, FULL])
    def test_a_record_read_equals_the_one_written(self, tmp_path, record):
        write_run(tmp_path, record)
        assert read_run(tmp_path) == read_run(tmp_path / "run.json") == record
        assert read_run(tmp_path).path == tmp_path

    @pytest.mark.parametrize(
        ("changes", "where"),
        [
            ({"name": ...}, "`name`"),
            ({"seed": "zero"}, "$.seed"),
            ({"status": "done"}, "$.status"),
            ({"cell": {"checksum": "c"}}, "$.cell"),
            ({"target": {"mean": 10**400, "std": 1}}, ""),
            ({"attempts": [{"started": 3}]}, "$.attempts[0].started"),
        ],
    )
    def test_a_field_that_is_wrong_is_named(self, refused, tmp_path, changes, where):
        written(tmp_path, **changes)
        error = refused("invalid-record", read_run, tmp_path)
        assert error.where == tmp_path / "run.json"
        assert where in error.message

    def test_a_field_of_an_earlier_version_is_ignored(self, tmp_path):
        written(tmp_path, micro_batch=4)
        assert read_run(tmp_path) == FULL

    @pytest.mark.parametrize("edit", [("seed", 8), ("colour", "blue"), ("seal", None)])
    def test_an_edit_is_noticed(self, refused, tmp_path, edit):
        write_run(tmp_path, FULL)
        data = json.loads((tmp_path / "run.json").read_text())
        (tmp_path / "run.json").write_text(json.dumps(data | dict([edit])))
        refused("broken-seal", read_run, tmp_path)

    def test_folders_and_files_that_are_no_runs_are_refused(self, refused, tmp_path):
        for path in ("", "nowhere", "nowhere/run.json"):
            refused("not-a-run", read_run, tmp_path / path)
        for text in ("[]", "null", "{}", '{"schema":true}', '{"schema": 2}'):
            (tmp_path / "run.json").write_text(text)
            refused("not-a-record", read_run, tmp_path)
