"""Features from tables, npz and AnnData: every form reads alike, and what is wrong is named."""

from __future__ import annotations

import sys

import numpy as np
import openpyxl
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltacell.cell.readers import NoFeatureError, recognise
from deltacell.cell.readers.features import (
    MERGED,
    NO_VALUE,
    features_anndata,
    features_npz,
    features_table,
)
from deltacell.errors import GeneNameError, InputError, MissingExtraError
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


def as_xlsx(path, above=()):
    book = openpyxl.Workbook()
    for row in [*above, HEADER, *ROWS]:
        book.active.append(row)
    book.create_sheet("more")
    book.save(path)
    return path


FORMS = {
    "tab.tsv": as_text("\t"),
    "packed.tsv.gz": as_text("\t", missing="NaN"),
    "comma.csv": as_text(",", missing="NA"),
    "quoted.csv": as_text(",", quoted=True, missing="n/a"),
    "european.csv": "\ufeff" + as_text(";", decimal=",", empty=3).replace("\n", "\r\n"),
    "latin.csv": as_text(";", decimal=",").encode("latin-1"),
    "wide.txt": as_text("\t").encode("utf-16"),
    "tab-comma.txt": as_text("\t", decimal=","),
    "pipe.txt": "Table S1\n\n" + as_text("|"),
    "packed.csv.zip": as_text(","),
}


@pytest.fixture
def parquet(tmp_path):
    def write(**columns):
        path = tmp_path / "expression.parquet"
        pq.write_table(pa.table(columns), path)
        return path

    return write


def refused(read, path, genes, code, **options):
    with pytest.raises(InputError) as caught:
        read(path, genes, **options)
    assert (caught.value.code, caught.value.where) == (code, path)
    return caught.value


@pytest.mark.parametrize("name", [*FORMS, "a.xlsx", "titled.xlsx", "a.parquet"])
def test_every_form_reads_alike(name, write, genes, tmp_path):
    path, first_line = tmp_path / name, 2
    if name.endswith(".parquet"):
        pl.DataFrame(ROWS, schema=HEADER, orient="row").write_parquet(path)
        first_line = 1
    elif name.endswith(".xlsx"):
        as_xlsx(path, above=[["Table S1"], []] if name.startswith("titled") else [])
        first_line = 4 if name.startswith("titled") else 2
    else:
        path = write(FORMS[name], name)
        first_line = 4 if name == "pipe.txt" else 2
    assert screen_readers.recognise(path) is None
    assert recognise(path) == "features_table"
    feature, source = features_table.read(path, genes)
    assert feature.name == name.split(".")[0]
    assert feature.columns[1] == "fitness, 30"
    expected = np.full((5, 2), NAN, dtype=np.float32)
    expected[[0, 2, 3]] = [[0.375, 1.5], [0.75, 0], [NAN, -2]]
    assert np.array_equal(feature.values, expected, equal_nan=True)
    assert (source.counts.read, source.counts.kept) == (6, 3)
    assert source.counts.dropped == {"unknown gene": 1, NO_VALUE: 1, MERGED: 1}
    assert (source.into, len(source.sha256)) == (feature.name, 64)
    lines = f"YAL001C (TFC3) in lines {first_line}, {first_line + 1}"
    assert lines in source.notes["genes_with_several_rows"]
    assert "YXX999W_sn1" in source.notes["unknown_genes"]
    assert source.notes["text_columns_left_out"] == "'Gene'"
    assert source.notes.get("sheets_left_out") == ("'more'" if "xlsx" in name else None)


