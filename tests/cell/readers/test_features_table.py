"""Features from tables: every form reads alike, and what is wrong is named."""

from __future__ import annotations

import numpy as np
import openpyxl
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltacell.cell.readers import NoFeatureError, features_table, recognise
from deltacell.cell.readers.features import MERGED, NO_VALUE
from deltacell.errors import GeneNameError, InputError
from deltacell.screen import readers as screen_readers

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


def as_text(separator, decimal=".", missing="", quoted=False, empty=0):
    def field(value):
        if value is None:
            return missing
        text = str(value).replace(".", decimal) if isinstance(value, float) else value
        return f'"{text}"' if quoted or separator in text else text

    rows = [[*map(field, row), *[""] * empty] for row in [HEADER, *ROWS]]
    return "\n".join(separator.join(row) for row in rows) + "\n"


FORMS = {
    "tab.tsv": as_text("\t"),
    "packed.tsv.gz": as_text("\t", missing="NaN"),
    "comma.csv": as_text(",", missing="NA"),
    "quoted.csv": as_text(",", quoted=True, missing="n/a"),
    "european.csv": "\ufeff" + as_text(";", decimal=",", empty=3).replace("\n", "\r\n"),
    "tab-comma.txt": as_text("\t", decimal=","),
    "packed.csv.zip": as_text(","),
}


def saved_as_xlsx(path, above=()):
    book = openpyxl.Workbook()
    for row in [*above, HEADER, *ROWS]:
        book.active.append(row)
    book.save(path)
    return path


@pytest.fixture
def parquet(tmp_path):
    def write(**columns):
        path = tmp_path / "expression.parquet"
        pq.write_table(pa.table(columns), path)
        return path

    return write


def check(path, genes):
    assert screen_readers.recognise(path) is None
    assert recognise(path) == "features_table"
    feature, source = features_table.read(path, genes)
    assert feature.columns == ("fitness (26°)", "fitness, 30")
    expected = np.full((5, 2), NAN, dtype=np.float32)
    expected[0] = 0.375, 1.5
    expected[3] = NAN, -2
    expected[2] = 0.75, 0
    assert np.array_equal(feature.values, expected, equal_nan=True)
    assert (source.counts.read, source.counts.kept) == (6, 3)
    assert source.counts.dropped == {"unknown gene": 1, NO_VALUE: 1, MERGED: 1}
    assert (source.into, len(source.sha256)) == (feature.name, 64)
    assert "YAL001C (TFC3)" in source.notes["genes_with_several_rows"]
    assert "YXX999W_sn1" in source.notes["unknown_genes"]
    assert source.notes["text_columns_left_out"] == "'Gene'"
    return feature, source


@pytest.mark.parametrize("name", FORMS)
def test_every_text_form_reads_alike(name, write, genes):
    feature, source = check(write(FORMS[name], name), genes)
    assert feature.name == name.split(".")[0]
    assert "lines 2, 3" in source.notes["genes_with_several_rows"]


def test_xlsx_reads_alike_below_a_title_too(tmp_path, genes):
    check(saved_as_xlsx(tmp_path / "a.xlsx"), genes)
    path = saved_as_xlsx(tmp_path / "b.xlsx", above=[["Table S1"], []])
    assert "lines 4, 5" in check(path, genes)[1].notes["genes_with_several_rows"]


def test_further_sheets_are_spoken_of(tmp_path, genes):
    path = saved_as_xlsx(tmp_path / "a.xlsx")
    book = openpyxl.load_workbook(path)
    book.create_sheet("more")
    book.save(path)
    assert features_table.read(path, genes)[1].notes["sheets_left_out"] == "'more'"


def test_parquet_reads_alike(tmp_path, genes):
    path = tmp_path / "a.parquet"
    pl.DataFrame(ROWS, schema=HEADER, orient="row").write_parquet(path)
    check(path, genes)


def test_row_names_of_r(write, genes):
    path = write("x\ty\nYAL001C\t1\t2\nYDL227C\t3\tNA\nVPS8\t3\t4\n")
    assert recognise(path) == "features_table"
    feature, _ = features_table.read(path, genes)
    assert feature.columns == ("x", "y")
    assert np.array_equal(feature.values[[0, 3]], [[1, 2], [3, NAN]], equal_nan=True)


def test_the_index_of_pandas_is_left_out(write, parquet, genes):
    feature, source = features_table.read(write(",gene,x\n0,HO,5\n1,TFC3,7\n", "a.csv"), genes)
    assert feature.columns == ("x",)
    assert "index_left_out" in source.notes
    path = parquet(gene=["HO", "TFC3"], x=[1.0, 2.0], __index_level_0__=[0, 1])
    assert features_table.read(path, genes)[0].columns == ("x",)


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.list_(pa.float32(), 3)])
def test_a_column_of_lists(kind, parquet, genes):
    path = parquet(gene=["HO", "TFC3"], embedding=pa.array([[1, 2, 3], [4, 5, 3]], kind))
    assert recognise(path) == "features_table"
    feature, _ = features_table.read(path, genes, name="protein")
    assert (feature.name, feature.columns[0]) == ("protein", "embedding 1")
    assert feature.values[[3, 0]].tolist() == [[1, 2, 3], [4, 5, 3]]


