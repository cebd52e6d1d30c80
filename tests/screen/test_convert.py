"""SQL on a screen, and conversions for other libraries."""

import importlib.util

import numpy as np
import polars as pl
import pytest

from deltacell.base.errors import MissingExtraError
from deltacell.cell.readers import sbml
from deltacell.screen import Screen
from deltacell.screen.screen import ROW_SCHEMA


def test_polars_and_pandas_have_one_row_per_genotype(screen):
    frame = screen.to_polars()
    assert set(ROW_SCHEMA.names) - {"end"} <= set(frame.columns)
    row = frame.row(1, named=True)
    assert row["genes"] == ["g2", "g3", "g4"]
    assert row["roles"] == ["query", "query", "array"]
    assert row["perturbations"] == ["deletion"] * 3
    assert row["alleles"] == ["x2", "x3", "x4"]
    assert (row["row"], row["kind"], row["study"], row["sign"]) == (1, "trigenic", "a", -1)
    pandas = screen.to_pandas()
    assert pandas["genes"].tolist() == frame["genes"].to_list()
    assert pandas["study"].tolist() == ["a", "a", "b", "b", "b", "a"]
    np.testing.assert_array_equal(pandas["score"], screen.column("score"))


def test_anndata(screen, tmp_path):
    data = screen.to_anndata()
    expected = np.zeros((6, 6))
    for row, genes in enumerate(screen.genotypes):
        expected[row, genes] = 1
    np.testing.assert_array_equal(data.X.toarray(), expected)
    assert data.var_names.tolist() == list(screen.genes)
    assert data.obs["kind"].tolist() == screen.kind
    data.write_h5ad(tmp_path / "screen.h5ad")


def test_a_missing_extra_is_named_with_the_command(screen, monkeypatch, write):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for extra, call in {
        "pandas": screen.to_pandas,
        "anndata": screen.to_anndata,
        "sql": lambda: screen.query("SELECT 1"),
        "metabolism": lambda: sbml.reader.read(write("<sbml/>")),
    }.items():
        with pytest.raises(MissingExtraError, match=rf"deltacell\[{extra}\]"):
            call()


def test_sql_on_genotypes_and_deleted_genes(screen, tmp_path):
    sql = "SELECT row, score FROM screen WHERE list_contains(genes, 'g1') ORDER BY 1"
    assert screen.query(sql).rows() == [(0, -0.5), (2, 0.25), (4, -0.125), (5, 0.75)]
    found = screen.query(
        "SELECT d.gene, count(*) AS n FROM deleted d JOIN screen s USING (row) "
        "WHERE s.study = 'a' GROUP BY ALL ORDER BY ALL",
    )
    assert found.rows() == [("g0", 2), ("g1", 2), ("g2", 1), ("g3", 1), ("g4", 1)]
    assert screen.query("SELECT count(*) FROM screen WHERE isnan(score)").item() == 1
    screen.save(tmp_path / "s")
    sql = "SELECT * EXCLUDE (score) FROM screen ORDER BY row"
    assert Screen.load(tmp_path / "s").query(sql).equals(screen.query(sql))


def test_sql_touches_no_file_sees_no_variable_and_says_what_there_is(screen, tmp_path, refused):
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    hidden = pl.DataFrame({"a": [1]})
    for sql in (
        f"SELECT * FROM '{secret}'",
        f"SELECT * FROM read_csv('{secret}')",
        f"SELECT * FROM read_text('{secret}')",
        f"SELECT * FROM glob('{tmp_path}/*')",
        f"IMPORT DATABASE '{tmp_path}'",
        "LOAD httpfs",
        f"COPY screen TO '{tmp_path}/out.csv'",
        f"EXPORT DATABASE '{tmp_path}/out'",
        f"ATTACH '{tmp_path}/out.db'",
        f"SET enable_external_access = true; COPY screen TO '{tmp_path}/out.csv'",
        "SELECT * FROM hidden",
    ):
        refused("sql-error", screen.query, sql)
    assert list(tmp_path.iterdir()) == [secret]
    assert len(hidden) == 1
    error = refused("sql-error", screen.query, "SELECT nope FROM screen")
    assert "deleted has row, gene, role" in error.fix
    refused("sql-error", screen.query, "")
    for sql in ("select 1 as a, 2 as a", "select interval 1 day as d"):
        refused("sql-error", screen.query, sql)
