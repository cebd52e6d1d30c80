"""Any file as a table of text with the lines of its rows, and what is refused."""

import gzip
import hashlib
import io
import zipfile

import numpy as np
import openpyxl
import polars as pl
import pytest

from deltacell.storage.tables import File, numbers_of, open_text

TEXT = b"gene\tscore\nYAL001C\t1.5\nHO\t-2\n"


def zipped(members, method=zipfile.ZIP_STORED):
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return memory.getvalue()


def workbook(*rows):
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    memory = io.BytesIO()
    book.save(memory)
    return memory.getvalue()


def parquet(**columns):
    memory = io.BytesIO()
    pl.DataFrame(columns).write_parquet(memory)
    return memory.getvalue()


def below(path, at=0, **options):
    return File(path).sheets[0].below(at, **options)


@pytest.mark.parametrize(
    "data",
    [
        TEXT,
        b"\xef\xbb\xbf" + TEXT.replace(b"\n", b"\r\n"),
        TEXT.replace(b"\n", b"\r"),
        TEXT.removesuffix(b"\n"),
        TEXT.replace(b"gene\t", b" gene \t"),
        TEXT.replace(b"\t", b";").replace(b"1.5", b"1,5"),
        TEXT.replace(b"\t", b" | "),
        TEXT.replace(b"\t", b"   "),
        TEXT.replace(b"HO", b'"HO"'),
        TEXT.decode().encode("utf-16"),
        gzip.compress(TEXT, mtime=0),
        zipped({"a.txt": TEXT}),
        zipped({"folder/": b"", "folder/a.txt": TEXT, "__MACOSX/._a.txt": b"junk"}),
        workbook(["gene", "score"], ["YAL001C", 1.5], ["HO", -2]),
        zipped({"a.xlsx": workbook(["gene", "score"], ["YAL001C", "1.5"], ["HO", -2])}),
        parquet(gene=["YAL001C", "HO"], score=[1.5, -2.0]),
    ],
)
def test_the_same_table_in_any_form(write, data):
    table = below(write(data, "told by content.dat"))
    assert table.frame.columns == ["gene", "score"]
    assert table.frame["gene"].to_list() == ["YAL001C", "HO"]
    assert table.numbers("score").tolist() == [1.5, -2]
    first = 1 if data.startswith(b"PAR1") else 2
    assert table.lines.tolist() == [first, first + 1]
    assert table.sha256 == hashlib.sha256(data).hexdigest()


def test_lines_are_counted_over_titles_and_blank_lines(write):
    table = below(write(b"A title\n\n#a\tb\r\n\r\n1\tx\n\t\n\n2\ty\n\n"), 1)
    assert (table.frame.columns, table.lines.tolist()) == (["a", "b"], [5, 8])
    assert File(write(b"<My [screen]> {2}\na\tb\n1\tx\n")).sheets[0].separator == "\t"
    table = below(write("größe\t1\n".encode("latin-1")), None, names=["a", "b"])
    assert (table.frame.row(0), table.lines.tolist()) == (("größe", "1"), [1])
    table = below(write(workbook(["A title"], [], ["a", "b"], [None, 1e-30], ["x", "4.5E-1"])), 1)
    assert table.lines.tolist() == [4, 5]
    # A number beside a text must not be rounded.
    assert table.numbers("b").tolist() == [1e-30, 0.45]


def test_headers_without_names_twice_or_one_short_as_r_writes_them(write):
    assert File(write(b"\ta\ta\n1\t2\t3\n")).sheets[0].header(0) == ["column 1", "a", "a (3)"]
    assert File(write(b"x\ty\nHO\t1\t2\n")).sheets[0].header(0) == ["column 1", "x", "y"]


def test_quotes_are_text_where_no_field_is_quoted(write):
    data = b'a\tb\n"x\tNA\nsay "y"\tO\'1\n'
    assert below(write(data), quotes=False).frame["a"].to_list() == ['"x', 'say "y"']
    assert below(write(b'a,b\n"x, y",1\n')).frame["b"].to_list() == ["1"]


