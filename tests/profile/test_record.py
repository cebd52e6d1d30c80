from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import polars as pl
import pytest

from deltacell.errors import InputError, StoreError
from deltacell.files import seal_of
from deltacell.profile.record import (
    Attempt,
    CellFacts,
    Reached,
    RunRecord,
    Samples,
    ScreenFacts,
    Status,
    Target,
    now,
    read_metrics,
    read_run,
    write_run,
)

BARE = RunRecord(
    status=Status.running,
    name="demo",
    mode="train",
    seed=0,
    command=("deltacell", "train"),
    started="2026-01-31T12:00:00Z",
)
FULL = dataclasses.replace(
    BARE,
    status=Status.failed,
    ended="2026-01-31T12:10:00Z",
    attempts=(
        Attempt(started="2026-01-31T12:00:00Z", status=Status.interrupted),
        Attempt(
            started="2026-01-31T12:05:00Z",
            ended="2026-01-31T12:10:00Z",
            status=Status.failed,
            from_step=12,
            world_size=2,
        ),
    ),
    versions={"torch": "2.6.0"},
    commit="0" * 40,
    cell=CellFacts(checksum="c", n_genes=60, relations=("physical", "regulatory")),
    screen=ScreenFacts(checksum="s", genotypes=300, studies=("demo",)),
    split={"method": "random", "genotypes": {"train": 240}, "leakage": "None.", "notes": []},
    samples=Samples(train=240, validation=30, test=30),
    device="cpu",
    threads=2,
    precision="32",
    world_size=2,
    batch_size=32,
    accumulate=1,
    steps_per_epoch=8,
    epochs=5,
    propagation={"name": "delta", "explanation": "It is the fastest here."},
    micro_batch=16,
    n_parameters=1234,
    best=Reached(epoch=1, step=8, file="step-00000008.ckpt", metric="pearson", value=0.25),
    last=Reached(epoch=2, step=16, file="step-00000016.ckpt"),
    error="the loss is not finite at step 17",
    target=Target(mean=-0.5, std=2.0),
    limits="Backward takes 61 % of the time.",
)


def written(folder: Path, **changes) -> dict:
    """Write a record with fields changed by hand, and return it as JSON."""
    write_run(folder, FULL)
    data = json.loads((folder / "run.json").read_text())
    for name, value in changes.items():
        if value is ...:
            del data[name]
        else:
            data[name] = value
    del data["seal"]
    (folder / "run.json").write_text(json.dumps(data))
    return data