def test_categories_and_truth_values(parquet, genes):
    path = parquet(gene=pa.array(["HO", "TFC3"]).dictionary_encode(), essential=[False, True])
    assert features_table.read(path, genes)[0].values[[3, 0], 0].tolist() == [0, 1]


@pytest.mark.parametrize(
    "text",
    [
        "gene1,gene2,weight\nYAL001C,YAL002W,0.5\n",
        "gene,gene,weight\nYAL001C,YAL002W,0.5\n",
        "gene,other,weight\nYAL001C,YAL002W,0.5\n",
        "gene,name,weight\nTFC3,VPS8,0.5\n",
        "source,gene,weight\nTFC3,YAL002W,0.5\n",
        "protein,gene,weight\nTFC3,YAL002W,0.5\nTFC3,YAL003W,0.5\n",
        "gene a,gene b,x,y\nTFC3,VPS8,0.5,2\n",
        "Query strain ID,Array strain ID,x\nYAL001C_sn1,YAL002W_dma2,0.5\n",
        "a,b,c,score\nYAL001C,YAL002W,YAL003W,-0.5\n",
        "YAL001C,YAL002W,0.5\nYAL001C,YAL003W,0.5\n",
        "YAL001C,0.5\nYAL002W,0.75\n",
        "TFC3,5\nVPS8,7\n",
        "gene,term\nYAL001C,GO:0001\n",
        "sample,concentration\nbuffer,0.5\nglucose,2\n",
    ],
)
def test_what_has_two_genes_no_header_or_no_number_is_no_feature(text, write):
    assert not features_table.recognise(write(text, "a.csv"))


@pytest.mark.parametrize("columns", ["orf,name", "gene,symbol", "systematic name,gene"])
def test_two_names_of_one_gene_are_no_edge(columns, write):
    text = f"{columns},fitness\nYAL001C,TFC3,0.5\nYAL002W,VPS8,0.75\n"
    assert recognise(write(text, "a.csv")) == "features_table"


def test_a_network_that_looks_like_a_feature_is_found_out_by_its_genes(write, genes):
    path = write("orf,gene,x\nYAL001C,VPS8,0.5\nYAL002W,HO,0.75\n", "a.csv")
    with pytest.raises(NoFeatureError, match="two genes per row, first 'YAL001C' and 'VPS8'"):
        features_table.read(path, genes)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    header=st.sampled_from(["", "gene1\tgene2\tweight\n", "a\tb\tx\n", "gene\tgene b\tscore\n"]),
    pairs=st.lists(
        st.tuples(
            st.sampled_from(["YAL001C", "yal002w", "YBR160W_dma12"]),
            st.sampled_from(["YDL227C", "YDL228C", "ydl229w_tsq1"]),
            st.floats(-9, 9),
        ),
        min_size=1,
        max_size=12,
    ),
)
def test_two_genes_and_a_number_are_never_a_feature(write, header, pairs):
    rows = "".join(f"{a}\t{b}\t{x}\n" for a, b, x in pairs)
    assert not features_table.recognise(write(header + rows, "a.tsv"))


NAMES = st.sampled_from(["YAL001C", "tfc3", "YAL002W_tsq1", "VPS8", "YAL003W", "ho", "YDL227C"])
VALUES = st.none() | st.floats(-1e6, 1e6, width=32)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_order_of_rows_and_genes_does_not_matter_and_missing_stays_missing(write, genes, data):
    rows = data.draw(st.lists(st.tuples(NAMES, VALUES, VALUES), min_size=2, max_size=12))
    rows += [("YAL001C", 1.0, -1.0), ("YDL227C", 2.0, 3.0)]
    rows = [(name, a, b) for name, a, b in rows]

    def table(rows):
        lines = [
            "\t".join([name, *("" if x is None else repr(x) for x in values)])
            for name, *values in rows
        ]
        return write("orf\tx\ty\n" + "\n".join(lines) + "\n", "a.tsv")

    try:
        feature, source = features_table.read(table(rows), genes)
    except NoFeatureError:
        return
    shuffled = data.draw(st.permutations(rows))
    order = data.draw(st.permutations(range(len(genes))))
    other, again = features_table.read(table(shuffled), genes.take(order))
    assert np.array_equal(other.values, feature.values[list(order)], equal_nan=True)
    assert again.counts == source.counts
    index = genes.resolve([name.split("_")[0] for name, *_ in rows]).index
    columns = {"x": 1, "y": 2}
    for gene in range(len(genes)):
        for i, column in enumerate(feature.columns):
            held = [
                r[columns[column]]
                for r, g in zip(rows, index, strict=True)
                if g == gene and r[columns[column]] is not None
            ]
            value = feature.values[gene, i]
            if held:
                assert value == pytest.approx(
                    np.mean(np.float32(held), dtype=float), rel=1e-6, abs=1e-3
                )
            else:
                assert np.isnan(value)


