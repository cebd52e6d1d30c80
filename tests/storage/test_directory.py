import errno
import json
import os
import resource
import shutil
import subprocess
import sys

import pyarrow as pa
import pytest

from deltacell import storage
from deltacell.base.files import new_file, seal_of

PARTS = {
    "numbers": pa.table({"n": pa.array(range(1000), pa.int64())}),
    "names": pa.table({"name": pa.array(["a", None, "é"])}),
    "nothing": pa.table({"x": pa.array([], pa.float32())}),
}
META = {"relations": [{"name": "a", "directed": True}], "synthetic": None, "n": {"x": 0.1}}


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "thing"
    storage.write(path, "cell", PARTS, META)
    return path


def manifest_of(path):
    return json.loads((path / "manifest.json").read_text(encoding="utf-8"))


def rewrite(path, manifest, *, seal=False):
    if seal:
        manifest["seal"] = seal_of(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def names_of(folder):
    return sorted(entry.name for entry in folder.iterdir())


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_tables_and_meta_read_equal_those_written(stored, refused):
    back = storage.read(stored, "cell")
    assert list(back.parts) == list(PARTS)
    assert all(back.parts[name].equals(table) for name, table in PARTS.items())
    assert back.meta == META
    assert back.checksum == storage.checksum(PARTS) == manifest_of(stored)["checksum"]
    chunked = pa.concat_tables([PARTS["numbers"].slice(0, 10), PARTS["numbers"].slice(10)])
    assert storage.checksum({**PARTS, "numbers": chunked}) == back.checksum
    one, other = ({name: PARTS["numbers"]} for name in ("numbers", "other"))
    assert storage.checksum(one) != storage.checksum(other)
    refused("wrong-kind", storage.read, stored, "screen")


@pytest.mark.parametrize("at", [0, 100, -1])
def test_a_damaged_part_is_noticed(stored, at, refused):
    file = stored / "numbers.arrow"
    whole = file.read_bytes()
    data = bytearray(whole)
    data[at] ^= 1
    file.write_bytes(bytes(data))
    assert refused("damaged", storage.read, stored, "cell").where == file
    for data in (b"", b"junk" * 100, whole[:200]):
        file.write_bytes(data)
        refused("damaged", storage.read, stored, "cell", verify=False)
    file.unlink()
    refused("damaged", storage.read, stored, "cell")


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: m["meta"]["relations"][0].update(directed=False),
        lambda m: m.update(kind="screen"),
        lambda m: m["parts"].pop("numbers"),
        lambda m: m.update(checksum="0" * 64),
    ],
)
def test_an_edited_manifest_is_noticed(stored, edit, refused):
    manifest = manifest_of(stored)
    edit(manifest)
    rewrite(stored, manifest_of(stored))
    assert storage.read(stored, "cell").meta == META  # Other spaces are not an edit.
    rewrite(stored, manifest)
    refused("damaged", storage.read, stored, "cell")


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"[]", b"null", b"7", b"\xff\xfe", b"[" * 100_000),
        b'{"format": "deltacell"}',
        b'{"format": "deltacell", "schema": 1, "parts": [], "meta": {}, "kind": "cell"}',
        b'{"format": "deltacell", "schema": 1, "parts": {"a": 3}}',
    ],
)
def test_a_damaged_manifest_is_a_store_error(stored, text, refused):
    (stored / "manifest.json").write_bytes(text)
    assert refused("damaged", storage.read, stored, "cell").where == stored / "manifest.json"


def test_foreign_directories_and_other_versions_are_refused(stored, tmp_path, refused):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file", tmp_path / "nowhere"):
        refused("not-a-store", storage.read, path, "cell")
    for change in ({"schema": 99}, {"format": "other"}):
        rewrite(stored, manifest_of(stored) | change)
        refused("other-version", storage.read, stored, "cell")


@pytest.mark.parametrize(
    "outside",
    ["../secret.arrow", "/etc/hostname", "sub/numbers.arrow", "..", ""],
)
def test_a_file_not_beside_the_manifest_is_not_opened(stored, outside, monkeypatch, refused):
    storage.write(stored.parent / "other", "cell", PARTS, {})
    (stored.parent / "other" / "numbers.arrow").rename(stored.parent / "secret.arrow")
    manifest = manifest_of(stored)
    manifest["parts"]["numbers"]["file"] = outside
    rewrite(stored, manifest, seal=True)
    opened = []
    real = storage.sha256_of_file
    monkeypatch.setattr(
        storage.directory, "sha256_of_file", lambda f: opened.append(f.name) or real(f)
    )
    refused("damaged", storage.read, stored, "cell")
    assert opened == []