def test_row_names_of_r_and_the_index_of_pandas(write, parquet, genes):
    path = write("x\ty\nYAL001C\t1\t2\nYDL227C\t3\tNA\nVPS8\t3\t4\n")
    assert recognise(path) == "features_table"
    feature, _ = features_table.read(path, genes)
    assert feature.columns == ("x", "y")
    assert np.array_equal(feature.values[[0, 3]], [[1, 2], [3, NAN]], equal_nan=True)
    feature, source = features_table.read(write(",gene,x\n0,HO,5\n1,TFC3,7\n", "a.csv"), genes)
    assert feature.columns == ("x",)
    assert "index_left_out" in source.notes
    path = parquet(gene=["HO", "TFC3"], x=[1.0, 2.0], __index_level_0__=[0, 1])
    assert features_table.read(path, genes)[0].columns == ("x",)


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.list_(pa.float32(), 3)])
def test_parquet_has_lists_categories_and_truth_values(kind, parquet, genes):
    path = parquet(gene=["HO", "TFC3"], embedding=pa.array([[1, 2, 3], [4, 5, 3]], kind))
    assert recognise(path) == "features_table"
    feature, _ = features_table.read(path, genes, name="protein")
    assert (feature.name, feature.columns[0]) == ("protein", "embedding 1")
    assert feature.values[[3, 0]].tolist() == [[1, 2, 3], [4, 5, 3]]
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
        "Query strain ID,Array strain ID,x\nYAL001C_sn1,YAL002W_dma2,0.5\n",
        "a,b,c,score\nYAL001C,YAL002W,YAL003W,-0.5\n",
        "YAL001C,0.5\nYAL002W,0.75\n",
        "TFC3,5\nVPS8,7\n",
        "gene,term\nYAL001C,GO:0001\n",
        "sample,concentration\nbuffer,0.5\nglucose,2\n",
    ],
)
def test_what_has_two_genes_no_header_or_no_number_is_no_feature(text, write):
    assert not features_table.recognise(write(text, "a.csv"))


@pytest.mark.parametrize("columns", ["orf,name", "gene,symbol", "systematic name,gene"])
def test_two_names_of_one_gene_are_no_edge(columns, write, genes):
    text = f"{columns},fitness\nYAL001C,TFC3,0.5\nYAL002W,VPS8,0.75\n"
    assert recognise(write(text, "a.csv")) == "features_table"
    two = write("orf,gene,x\nYAL001C,VPS8,0.5\nYAL002W,HO,0.75\n", "a.csv")
    assert isinstance(refused(features_table.read, two, genes, "two-genes-per-row"), NoFeatureError)


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

    def table(rows):
        lines = ["\t".join([n, *("" if x is None else repr(x) for x in v)]) for n, *v in rows]
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
    for gene in range(len(genes)):
        for i, column in enumerate(feature.columns):
            fields = [r["_xy".index(column)] for r, g in zip(rows, index, strict=True) if g == gene]
            held = [x for x in fields if x is not None]
            mean = np.mean(np.float32(held), dtype=float) if held else NAN
            assert feature.values[gene, i] == pytest.approx(mean, rel=1e-6, abs=1e-3, nan_ok=True)


def test_unknown_gene_under_each_policy(parquet, genes):
    path = parquet(gene=["HO", "NOPE", "BOTH", "TFC3"], x=[1.0, 2.0, 3.0, 4.0])
    _, source = features_table.read(path, genes)
    assert source.counts.dropped == {"unknown gene": 1, "ambiguous gene name": 1}
    assert source.notes["unknown_genes"] == "NOPE"
    error = refused(features_table.read, path, genes, "unknown-gene", on_unknown="error")
    assert (type(error), error.line) == (GeneNameError, 2)


def test_text_among_numbers_is_counted_by_kind_with_three_examples(write, genes):
    lines = ["gene;fitness;size"]
    lines += [f"YAL00{i}W;{i},5;1{i}" for i in range(1, 8)]
    lines += ["HO;high;1", "HO;low;1", "HO;?;2", "HO;1,0;big", ";3,0;4", "TFC3;1e99;5", ";;"]
    path = write("\n".join(lines), "a.csv")
    error = refused(features_table.read, path, genes, "bad-rows")
    assert error.line == 9
    assert error.kinds == {
        "column 'fitness' is not a finite number": 4,
        "column 'size' is not a finite number": 1,
        "there are values and no gene name": 1,
    }
    assert "(line 9: 'high'; line 10: 'low'; line 11: '?', …)" in error.what
    assert not isinstance(error, NoFeatureError)