class TestRecord:
    @pytest.mark.parametrize("record", [BARE, FULL])
    def test_what_is_written_is_read(self, tmp_path, record):
        write_run(tmp_path, record)
        assert read_run(tmp_path) == record
        assert read_run(tmp_path / "run.json") == record
        assert read_run(tmp_path).path == tmp_path

    def test_the_file_has_no_more_and_no_less_than_the_record(self, tmp_path):
        write_run(tmp_path, FULL)
        data = json.loads((tmp_path / "run.json").read_text())
        fields = {field.name for field in dataclasses.fields(RunRecord)}
        assert set(data) == (fields - {"path", "extra"}) | {"schema", "seal"}
        assert data["schema"] == 1
        assert data["status"] == "failed"
        assert data["best"] == {
            "epoch": 1,
            "step": 8,
            "file": "step-00000008.ckpt",
            "metric": "pearson",
            "value": 0.25,
        }

    def test_fields_of_a_later_version_are_kept(self, tmp_path):
        data = written(tmp_path, colour="blue")
        data["best"]["why"] = {"deep": [1]}
        data["attempts"][0]["node"] = "n1"
        (tmp_path / "run.json").write_text(json.dumps(data))
        write_run(tmp_path, dataclasses.replace(read_run(tmp_path), limits="new"))
        again = json.loads((tmp_path / "run.json").read_text())
        assert again.pop("seal") == seal_of(again)
        assert again == {**data, "limits": "new"}

    def test_fields_with_a_default_may_be_absent(self, tmp_path):
        written(tmp_path, limits=..., versions=..., attempts=...)
        record = read_run(tmp_path)
        assert (record.limits, record.versions, record.attempts) == (None, {}, ())

    def test_a_whole_number_is_a_number(self, tmp_path):
        written(tmp_path, target={"mean": 0, "std": 1})
        assert read_run(tmp_path).target == Target(mean=0.0, std=1.0)

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"name": ...}, "the field 'name' is missing"),
            ({"seed": "zero"}, "the field 'seed' is 'zero'; expected a whole number"),
            ({"seed": True}, "the field 'seed' is True; expected a whole number"),
            ({"seed": 1.0}, "the field 'seed' is 1.0; expected a whole number"),
            ({"name": None}, "the field 'name' is None; expected text"),
            ({"status": "done"}, "expected one of running, finished, failed, interrupted"),
            ({"status": ["running"]}, "expected one of running, finished"),
            ({"command": "deltacell train"}, "'command' is 'deltacell train'; expected a list"),
            ({"command": ["a", 1]}, r"the field 'command\[1\]' is 1; expected text"),
            ({"versions": {"torch": 2}}, r"the field 'versions.torch' is 2; expected text"),
            ({"versions": []}, r"the field 'versions' is \[\]; expected an object"),
            ({"split": 3}, "the field 'split' is 3; expected an object"),
            ({"cell": {"checksum": "c"}}, "the field 'cell.n_genes' is missing"),
            ({"cell": []}, r"the field 'cell' is \[\]; expected an object"),
            ({"target": {"mean": "0", "std": 1}}, "'target.mean' is '0'; expected a number"),
            ({"target": {"mean": 10**400, "std": 1}}, "expected a number"),
            ({"attempts": [{"started": 3}]}, r"the field 'attempts\[0\].started' is 3"),
            ({"attempts": {}}, "expected a list"),
            ({"started": "yesterday"}, "'started' is 'yesterday'; expected a time such as 2026"),
        ],
    )
    def test_a_field_that_is_wrong_is_named(self, tmp_path, changes, said):
        written(tmp_path, **changes)
        with pytest.raises(InputError, match=said) as error:
            read_run(tmp_path)
        assert error.value.where == tmp_path / "run.json"

    def test_an_infinite_number_is_refused(self, tmp_path):
        written(tmp_path)
        text = (tmp_path / "run.json").read_text().replace("0.25", "1e999")
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(InputError, match=r"'best.value' is inf; expected a number"):
            read_run(tmp_path)

    @pytest.mark.parametrize("edit", [("seed", 8), ("status", "finished"), ("colour", "blue")])
    def test_an_edit_is_noticed(self, tmp_path, edit):
        write_run(tmp_path, FULL)
        data = json.loads((tmp_path / "run.json").read_text())
        (tmp_path / "run.json").write_text(json.dumps(data | dict([edit])))
        with pytest.raises(InputError, match="edited or damaged"):
            read_run(tmp_path)

    def test_another_schema_version_is_refused(self, tmp_path):
        written(tmp_path, schema=2)
        with pytest.raises(InputError, match="schema version 2, and this program reads 1"):
            read_run(tmp_path)

    @pytest.mark.parametrize(
        "text", ["[]", "3", "null", "{}", '{"schema": "1"}', '{"schema":true}']
    )
    def test_other_json_is_refused(self, tmp_path, text):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(InputError, match="this is not the record of a run"):
            read_run(tmp_path)

    @pytest.mark.parametrize("keep", [0, 1, 50, -3])
    def test_half_a_file_is_refused(self, tmp_path, keep):
        write_run(tmp_path, FULL)
        file = tmp_path / "run.json"
        file.write_bytes(file.read_bytes()[:keep])
        with pytest.raises(StoreError, match="the record of the run is damaged"):
            read_run(tmp_path)

    def test_what_is_not_a_run_is_said(self, tmp_path):
        with pytest.raises(InputError, match=r"there is no run\.json here, so this is not a run"):
            read_run(tmp_path)

    @pytest.mark.parametrize("path", ["nowhere", "nowhere/run.json"])
    def test_what_is_not_there_is_said(self, tmp_path, path):
        with pytest.raises(InputError, match="nowhere: there is no such directory"):
            read_run(tmp_path / path)

    def test_values_that_json_cannot_hold_are_named(self, tmp_path):
        nan = dataclasses.replace(FULL, target=Target(mean=float("nan"), std=1.0))
        with pytest.raises(ValueError, match=r"'target.mean' of a run's record is nan"):
            write_run(tmp_path, nan)
        path = dataclasses.replace(FULL, split={"folder": Path("x")})
        with pytest.raises(TypeError, match=r"'split.folder' of a run's record cannot be a"):
            write_run(tmp_path, path)
        assert list(tmp_path.iterdir()) == []

    def test_the_time_is_one_that_is_read(self, tmp_path):
        write_run(tmp_path, dataclasses.replace(BARE, started=now()))
        assert read_run(tmp_path).started.endswith("Z")

    def test_metrics_and_phases_are_read_from_beside_it(self, tmp_path):
        write_run(tmp_path, BARE)
        (tmp_path / "metrics.csv").write_text("epoch,step,train_loss\n0,8,0.5\n")
        record = read_run(tmp_path)
        assert record.metrics().to_dicts() == [{"epoch": 0, "step": 8, "train_loss": 0.5}]
        with pytest.raises(InputError, match="phases"):
            record.phases()
        (tmp_path / "phases").mkdir()
        assert len(record.phases()) == 0


