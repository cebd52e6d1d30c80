"""Features from tables: every form reads alike, and what is wrong is named."""

import numpy as np
import openpyxl
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltacell.cell.readers.features import MERGED, NO_VALUE, NoFeatureError, reader
from deltacell.storage.tables import File

NAN = float("nan")
HEADER = ["Strain ID", "Gene", "fitness (26°)", "fitness, 30"]
ROWS = [
    ["YAL001C_tsq508", "tfc3-1", 0.5, None],
    ["yal001c_dma12", "tfc3", 0.25, 1.5],
    ["YDL227C_dma7", "ho", None, -2.0],
    ["YAL002W_sn2", "vps8", None, None],
    ["YAL003W_sn3", "efb1", 0.75, 0.0],
    ["YXX999W_sn1", "x", 4.0, 4.0],
]


def european():
    """The table as a spreadsheet of Europe saves it, with three empty columns."""
    rows = [["" if x is None else str(x).replace(".", ",") for x in row] for row in ROWS]
    return "\ufeff" + "".join(";".join([*row, "", "", ""]) + "\r\n" for row in [HEADER, *rows])


@pytest.fixture
def parquet(tmp_path):
    def write(**columns):
        path = tmp_path / "expression.parquet"
        pq.write_table(pa.table(columns), path)
        return path

    return write


@pytest.mark.parametrize("name", ["european.csv", "titled.xlsx", "a.parquet"])
def test_every_form_reads_alike(name, write, genes, tmp_path, reader_of):
    path = tmp_path / name
    if name.endswith(".parquet"):
        pl.DataFrame(ROWS, schema=HEADER, orient="row").write_parquet(path)
    elif name.endswith(".xlsx"):
        book = openpyxl.Workbook()
        for row in [["Table S1"], [], HEADER, *ROWS]:
            book.active.append(row)
        book.create_sheet("more").append(["remarks"])
        book.save(path)
    else:
        write(european(), name)
    assert reader_of(path) == "features_table"
    feature, source = reader.read(path, genes=genes)
    assert (feature.name, feature.columns) == (name.split(".")[0], tuple(HEADER[2:]))
    expected = np.full((6, 2), NAN, dtype=np.float32)
    expected[[0, 2, 3]] = [[0.375, 1.5], [0.75, 0], [NAN, -2]]
    assert np.array_equal(feature.values, expected, equal_nan=True)
    assert (source.counts.read, source.counts.kept) == (6, 3)
    assert source.counts.dropped == {"unknown gene": 1, NO_VALUE: 1, MERGED: 1}
    assert (source.into, len(source.sha256)) == (feature.name, 64)
    merged = "1, merged by the mean, such as YAL001C (TFC3)"
    assert source.notes["genes_with_several_rows"] == merged
    assert source.notes["unknown_genes"] == "YXX999W_sn1"
    assert source.notes["text_columns_left_out"] == "'Gene'"
    assert source.notes.get("sheets_left_out") == ("'more'" if "xlsx" in name else None)


def test_row_names_of_r_the_index_of_pandas_and_types_of_parquet(write, parquet, genes, reader_of):
    path = write("x\ty\nYAL001C\t1\t2\nYDL227C\t3\tNA\nVPS8\t3\t4\n")
    assert reader_of(path) == "features_table"
    feature, _ = reader.read(path, genes=genes)
    assert feature.columns == ("x", "y")
    assert np.array_equal(feature.values[[0, 3]], [[1, 2], [3, NAN]], equal_nan=True)
    feature, source = reader.read(write(",gene,x\n0,HO,5\n1,TFC3,7\n", "a.csv"), genes=genes)
    assert feature.columns == ("x",)
    assert "index_left_out" in source.notes
    names = pa.array(["HO", "TFC3"]).dictionary_encode()
    path = parquet(gene=names, essential=[False, True], __index_level_0__=[0, 1], x=[[1.0], [2.0]])
    assert reader_of(path) == "features_table"
    feature, _ = reader.read(path, genes=genes)
    assert (feature.columns, feature.values[[3, 0], 0].tolist()) == (("essential",), [0, 1])


@pytest.mark.parametrize(
    "text",
    [
        "gene1,gene2,weight\nYAL001C,YAL002W,0.5\n",
        "gene,gene,weight\nYAL001C,YAL002W,0.5\n",
        "gene,other,weight\nYAL001C,YAL002W,0.5\n",
        "gene,name,weight\nTFC3,VPS8,0.5\n",
        "source,gene,weight\nTFC3,YAL002W,0.5\n",
        "protein,gene,weight\nTFC3,YAL002W,0.5\nTFC3,YAL003W,0.5\n",
        "Query strain ID,Array strain ID,x\nYAL001C_sn1,YAL002W_dma2,0.5\n",
        "a,b,c,score\nYAL001C,YAL002W,YAL003W,-0.5\n",
        "YAL001C,0.5\nYAL002W,0.75\n",
        "TFC3,5\nVPS8,7\n",
        "gene,term\nYAL001C,GO:0001\n",
        "sample,concentration\nbuffer,0.5\nglucose,2\n",
    ],
)
def test_a_table_with_two_genes_no_header_or_no_number_is_no_feature(text, write):
    assert not reader.find(File(write(text, "a.csv")))