def test_rows_of_another_width_are_bad_and_told_with_their_lines(write, refused):
    path = write(b"a\tb\n\n1\t2\n\n3\n4\t5\t6\n")
    table = below(path)
    table.mark_bad("small", "a", table.numbers("a") < 2)
    error = refused("bad-rows", table.raise_if_bad)
    assert (error.where, error.line) == (path, 3)
    assert error.fields["kinds"] == {"other than 2 columns": 2, "small": 1}
    assert "Every row" in str(refused("bad-rows", below, write(b"a\tb\n1\n2\n")).fix)


@pytest.mark.parametrize("bad", ["x", "inf", "1e999", "1e39", "0x10", "--1", "1 2"])
def test_values_that_are_no_finite_numbers_are_bad_rows(write, bad, refused):
    table = below(write(f"a\tb\n1\t1.5\n\n1\t{bad}\n1\tNA\n1\t\n".encode()))
    assert np.isnan(table.numbers("b")).tolist() == [False, True, True, True]
    error = refused("bad-rows", table.raise_if_bad)
    assert (error.line, [*error.fields["kinds"].values()]) == (4, [1])
    table.numbers("b", required=True)
    assert [*refused("bad-rows", table.raise_if_bad).fields["kinds"].values()] == [4]


@pytest.mark.parametrize(
    ("written", "sure", "numbers"),
    [
        (["1,5", "\u22122,25"], False, [1.5, -2.25]),
        (["1,234", "2,345"], False, None),
        (["1,234", "2,345"], True, [1.234, 2.345]),
        (["1,5", "2.5"], False, None),
    ],
)
def test_commas_between_digits(written, sure, numbers):
    values, bad = numbers_of(pl.Series(written), decimal_comma=sure)
    assert bad.any() if numbers is None else values.tolist() == numbers


def test_files_that_cannot_be_unpacked_or_read_say_so(write, tmp_path, refused):
    packed, several = gzip.compress(TEXT, mtime=0), zipped({"a.txt": TEXT, "b.txt": TEXT})
    encrypted = bytearray(zipped({"a.txt": TEXT}))
    encrypted[6] |= 1
    encrypted[encrypted.index(b"PK\x01\x02") + 8] |= 1
    for data in (packed[:-9], packed[:20], zipped({"a.txt": TEXT})[:40], bytes(encrypted)):
        refused("unreadable", open_text, write(data))
    for data in (several, zipped({"folder/": b""})):
        refused("several-files", open_text, write(data))
    for path in (tmp_path / "nowhere", tmp_path):
        refused("unreadable", lambda path=path: File(path).head)
    book = zipped({"[Content_Types].xml": b"no workbook"})
    for data in (book, parquet(a=[1])[:-9], b"PK\x03\x04 and no more"):
        refused("unreadable", lambda path: File(path).sheets, write(data))
    for data in (
        several,
        bytes(range(256)),
        b'\n{"a": 1,\n"b": 2}\n',
        b"<?xml version='1.0', a=2?>\n",
    ):
        assert File(write(data)).sheets == []


def test_the_head_unpacks_the_beginning(write, refused):
    long = TEXT + b"".join(b"A\t%d\n" % (i * i) for i in range(100_000))
    for data in (
        long,
        gzip.compress(long, mtime=0),
        zipped({"a": long}),
        long.decode().encode("utf-16"),
    ):
        assert File(write(data)).head[:2] == ["gene\tscore", "YAL001C\t1.5"]
    refused("unreadable", lambda path: File(path).head, write(gzip.compress(TEXT, mtime=0)[:-9]))


def test_a_file_that_is_made_to_fill_the_memory_is_refused(write, monkeypatch, refused):
    monkeypatch.setattr("deltacell.storage.tables.unpack._ALWAYS_UNPACKED", 1 << 20)
    bomb = b"YAL001C\tYAL002W\n" * 300_000
    members = {"edges.tsv": bomb}
    book = zipped({**members, "[Content_Types].xml": b""}, zipfile.ZIP_DEFLATED)
    for data in (gzip.compress(bomb, mtime=0), zipped(members, zipfile.ZIP_DEFLATED), book):
        refused("decompression-bomb", open_text, write(data))
    # What is not packed is as large as it is.
    assert len(open_text(write(bomb))[0]) == len(bomb)