def test_columns_of_text_of_one_value_and_of_none_are_left_out_and_noted(write, genes):
    text = "gene,x,batch,essential,never,remark\nHO,1,7,1,,a\nTFC3,2,7,,,b\nVPS8,,7,,,7\n"
    feature, source = features_table.read(write(text, "a.csv"), genes)
    assert feature.columns == ("x",)
    constant = "'batch' (7 for 3 genes), 'essential' (1 for 1 genes)"
    assert source.notes["columns_of_one_value_left_out"] == constant
    assert source.notes["columns_without_a_value"] == "'never'"
    assert source.notes["text_columns_left_out"] == "'remark' (1 numbers among 2 texts)"
    assert (source.counts.kept, source.notes["genes"]) == (2, 2)
    assert sum(source.counts.dropped.values()) == 1
    # Commas that may separate thousands are not guessed at.
    path = write("gene\tx\tz\nHO\t1,234\t1\nTFC3\t2,345\t2\n")
    assert "'x'" in features_table.read(path, genes)[1].notes["text_columns_left_out"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("gene,x\nP53,1\nBRCA1,2\n", "no-gene-of-the-cell"),
        ("gene,x\nHO,1\nTFC3,1\n", "constant-feature"),
        ("gene,x\nHO,\nNOPE,1\nNO,2\n", "no-value"),
    ],
)
def test_a_table_without_a_feature_of_the_cell_says_so(text, code, write, genes):
    error = refused(features_table.read, write(text, "a.csv"), genes, code)
    assert isinstance(error, NoFeatureError)


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({"gene": ["HO", "TFC3"], "x": [1.0, 1e300]}, "bad-rows"),
        ({"gene": ["HO", "TFC3"], "x": [1.0, float("inf")]}, "bad-rows"),
        ({"gene": ["HO", None], "x": [1.0, 2.0]}, "bad-rows"),
        ({"gene": pa.array([], pa.string()), "x": pa.array([], pa.float32())}, "empty-file"),
        ({"x": [1.0]}, "not-a-feature"),
        ({"gene": ["HO"]}, "no-value"),
        ({"gene": ["HO", "TFC3"], "x": [[1.0, 2.0], [1.0]]}, "bad-shape"),
        ({"gene": ["HO", "TFC3"], "x": [None, [1.0]]}, "bad-shape"),
    ],
)
def test_bad_parquet(columns, code, parquet, genes):
    refused(features_table.read, parquet(**columns), genes, code)


def test_damaged_and_other_parquet_is_not_recognised(parquet, genes):
    assert recognise(parquet(a=["x"], b=["y"], score=[1.0])) is None
    assert recognise(parquet(gene=["HO"], x=[["a"]])) is None
    path = parquet(gene=["HO"], x=[1.0])
    path.write_bytes(path.read_bytes()[:-20])
    assert recognise(path) is None
    refused(features_table.read, path, genes, "unreadable")


@pytest.fixture
def npz(tmp_path):
    def write(**arrays):
        path = tmp_path / "protein.npz"
        np.savez_compressed(path, **arrays)
        return path

    return write