def test_unknown_gene_under_each_policy(parquet, genes):
    path = parquet(gene=["HO", "NOPE", "BOTH", "TFC3"], x=[1.0, 2.0, 3.0, 4.0])
    _, source = features_table.read(path, genes)
    assert source.counts.dropped == {"unknown gene": 1, "ambiguous gene name": 1}
    assert source.notes["unknown_genes"] == "NOPE"
    with pytest.raises(GeneNameError, match="'NOPE'") as caught:
        features_table.read(path, genes, on_unknown="error")
    assert (caught.value.where, caught.value.line) == (path, 2)


def test_text_among_numbers_is_counted_by_kind_with_three_examples(write, genes):
    lines = ["gene;fitness;size"]
    lines += [f"YAL00{i}W;{i},5;1{i}" for i in range(1, 8)]
    lines += ["HO;high;1", "HO;low;1", "HO;?;2", "HO;1,0;big", ";3,0;4", "TFC3;1e99;5", ";;"]
    path = write("\n".join(lines), "a.csv")
    with pytest.raises(InputError) as caught:
        features_table.read(path, genes)
    error = caught.value
    assert (error.where, error.line) == (path, 9)
    assert error.kinds == {
        "column 'fitness' is not a finite number": 4,
        "column 'size' is not a finite number": 1,
        "there are values and no gene name": 1,
    }
    assert "(line 9: 'high'; line 10: 'low'; line 11: '?', …)" in error.what
    assert not isinstance(error, NoFeatureError)


def test_a_column_of_text_is_left_out_with_its_numbers_counted(write, genes):
    text = "gene,x,remark\nHO,1,good\nTFC3,2,bad\nVPS8,3,7\n"
    feature, source = features_table.read(write(text, "a.csv"), genes)
    assert feature.columns == ("x",)
    assert source.notes["text_columns_left_out"] == "'remark' (1 numbers among 2 texts)"


def test_a_column_of_one_value_is_left_out_with_its_value(write, genes):
    text = "gene,x,batch,essential,never\nHO,1,7,1,\nTFC3,2,7,,\nVPS8,,7,,\n"
    feature, source = features_table.read(write(text, "a.csv"), genes)
    assert feature.columns == ("x",)
    told = source.notes["columns_of_one_value_left_out"]
    assert told == "'batch' (7 for 3 genes), 'essential' (1 for 1 genes)"
    assert source.notes["columns_without_a_value"] == "'never'"
    assert (source.counts.kept, source.notes["genes"]) == (2, 2)
    assert sum(source.counts.dropped.values()) == 1


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("gene,x\nP53,1\nBRCA1,2\n", "none of its 2 rows names a gene of the cell"),
        ("gene,x\nHO,1\nTFC3,1\n", r"no column has two different values: 'x' \(1 for 2 genes\)"),
        ("gene,x\nHO,\nNOPE,1\nNO,2\n", "no gene of the cell has a value"),
    ],
)
def test_a_table_without_a_feature_of_the_cell_says_so(text, what, write, genes):
    path = write(text, "a.csv")
    with pytest.raises(NoFeatureError, match=what) as caught:
        features_table.read(path, genes)
    assert caught.value.where == path


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"gene": ["HO", "TFC3"], "x": [1.0, 1e300]}, "not a finite number in 1 row"),
        ({"gene": ["HO", "TFC3"], "x": [1.0, float("inf")]}, "not a finite number in 1 row"),
        ({"gene": ["HO", None], "x": [1.0, 2.0]}, "no gene name in 1 row"),
        ({"gene": pa.array([], pa.string()), "x": pa.array([], pa.float32())}, "no row"),
        ({"x": [1.0]}, "no column of names"),
        ({"gene": ["HO"]}, "no column of numbers"),
        ({"gene": ["HO", "TFC3"], "x": [[1.0, 2.0], [1.0]]}, "row 2: lists of equal length"),
        ({"gene": ["HO", "TFC3"], "x": [[1.0, 2.0], None]}, "row 2: lists of equal length"),
        ({"gene": ["HO", "TFC3"], "x": [None, [1.0]]}, "row 1: lists of equal length"),
    ],
)
def test_bad_parquet(columns, what, parquet, genes):
    path = parquet(**columns)
    with pytest.raises(InputError, match=what) as caught:
        features_table.read(path, genes)
    assert caught.value.where == path


def test_damaged_parquet(parquet, genes):
    path = parquet(gene=["HO"], x=[1.0])
    path.write_bytes(path.read_bytes()[:-20])
    assert recognise(path) is None
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        features_table.read(path, genes)


def test_other_parquet_is_not_recognised(parquet):
    assert recognise(parquet(a=["x"], b=["y"], score=[1.0])) is None
    assert recognise(parquet(gene=["HO"], x=[["a"]])) is None


def test_commas_that_may_be_thousands_are_not_guessed_at(write, genes):
    path = write("gene\tx\tz\nHO\t1,234\t1\nTFC3\t2,345\t2\n")
    assert "'x'" in features_table.read(path, genes)[1].notes["text_columns_left_out"]
