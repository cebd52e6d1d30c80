from __future__ import annotations

import gzip
import hashlib
import io
import math
import zipfile

import numpy as np
import pytest

from deltacell.errors import InputError
from deltacell.table import open_text, open_workbook, peek, read_table

TEXT = b"gene\tscore\nYAL001C\t1.5\nHO\t-2\n"


@pytest.fixture
def write(tmp_path):
    def write(data, name="file.txt"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


def zipped(members, method=zipfile.ZIP_STORED):
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return memory.getvalue()


def refused(call, path, code, line=None):
    with pytest.raises(InputError) as caught:
        call(path)
    assert (caught.value.code, caught.value.where, caught.value.line) == (code, path, line)


@pytest.mark.parametrize(
    "data",
    [
        TEXT,
        b"\xef\xbb\xbf" + TEXT,
        b"\xef\xbb\xbf" + TEXT.replace(b"\n", b"\r\n"),
        TEXT.replace(b"\n", b"\r"),
        TEXT.removesuffix(b"\n"),
        TEXT.replace(b"gene\t", b" gene \t"),
        gzip.compress(TEXT),
        zipped({"a.txt": TEXT}),
        zipped({"folder/": b"", "folder/a.txt": TEXT, "__MACOSX/._a.txt": b"junk"}),
    ],
    ids=["plain", "bom", "bom+crlf", "cr", "no end", "spaces", "gz", "zip", "mac zip"],
)
def test_the_same_table_in_any_wrapping(write, data):
    table = read_table(write(data, "told by content.dat"))
    columns = {"gene": ["YAL001C", "HO"], "score": ["1.5", "-2"]}
    assert table.frame.to_dict(as_series=False) == columns
    assert (table.lines.tolist(), table.floats("score").tolist()) == ([2, 3], [1.5, -2])
    assert table.sha256 == hashlib.sha256(data).hexdigest()


def test_blank_lines_are_skipped_and_the_others_keep_their_numbers(write):
    table = read_table(write(b"\n\na\tb\r\n\r\n1\tx\n\n\n2\ty\n\n"))
    assert table.lines.tolist() == [5, 8]
    assert table.error(1, "bad row").line == 8
    table = read_table(write(b"1 2\n3 4\n"), separator=" ", columns=["i", "j"])
    assert (table.lines.tolist(), table.strings("j").to_list()) == ([1, 2], ["2", "4"])
    assert len(read_table(write(b"a\tb\n"))) == 0


def test_fields_are_taken_as_written(write):
    table = read_table(write(b"a\tb\n\"x\tNA\n\t y \nnull\tO'1\n"))
    columns = {"a": ['"x', "", "null"], "b": ["NA", " y ", "O'1"]}
    assert table.frame.to_dict(as_series=False) == columns


@pytest.mark.parametrize(
    ("data", "code", "line"),
    [
        (b"a\tb\n1\t2\n3\n", "wrong-width", 3),
        (b"a\tb\n\n1\t2\n\n3\t4\t5\n", "wrong-width", 5),
        (b"a\tb\n1\t2\n3\t4\r5\t6\t7\n", "wrong-width", 4),
        (b"a\tb\n1\t\xff\n", "not-utf8", 2),
        (b"\n\na\tb\n1\t\xe9t\xe9\n", "not-utf8", 4),
        (b"", "empty-file", None),
        (b"\n\n\r\n", "empty-file", None),
        (b"\xef\xbb\xbf", "empty-file", None),
        (b"\n\na\tb\tb\n", "duplicate-column", 3),
        (b"a\tc\n1\t2\n", "missing-columns", 1),
        (b"a\tb\n1\t" + b"x" * 3_000_000 + b"\n", "unreadable", None),
        (gzip.compress(TEXT)[:-9], "unreadable", None),
        (gzip.compress(TEXT)[:20], "unreadable", None),
        (zipped({"a.txt": TEXT, "b.txt": TEXT}), "several-files", None),
        (zipped({"folder/": b""}), "several-files", None),
        (zipped({"a.txt": TEXT})[:40], "unreadable", None),
    ],
    # Packed bytes hold the time, and a test has to have one name in every process.
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_named_with_its_line(write, data, code, line):
    refused(lambda path: read_table(path, required=["a", "b"]), write(data), code, line)


def test_files_that_cannot_be_read_say_so(write, tmp_path):
    data = bytearray(zipped({"a.txt": TEXT}))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    refused(open_text, write(bytes(data)), "unreadable")
    for path in (tmp_path / "nowhere", tmp_path):
        for call in (open_text, peek):
            refused(call, path, "unreadable")
    for data in (b"no workbook", b"\xff" * 99):
        book = open_workbook(write(zipped({"[Content_Types].xml": data})), "")
        refused(lambda _, book=book: book.sheet_names(), book.path, "unreadable")


@pytest.mark.parametrize("bad", ["x", "", "NaN", "inf", "1,5", "1e999", "0x10", "--1", "1 2"])
def test_what_is_not_a_finite_number_is_an_error_with_its_line(write, bad):
    path = write(f"a\tb\n1\t1\n\n1\t{bad}\n".encode())
    refused(lambda path: read_table(path).floats("b"), path, "not-a-number", 4)


def test_missing_numbers_are_allowed_where_they_are(write):
    numbers = read_table(write(b"a\tb\n1\t\n1\tNA\n1\tnan\n1\t 2e-3 \n")).floats("b", missing=True)
    assert np.isnan(numbers).tolist() == [True, True, True, False]
    assert math.isclose(numbers[3], 0.002)
    path = write(b"a\tb\n1\tinf\n")
    refused(lambda path: read_table(path).floats("b", missing=True), path, "not-a-number", 2)


def test_peeking_unpacks_the_beginning(write):
    long = TEXT + b"".join(b"A\t%d\n" % (i * i) for i in range(100_000))
    utf16 = long.decode().encode("utf-16")
    for data in (long, gzip.compress(long), zipped({"a": long}), b"\xef\xbb\xbf" + long, utf16):
        assert peek(write(data), 2) == ["gene\tscore", "YAL001C\t1.5"]
    assert peek(write(gzip.compress(long)[:-9]), 1) == ["gene\tscore"]
    assert peek(write(b"")) == []
    refused(peek, write(gzip.compress(TEXT)[:-9]), "unreadable")


def test_a_workbook_is_handed_on_whole(write):
    workbook = zipped({"[Content_Types].xml": b"<x/>", "xl/workbook.xml": b"<x/>"})
    assert open_text(write(workbook)).is_spreadsheet
    inside = open_text(write(zipped({"table.xlsx": workbook})))
    assert inside.is_spreadsheet
    assert inside.data == workbook


def test_a_file_that_is_made_to_fill_the_memory_is_refused(write, monkeypatch):
    monkeypatch.setattr("deltacell.table._ALWAYS_UNPACKED", 1 << 20)
    bomb = b"YAL001C\tYAL002W\n" * 300_000
    members = {"edges.tsv": bomb}
    for data in (gzip.compress(bomb), zipped(members, zipfile.ZIP_DEFLATED)):
        refused(open_text, write(data), "decompression-bomb")
    book = zipped({**members, "[Content_Types].xml": b""}, zipfile.ZIP_DEFLATED)
    refused(lambda path: open_workbook(path, "x"), write(book), "decompression-bomb")
    # What is not packed is as large as it is.
    assert len(open_text(write(bomb)).data) == len(bomb)
