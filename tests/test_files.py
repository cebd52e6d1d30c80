from __future__ import annotations

import errno
import json
import os

import pytest

from deltacell.errors import StoreError
from deltacell.files import new_file, read_json, write_json, write_text


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def names_in(folder):
    return sorted(entry.name for entry in folder.iterdir())


class TestNewFile:
    def test_it_is_not_there_until_it_is_whole(self, tmp_path):
        file = tmp_path / "a.txt"
        with new_file(file) as temporary:
            temporary.write_text("half")
            assert not file.exists()
            assert temporary.parent == tmp_path
        assert file.read_text() == "half"
        assert names_in(tmp_path) == ["a.txt"]

    def test_an_error_in_the_block_leaves_what_was_there(self, tmp_path):
        file = tmp_path / "a.txt"
        file.write_text("old")

        def stopped():
            with new_file(file) as temporary:
                temporary.write_text("new")
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            stopped()
        assert file.read_text() == "old"
        assert names_in(tmp_path) == ["a.txt"]

    def test_a_block_that_writes_nothing_is_an_error(self, tmp_path):
        with pytest.raises(FileNotFoundError), new_file(tmp_path / "a.txt"):
            pass

    def test_it_is_on_the_disk_before_it_gets_its_name(self, tmp_path, monkeypatch):
        done = []
        fsync, replace = os.fsync, os.replace
        monkeypatch.setattr(os, "fsync", lambda h: (done.append("fsync"), fsync(h)))
        monkeypatch.setattr(os, "replace", lambda a, b: (done.append("replace"), replace(a, b)))
        write_text(tmp_path / "a.txt", "x", what="it")
        assert done == ["fsync", "replace", "fsync"]

    def test_a_folder_that_cannot_be_flushed_is_no_error_as_the_file_is_there(
        self, tmp_path, monkeypatch
    ):
        fsync, calls = os.fsync, []

        def second_fails(handle):
            calls.append(handle)
            return full() if len(calls) == 2 else fsync(handle)

        monkeypatch.setattr(os, "fsync", second_fails)
        write_text(tmp_path / "a.txt", "x", what="it")
        assert (tmp_path / "a.txt").read_text() == "x"


@pytest.mark.parametrize("at", ["fsync", "replace", "open"])
def test_a_full_disk_is_said_and_leaves_what_was_there(tmp_path, monkeypatch, at):
    file = tmp_path / "a.json"
    write_json(file, {"a": 1}, what="the result")
    monkeypatch.setattr(os, at, full)
    with pytest.raises(StoreError) as said:
        write_json(file, {"a": 2}, what="the result")
    assert (said.value.code, said.value.where) == ("not-written", file)
    assert json.loads(file.read_text()) == {"a": 1}
    assert names_in(tmp_path) == ["a.json"]


class TestJson:
    def test_what_is_written_is_read(self, tmp_path):
        data = {"text": "his3Δ", "none": None, "list": [1, 2.5, True], "path": "a\udcff"}
        write_json(tmp_path / "a.json", data, what="it")
        assert read_json(tmp_path / "a.json", what="it") == data
        assert "his3Δ" in (tmp_path / "a.json").read_text()

    def test_not_a_number_is_not_json(self, tmp_path):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write_json(tmp_path / "a.json", {"a": float("nan")}, what="it")
        assert names_in(tmp_path) == []

    @pytest.mark.parametrize("rubbish", [b"", b"{", b"\xff\xfe\x00", b'{"a": NaN}', b"[" * 99999])
    def test_rubbish_is_said(self, tmp_path, rubbish):
        (tmp_path / "a.json").write_bytes(rubbish)
        for name, code in (("a.json", "damaged"), ("nowhere.json", "unreadable")):
            with pytest.raises(StoreError) as said:
                read_json(tmp_path / name, what="the list")
            assert said.value.code == code
