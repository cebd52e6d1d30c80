import errno
import json
import os

import pytest

from deltacell.base.files import new_file, read_json, write_json


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def names_in(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_is_not_there_until_it_is_whole_and_an_error_leaves_what_was_there(tmp_path):
    file = tmp_path / "a.txt"
    with new_file(file) as temporary:
        temporary.write_text("old")
        assert not file.exists()
        assert temporary.parent == tmp_path

    def stopped():
        with new_file(file) as temporary:
            temporary.write_text("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    with pytest.raises(FileNotFoundError), new_file(file):
        pass
    assert file.read_text() == "old"
    assert names_in(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("at", ["fsync", "replace", "open"])
def test_a_full_disk_is_said_and_leaves_what_was_there(tmp_path, monkeypatch, at, refused):
    file = tmp_path / "a.json"
    write_json(file, {"a": 1}, what="the result")
    monkeypatch.setattr(os, at, full)
    error = refused("not-written", write_json, file, {"a": 2}, what="the result")
    assert error.where == file
    assert json.loads(file.read_text()) == {"a": 1}
    assert names_in(tmp_path) == ["a.json"]


def test_json_that_is_written_is_read_and_not_a_number_is_not_json(tmp_path):
    data = {"text": "his3Δ", "none": None, "list": [1, 2.5, True], "path": "a\udcff"}
    write_json(tmp_path / "a.json", data, what="it")
    assert read_json(tmp_path / "a.json", what="it") == data
    assert "his3Δ" in (tmp_path / "a.json").read_text()
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "b.json", {"a": float("nan")}, what="it")
    assert names_in(tmp_path) == ["a.json"]


@pytest.mark.parametrize("rubbish", [b"", b"{", b"\xff\xfe\x00", b'{"a": NaN}', b"[" * 99999])
def test_files_that_are_no_json_or_missing_are_refused(tmp_path, rubbish, refused):
    (tmp_path / "a.json").write_bytes(rubbish)
    for name, code in (("a.json", "damaged"), ("nowhere.json", "unreadable")):
        refused(code, read_json, tmp_path / name, what="the list")