@pytest.mark.parametrize("columns", ["orf,name", "gene,symbol", "systematic name,gene"])
def test_two_names_of_one_gene_are_no_edge(columns, write, genes, reader_of, refused):
    text = f"{columns},fitness\nYAL001C,TFC3,0.5\nYAL002W,VPS8,0.75\n"
    assert reader_of(write(text, "a.csv")) == "features_table"
    two = write("orf,gene,x\nYAL001C,VPS8,0.5\nYAL002W,HO,0.75\n", "a.csv")
    error = refused("two-genes-per-row", lambda: reader.read(two, genes=genes))
    assert isinstance(error, NoFeatureError)


FIXTURES = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
NAMES = st.sampled_from(["YAL001C", "tfc3", "YAL002W_tsq1", "VPS8", "YAL003W", "ho", "YDL227C"])
VALUES = st.none() | st.floats(-1e6, 1e6, width=32)


@FIXTURES
@given(data=st.data())
def test_order_of_rows_and_genes_does_not_matter_and_missing_stays_missing(write, genes, data):
    rows = data.draw(st.lists(st.tuples(NAMES, VALUES, VALUES), min_size=2, max_size=12))
    rows += [("YAL001C", 1.0, -1.0), ("YDL227C", 2.0, 3.0)]

    def table(rows):
        lines = ["\t".join([n, *("" if x is None else repr(x) for x in v)]) for n, *v in rows]
        return write("orf\tx\ty\n" + "\n".join(lines) + "\n", "a.tsv")

    feature, source = reader.read(table(rows), genes=genes)
    shuffled = data.draw(st.permutations(rows))
    order = data.draw(st.permutations(range(len(genes))))
    other, again = reader.read(table(shuffled), genes=genes.take(order))
    assert np.array_equal(other.values, feature.values[list(order)], equal_nan=True)
    assert again.counts == source.counts
    index = genes.resolve([name.split("_")[0] for name, *_ in rows])
    for gene in range(len(genes)):
        for i, column in enumerate(feature.columns):
            fields = [r["_xy".index(column)] for r, g in zip(rows, index, strict=True) if g == gene]
            held = [x for x in fields if x is not None]
            mean = np.mean(np.float32(held), dtype=float) if held else NAN
            assert feature.values[gene, i] == pytest.approx(mean, rel=1e-6, abs=1e-3, nan_ok=True)


def test_text_among_numbers_is_counted_and_columns_of_it_are_left_out(write, genes, refused):
    text = "gene,x,batch,essential,never,remark\nHO,1,7,1,,a\nTFC3,2,7,,,b\nVPS8,,7,,,7\n"
    feature, source = reader.read(write(text, "a.csv"), genes=genes)
    assert feature.columns == ("x",)
    assert source.notes["columns_of_one_value_left_out"] == "'batch', 'essential'"
    assert source.notes["columns_without_a_value"] == "'never'"
    assert source.notes["text_columns_left_out"] == "'remark'"
    assert (source.counts.kept, source.counts.dropped) == (2, {NO_VALUE: 1})
    lines = ["gene;fitness;size"]
    lines += [f"YAL00{i}W;{i},5;1{i}" for i in range(1, 8)]
    lines += ["HO;high;1", "HO;low;1", "HO;?;2", "HO;1,0;big", ";3,0;4", "TFC3;1e99;5", ";;"]
    path = write("\n".join(lines), "a.csv")
    error = refused("bad-rows", lambda: reader.read(path, genes=genes))
    assert (error.line, [*error.fields["kinds"].values()]) == (9, [4, 1, 1])


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("gene,x\nP53,1\nBRCA1,2\n", "no-gene-of-the-cell"),
        ("gene,x\nHO,1\nTFC3,1\n", "constant-feature"),
        ("gene,x\nHO,\nNOPE,1\nNO,2\n", "constant-feature"),
    ],
)
def test_a_table_without_a_feature_of_the_cell_says_so(text, code, write, genes, refused):
    error = refused(code, lambda: reader.read(write(text, "a.csv"), genes=genes))
    assert isinstance(error, NoFeatureError)


@pytest.mark.parametrize(
    ("columns", "code", "line"),
    [
        ({"gene": ["HO", "TFC3"], "x": [1.0, 1e300]}, "bad-rows", 2),
        ({"gene": ["HO", None], "x": [1.0, 2.0]}, "bad-rows", 2),
        ({"gene": ["HO", "TFC3"], "x": [[1.0, 2.0], [1.0]]}, "other-format", None),
    ],
)
def test_parquet_features_that_do_not_fit_are_refused_with_their_line(
    columns, code, line, parquet, genes, refused
):
    assert refused(code, lambda: reader.read(parquet(**columns), genes=genes)).line == line
