from __future__ import annotations

import gzip
import io
import math
import zipfile

import numpy as np
import pytest

from deltacell.errors import InputError
from deltacell.table import open_text, open_workbook, peek, read_table


@pytest.fixture
def write(tmp_path):
    def write(data, name="file.txt"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


def zipped(members):
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return memory.getvalue()


TEXT = b"gene\tscore\nYAL001C\t1.5\nHO\t-2\n"


@pytest.mark.parametrize(
    "data",
    [
        TEXT,
        b"\xef\xbb\xbf" + TEXT,
        TEXT.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + TEXT.replace(b"\n", b"\r\n"),
        TEXT.replace(b"\n", b"\r"),
        TEXT.removesuffix(b"\n"),
        TEXT.replace(b"gene\t", b" gene \t"),
        gzip.compress(TEXT),
        zipped({"a.txt": TEXT}),
        zipped({"folder/": b"", "folder/a.txt": TEXT, "__MACOSX/._a.txt": b"junk"}),
    ],
    ids=["plain", "bom", "crlf", "bom+crlf", "cr", "no end", "spaces", "gz", "zip", "mac zip"],
)
def test_the_same_table_in_any_wrapping(write, data):
    table = read_table(write(data, "told by content.dat"))
    assert table.frame.to_dict(as_series=False) == {
        "gene": ["YAL001C", "HO"],
        "score": ["1.5", "-2"],
    }
    assert table.lines.tolist() == [2, 3]
    assert table.floats("score").tolist() == [1.5, -2]
    assert len(table) == 2


def test_blank_lines_are_skipped_and_the_others_keep_their_numbers(write):
    path = write(b"\n\na\tb\r\n\r\n1\tx\n\n\n2\ty\n\n")
    table = read_table(path)
    assert table.lines.tolist() == [5, 8]
    with pytest.raises(InputError, match=r"file\.txt, line 8: bad row"):
        raise table.error(1, "bad row")


def test_a_file_without_a_header_starts_at_its_first_line(write):
    table = read_table(write(b"1 2\n3 4\n"), separator=" ", columns=["i", "j"])
    assert table.lines.tolist() == [1, 2]
    assert table.strings("j").to_list() == ["2", "4"]


def test_fields_are_taken_as_written(write):
    table = read_table(write(b"a\tb\n\"x\tNA\n\t y \nnull\tO'1\n"))
    assert table.frame.to_dict(as_series=False) == {
        "a": ['"x', "", "null"],
        "b": ["NA", " y ", "O'1"],
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a\tb\n1\t2\n3\n", r"line 3: 1 columns where 2 were expected"),
        (b"a\tb\n\n1\t2\n\n3\t4\t5\n", r"line 5: 3 columns where 2 were expected"),
        (b"a\tb\n1\t2\n3\t4\r5\t6\t7\n", r"line 4: 3 columns where 2"),
        (b"a\tb\n1\t\xff\n", r"line 2: byte 0xff is not UTF-8"),
        (b"\n\na\tb\n1\t\xe9t\xe9\n", r"line 4: byte 0xe9 is not UTF-8"),
        (b"", "the file is empty"),
        (b"\n\n\r\n", "the file is empty"),
        (b"\xef\xbb\xbf", "the file is empty"),
        (b"\n\na\ta\n", r"line 3: the column name 'a' stands twice"),
        (b"a\tc\n1\t2\n", r"line 1: the header lacks 'b'; it has 'a', 'c'"),
        (b"a\tb\n1\t" + b"x" * 3_000_000 + b"\n", "not a table of text"),
        (gzip.compress(TEXT)[:-9], "the gzip file is cut off or damaged"),
        (gzip.compress(TEXT)[:20], "the gzip file is cut off or damaged"),
        (zipped({"a.txt": TEXT, "b.txt": TEXT}), "2 files, and one was expected: 'a.txt', 'b"),
        (zipped({"folder/": b""}), "holds 0 files"),
        (zipped({"a.txt": TEXT})[:40], "the zip file is damaged"),
    ],
    # Packed bytes hold the time, and a test has to have one name in every process.
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(write, data, message):
    path = write(data)
    with pytest.raises(InputError, match=message) as error:
        read_table(path, required=["a", "b"] if b"a\tc" in data else [])
    assert str(error.value).startswith(str(path))


def test_an_encrypted_zip_says_so(write):
    data = bytearray(zipped({"a.txt": TEXT}))
    data[6] |= 1
    central = data.index(b"PK\x01\x02")
    data[central + 8] |= 1
    with pytest.raises(InputError, match="cannot be unpacked"):
        open_text(write(bytes(data)))


def test_a_file_that_is_not_there_says_so(tmp_path):
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            open_text(path)
        with pytest.raises(InputError, match="cannot be read"):
            peek(path)


def test_a_header_alone_is_a_table_without_rows(write):
    table = read_table(write(b"a\tb\n"))
    assert len(table) == 0
    assert table.floats("a").tolist() == []
    assert table.lines.tolist() == []


@pytest.mark.parametrize("bad", ["x", "", "NaN", "inf", "1,5", "1e999", "0x10", "--1", "1 2"])
def test_what_is_no_finite_number_is_an_error_with_its_line(write, bad):
    table = read_table(write(f"a\tb\n1\t1\n\n1\t{bad}\n".encode()))
    with pytest.raises(InputError, match=r"line 4: column 'b': .* is not a finite number"):
        table.floats("b")


def test_missing_numbers_are_allowed_where_they_are(write):
    table = read_table(write(b"a\tb\n1\t\n1\tNA\n1\tnan\n1\t 2e-3 \n"))
    numbers = table.floats("b", missing=True)
    assert np.isnan(numbers).tolist() == [True, True, True, False]
    assert math.isclose(numbers[3], 0.002)
    table = read_table(write(b"a\tb\n1\tinf\n"))
    with pytest.raises(InputError, match="line 2"):
        table.floats("b", missing=True)


def test_peeking_unpacks_the_beginning(write):
    long = TEXT + b"".join(b"A\t%d\n" % (i * i) for i in range(100_000))
    for data in (long, gzip.compress(long), zipped({"a": long}), b"\xef\xbb\xbf" + long):
        assert peek(write(data), 2) == ["gene\tscore", "YAL001C\t1.5"]
    assert peek(write(gzip.compress(long)[:-9]), 1) == ["gene\tscore"]
    assert peek(write(b"")) == []
    with pytest.raises(InputError, match="cut off"):
        peek(write(gzip.compress(TEXT)[:-9]))


def test_a_workbook_is_handed_on_whole(write):
    workbook = zipped({"[Content_Types].xml": b"<x/>", "xl/workbook.xml": b"<x/>"})
    assert open_text(write(workbook)).is_spreadsheet
    inside = open_text(write(zipped({"table.xlsx": workbook})))
    assert inside.is_spreadsheet
    assert inside.data == workbook


def test_the_checksum_is_that_of_the_file_as_it_lies_on_disk(write):
    import hashlib

    packed = gzip.compress(TEXT)
    assert read_table(write(packed)).sha256 == hashlib.sha256(packed).hexdigest()


def test_a_file_that_is_made_to_fill_the_memory_is_refused(tmp_path, write, monkeypatch):
    monkeypatch.setattr("deltacell.table._ALWAYS_UNPACKED", 1 << 20)
    bomb = b"YAL001C\tYAL002W\n" * 300_000
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("edges.tsv", bomb)
    for data in (gzip.compress(bomb), packed.getvalue()):
        with pytest.raises(InputError, match="made to fill the memory"):
            open_text(write(data))
    with zipfile.ZipFile(packed, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", b"")
    with pytest.raises(InputError, match="made to fill the memory"):
        open_workbook(write(packed.getvalue()), "x")
    # What is not packed is as large as it is.
    assert len(open_text(write(bomb)).data) == len(bomb)