class TestMetrics:
    def test_numbers_nothing_and_not_a_number_are_told_apart(self, tmp_path):
        file = tmp_path / "metrics.csv"
        file.write_text("epoch,step,a,b\n0,8,1,nan\n1,16,,-inf\n\n")
        frame = read_metrics(file)
        assert frame.schema == {
            "epoch": pl.Int64,
            "step": pl.Int64,
            "a": pl.Float64,
            "b": pl.Float64,
        }
        assert frame["a"].to_list() == [1.0, None]
        assert str(frame["b"].to_list()) == "[nan, -inf]"

    def test_a_file_saved_by_a_spreadsheet_is_read(self, tmp_path):
        file = tmp_path / "metrics.csv"
        file.write_bytes("\ufeffepoch,step,a\r\n0,8,1\r\n".encode())
        assert read_metrics(file).to_dicts() == [{"epoch": 0, "step": 8, "a": 1.0}]

    @pytest.mark.parametrize(
        ("text", "line", "said"),
        [
            ("", 1, "it names none"),
            ("step,epoch\n", 1, "it names step, epoch"),
            ("epoch,step,a,a\n", 1, "each once"),
            ("epoch,step,a\n0,8,1\n1,16\n", 3, "2 values where there are 3 columns"),
            ("epoch,step,a\n0,8,high\n", 2, "'high' in the column 'a' is not a number"),
            ("epoch,step\n0.5,8\n", 2, "'0.5' in the column 'epoch' is not a number"),
            ("epoch,step\n,8\n", 2, "'' in the column 'epoch' is not a number"),
            (f"epoch,step\n0,{2**63}\n", 2, "in the column 'step' is not a number"),
        ],
    )
    def test_what_is_wrong_is_said_with_its_line(self, tmp_path, text, line, said):
        file = tmp_path / "metrics.csv"
        file.write_text(text)
        with pytest.raises(InputError, match=said) as error:
            read_metrics(file)
        assert (error.value.where, error.value.line) == (file, line)

    def test_what_cannot_be_read_is_said(self, tmp_path):
        with pytest.raises(InputError, match="No such file"):
            read_metrics(tmp_path / "metrics.csv")
        (tmp_path / "metrics.csv").write_bytes(b"\xff\xfe")
        with pytest.raises(InputError, match="not text in UTF-8"):
            read_metrics(tmp_path / "metrics.csv")
