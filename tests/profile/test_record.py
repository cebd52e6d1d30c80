from __future__ import annotations

import json
from dataclasses import fields, replace
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
FULL = replace(
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


def code_of(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_run(path)
    return caught.value.code


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
        known = {field.name for field in fields(RunRecord)}
        assert set(data) == (known - {"path", "extra"}) | {"schema", "seal"}
        assert (data["schema"], data["status"]) == (1, "failed")
        assert data["target"] == {"mean": -0.5, "std": 2.0}

    def test_fields_of_a_later_version_are_kept(self, tmp_path):
        data = written(tmp_path, colour="blue")
        data["best"]["why"] = {"deep": [1]}
        data["attempts"][0]["node"] = "n1"
        (tmp_path / "run.json").write_text(json.dumps(data))
        write_run(tmp_path, replace(read_run(tmp_path), limits="new"))
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
        ("changes", "where"),
        [
            ({"name": ...}, "`name`"),
            ({"seed": "zero"}, "$.seed"),
            ({"seed": True}, "$.seed"),
            ({"seed": 1.5}, "$.seed"),
            ({"name": None}, "$.name"),
            ({"status": "done"}, "$.status"),
            ({"command": "deltacell train"}, "$.command"),
            ({"command": ["a", 1]}, "$.command"),
            ({"versions": {"torch": 2}}, "$.versions"),
            ({"split": 3}, "$.split"),
            ({"cell": {"checksum": "c"}}, "$.cell"),
            ({"cell": []}, "$.cell"),
            ({"target": {"mean": "0", "std": 1}}, "$.target.mean"),
            ({"target": {"mean": 10**400, "std": 1}}, ""),
            ({"best": {"epoch": 1, "step": 1, "file": "x", "value": 1e308 * 10}}, "$.best.value"),
            ({"attempts": [{"started": 3}]}, "$.attempts[0].started"),
            ({"attempts": {}}, "$.attempts"),
            ({"started": "yesterday"}, "yesterday"),
        ],
    )
    def test_a_field_that_is_wrong_is_named(self, tmp_path, changes, where):
        written(tmp_path, **changes)
        file = tmp_path / "run.json"
        file.write_text(file.read_text().replace("Infinity", "1e999"))
        with pytest.raises(InputError) as caught:
            read_run(tmp_path)
        assert (caught.value.code, caught.value.where) == ("invalid-record", file)
        assert where in caught.value.what

    @pytest.mark.parametrize("edit", [("seed", 8), ("status", "finished"), ("colour", "blue")])
    def test_an_edit_is_noticed(self, tmp_path, edit):
        write_run(tmp_path, FULL)
        data = json.loads((tmp_path / "run.json").read_text())
        (tmp_path / "run.json").write_text(json.dumps(data | dict([edit])))
        assert code_of(tmp_path) == "broken-seal"

    @pytest.mark.parametrize(
        ("text", "code"),
        [
            *((text, "not-a-record") for text in ("[]", "null", "{}", '{"schema":true}')),
            ('{"schema": 2}', "schema-version"),
        ],
    )
    def test_other_json_is_refused(self, tmp_path, text, code):
        (tmp_path / "run.json").write_text(text)
        assert code_of(tmp_path) == code

    @pytest.mark.parametrize("keep", [0, 1, 50, -3])
    def test_half_a_file_is_refused(self, tmp_path, keep):
        write_run(tmp_path, FULL)
        file = tmp_path / "run.json"
        file.write_bytes(file.read_bytes()[:keep])
        with pytest.raises(StoreError):
            read_run(tmp_path)

    @pytest.mark.parametrize("path", ["", "nowhere", "nowhere/run.json"])
    def test_what_is_not_a_run_is_refused(self, tmp_path, path):
        assert code_of(tmp_path / path) == "not-a-run"

    def test_values_that_json_cannot_hold_are_not_written(self, tmp_path):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write_run(tmp_path, replace(FULL, target=Target(mean=float("nan"), std=1.0)))
        with pytest.raises(TypeError, match="not JSON serializable"):
            write_run(tmp_path, replace(FULL, split={"folder": Path("x")}))
        assert list(tmp_path.iterdir()) == []

    def test_metrics_and_phases_are_read_from_beside_it(self, tmp_path):
        write_run(tmp_path, replace(BARE, started=now()))
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
        ("text", "line", "code"),
        [
            ("", 1, "wrong-columns"),
            ("step,epoch\n", 1, "wrong-columns"),
            ("epoch,step,a,a\n", 1, "wrong-columns"),
            ("epoch,step,a\n0,8,1\n1,16\n", 3, "wrong-columns"),
            ("epoch,step,a\n0,8,high\n", 2, "not-a-number"),
            ("epoch,step\n0.5,8\n", 2, "not-a-number"),
            ("epoch,step\n,8\n", 2, "not-a-number"),
            (f"epoch,step\n0,{2**63}\n", 2, "not-a-number"),
            (None, None, "unreadable-file"),
            ("\xff", None, "not-utf-8"),
        ],
    )
    def test_what_is_wrong_is_named_with_its_line(self, tmp_path, text, line, code):
        file = tmp_path / "metrics.csv"
        if text is not None:
            file.write_bytes(text.encode("latin-1"))
        with pytest.raises(InputError) as caught:
            read_metrics(file)
        error = caught.value
        assert (error.where, error.line, error.code) == (file, line, code)