def test_an_empty_working_directory_is_taken_over_and_a_link_followed(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    storage.write(".", "cell", PARTS, META)
    assert storage.read(tmp_path / "empty", "cell").meta == META
    assert names_of(tmp_path) == ["empty"]
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    storage.write(tmp_path / "link", "cell", PARTS, {"new": 1}, overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert storage.read(tmp_path / "empty", "cell").meta == {"new": 1}


def test_foreign_and_damaged_directories_are_not_written_over(tmp_path, stored, refused):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    storage.write(tmp_path / "screen", "screen", PARTS, META)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text("{")
    before = contents(tmp_path)
    for name in ("foreign", "damaged", "file", "screen"):
        options = {"overwrite": True}
        refused("exists", storage.write, tmp_path / name, "cell", PARTS, META, **options)
    refused("exists", storage.write, stored, "cell", PARTS, META)
    assert contents(tmp_path) == before


def test_directories_of_ours_within_are_replaced_and_strangers_are_not(tmp_path, refused):
    def save(path, **options):
        with storage.new_directory(path, "import", **options) as folder:
            storage.write(folder / "cell", "cell", PARTS, META)
            storage.write(folder / "screens" / "one", "screen", PARTS, META)
            storage.write_manifest(folder, "import", {}, {})

    save(tmp_path / "all")
    save(tmp_path / "all", overwrite=True)
    assert storage.read(tmp_path / "all" / "screens" / "one", "screen").meta == META
    for stranger in ("thesis.txt", "notes/today.txt", "screens/one/notes.txt"):
        file = tmp_path / "all" / stranger
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
        before = contents(tmp_path)
        refused("exists", save, tmp_path / "all", overwrite=True)
        assert contents(tmp_path) == before
        file.unlink()


@pytest.mark.parametrize("exchange", [True, False])
def test_overwriting_replaces_all_of_it(stored, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(storage.directory, "_exchanged", lambda one, other: False)
    storage.write(stored, "cell", {"new": PARTS["names"]}, {"new": 1}, overwrite=True)
    assert storage.read(stored, "cell").meta == {"new": 1}
    assert {p.name for p in stored.iterdir()} == {"manifest.json", "new.arrow"}
    assert names_of(stored.parent) == ["thing"]


def test_when_the_new_one_cannot_be_put_there_the_old_one_comes_back(stored, monkeypatch, refused):
    monkeypatch.setattr(storage.directory, "_exchanged", lambda one, other: False)
    real = type(stored).rename

    def rename(path, target):
        if path.name.endswith(".tmp"):
            raise OSError(errno.EIO, "Input/output error")
        return real(path, target)

    monkeypatch.setattr(type(stored), "rename", rename)
    refused("not-written", storage.write, stored, "cell", {}, {}, overwrite=True)
    assert storage.read(stored, "cell").meta == META
    assert names_of(stored.parent) == ["thing"]


@pytest.mark.parametrize("limit", [0, 5_000, None])
def test_a_disk_that_fills_up_leaves_nothing(tmp_path, stored, monkeypatch, limit, refused):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = contents(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit is None:
        monkeypatch.setattr(os, "fsync", full)
    else:
        # For real: no file may be longer.
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        for path in (tmp_path / "new" / "folder" / "cell", stored):
            refused("not-written", storage.write, path, "cell", PARTS, META, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(tmp_path) == before
    assert names_of(tmp_path) == ["thing"]


def test_an_interruption_leaves_nothing_either(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(ValueError, match="JSON"):
        storage.write(tmp_path / "cell", "cell", PARTS, {"x": float("nan")})
    monkeypatch.setattr(storage.directory, "write_manifest", interrupted)
    with pytest.raises(KeyboardInterrupt):
        storage.write(tmp_path / "a" / "cell", "cell", PARTS, META)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("came", ["thesis", "cell", "file", "screen"])
@pytest.mark.parametrize("overwrite", [True, False])
def test_files_put_in_place_meanwhile_are_left_alone(
    tmp_path,
    monkeypatch,
    exchange,
    came,
    overwrite,
    refused,
):
    """Between the check of a place and the rename anything may be put there."""
    path = tmp_path / "thing"
    if overwrite:
        storage.write(path, "cell", PARTS, META)
    if not exchange:
        monkeypatch.setattr(storage.directory, "_exchanged", lambda one, other: False)
    flush = storage.directory.flush

    def then_something_comes(entry):
        flush(entry)
        if not entry.name.endswith(".tmp"):
            return
        monkeypatch.setattr(storage.directory, "flush", flush)
        if overwrite:
            shutil.rmtree(path)
        if came == "file":
            path.write_text("mine")
        elif came == "thesis":
            path.mkdir()
            (path / "thesis.tex").write_text("all of it")
        else:
            storage.write(path, came, {}, {"by": "another"})

    monkeypatch.setattr(storage.directory, "flush", then_something_comes)
    if overwrite and came == "cell":
        storage.write(path, "cell", {}, {"by": "me"}, overwrite=True)
        assert storage.read(path, "cell").meta == {"by": "me"}
        return
    mine = {"by": "me"}
    refused("destination-changed", storage.write, path, "cell", {}, mine, overwrite=overwrite)
    assert names_of(tmp_path) == ["thing"]
    if came == "file":
        assert path.read_text() == "mine"
    elif came == "thesis":
        assert contents(path) == {"thesis.tex": b"all of it"}
    else:
        assert storage.read(path, came).meta == {"by": "another"}


def test_remains_of_a_killed_writer_are_removed_by_the_next(tmp_path):
    left = tmp_path / "left"
    script = (
        "import os, sys\nfrom deltacell.base import files\nfrom deltacell import storage\n"
        "with files.new_file(sys.argv[1] + '/a.json') as file:\n"
        "    file.write_text('half')\n"
        "    with storage.new_directory(sys.argv[1] + '/cell', 'cell'):\n        os._exit(9)\n"
    )
    left.mkdir()
    assert subprocess.run([sys.executable, "-c", script, str(left)]).returncode == 9
    assert len(names_of(left)) == 2
    (left / ".mine.tmp").write_text("a person's")
    with new_file(left / "other") as living:
        living.write_text("whole")
        # Of a process that lives, as a second one in the same folder sees it.
        again = "import sys, deltacell.base.files as f; f.write_text(*sys.argv[1:], what='')"
        subprocess.run([sys.executable, "-c", again, str(left / "b"), "text"], check=True)
        assert names_of(left) == [".mine.tmp", living.name, "b"]
    assert names_of(left) == [".mine.tmp", "b", "other"]