class TestNpz:
    @pytest.mark.parametrize("kind", ["U", "S"])
    def test_genes_and_values(self, kind, npz, genes):
        path = npz(genes=np.array(["HO", "vps8"], dtype=kind), values=np.arange(6).reshape(2, 3))
        assert recognise(path) == "features_npz"
        feature, source = features_npz.read(path, genes)
        assert feature.name == "protein"
        assert feature.values[[3, 1]].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert feature.known.tolist() == [False, True, False, True, False]
        assert (source.reader, source.counts.kept, source.notes["width"]) == ("features_npz", 2, 3)

    def test_rows_of_a_gene_are_merged_and_unknown_ones_refused_or_dropped(self, npz, genes):
        values = np.array([[1, NAN], [3, NAN], [NAN, 0], [9, 9]])
        path = npz(genes=np.array(["HO", "ho", "VPS8", "NOPE"]), values=values)
        feature, source = features_npz.read(path, genes)
        assert np.array_equal(feature.values[[3, 1]], [[2, NAN], [NAN, 0]], equal_nan=True)
        assert source.counts.dropped == {MERGED: 1, "unknown gene": 1}
        assert "YDL227C (HO) in rows 1, 2" in source.notes["genes_with_several_rows"]
        error = refused(features_npz.read, path, genes, "unknown-gene", on_unknown="error")
        assert "row 4" in error.what
        one = npz(genes=np.array(["HO"]), values=np.array([2.0]))
        assert features_npz.read(one, genes)[0].values.shape == (5, 1)

    @pytest.mark.parametrize(
        ("names", "values", "code"),
        [
            (["HO"], None, "missing-columns"),
            (["HO"], np.ones((2, 1)), "bad-shape"),
            (["HO"], np.ones((1, 1, 1)), "bad-shape"),
            (["HO"], np.ones((1, 0)), "bad-shape"),
            ([1], np.ones(1), "bad-shape"),
            (["HO"], np.array(["x"]), "not-a-number"),
            (["HO"], np.array([1j]), "not-a-number"),
            (["HO"], np.array([np.inf]), "not-finite"),
            (np.array(["HO"], dtype=object), np.ones(1), "unreadable"),
        ],
    )
    def test_bad_arrays(self, names, values, code, npz, genes):
        arrays = {"genes": np.asarray(names)} | ({} if values is None else {"values": values})
        refused(features_npz.read, npz(**arrays), genes, code)

    def test_damaged_files_and_single_arrays(self, npz, tmp_path, genes):
        path = npz(genes=np.array(["HO"]), values=np.ones(1))
        path.write_bytes(path.read_bytes()[:-40])
        refused(features_npz.read, path, genes, "unreadable")
        np.save(tmp_path / "a.npy", np.ones(3))
        refused(features_npz.read, tmp_path / "a.npy", genes, "unreadable")


MATRIX = np.array([[1, 2, 3], [4, 5, 6]], dtype=np.float32)


class TestAnnData:
    @pytest.fixture
    def h5ad(self, tmp_path):
        anndata, pd = pytest.importorskip("anndata"), pytest.importorskip("pandas")

        def write(matrix, rows, columns):
            path = tmp_path / "expression.h5ad"
            frames = {"obs": pd.DataFrame(index=rows), "var": pd.DataFrame(index=columns)}
            anndata.AnnData(matrix, **frames).write_h5ad(path)
            return path

        return write

    @pytest.mark.parametrize("sparse", [False, True])
    def test_genes_are_observations_or_variables(self, sparse, h5ad, genes):
        from scipy.sparse import csr_matrix

        form = csr_matrix if sparse else np.asarray
        rows, columns = ["HO", "TFC3"], ["control", "heat", "salt"]
        for path_of in ((form(MATRIX), rows, columns), (form(MATRIX.T.copy()), columns, rows)):
            path = h5ad(*path_of)
            assert recognise(path) == "features_anndata"
            feature, source = features_anndata.read(path, genes)
            assert (feature.name, feature.columns) == ("expression", tuple(columns))
            assert feature.values[[3, 0]].tolist() == MATRIX.tolist()
            assert source.counts.read == source.counts.kept == 2
        merged, _ = features_anndata.read(h5ad(MATRIX, ["HO", "ho"], ["x", "y", "z"]), genes)
        assert merged.values[3].tolist() == [2.5, 3.5, 4.5]

    def test_what_cannot_be_read(self, h5ad, genes, monkeypatch):
        path = h5ad(MATRIX, ["a", "b"], ["x", "y", "z"])
        refused(features_anndata.read, path, genes, "ambiguous-axes")
        refused(features_anndata.read, h5ad(None, ["HO"], ["x"]), genes, "no-value")
        path.write_bytes(path.read_bytes()[:600])
        refused(features_anndata.read, path, genes, "unreadable")
        monkeypatch.setitem(sys.modules, "anndata", None)
        with pytest.raises(MissingExtraError, match="anndata"):
            features_anndata.read(path, genes)
