"""SQL on a screen."""

from __future__ import annotations

import polars as pl
import pytest

from deltacell.errors import InputError
from deltacell.screen import Screen
from deltacell.screen.columns import ROW_SCHEMA
from deltacell.screen.query import wide_table


def test_wide_table_has_one_row_a_genotype(screen):
    table = wide_table(screen)
    assert table.num_rows == 6
    assert set(ROW_SCHEMA.names) - {"end"} <= set(table.column_names)
    row = table.slice(1, 1).to_pylist()[0]
    assert row["genes"] == ["g2", "g3", "g4"]
    assert row["roles"] == ["query", "query", "array"]
    assert row["perturbations"] == ["deletion"] * 3
    assert row["alleles"] == ["x2", "x3", "x4"]
    assert (row["row"], row["kind"], row["study"], row["sign"]) == (1, "trigenic", "a", -1)


def test_select_on_genotypes(screen):
    found = screen.query(
        "SELECT row, score FROM screen WHERE list_contains(genes, 'g1') ORDER BY 1"
    )
    assert found.rows() == [(0, -0.5), (2, 0.25), (4, -0.125), (5, 0.75)]


def test_select_on_deleted_genes(screen):
    found = screen.query(
        "SELECT d.gene, count(*) AS n FROM deleted d JOIN screen s USING (row) "
        "WHERE s.study = 'a' GROUP BY ALL ORDER BY ALL"
    )
    assert found.rows() == [("g0", 2), ("g1", 2), ("g2", 1), ("g3", 1), ("g4", 1)]


def test_missing_numbers_stay_missing(screen):
    assert screen.query("SELECT count(*) FROM screen WHERE isnan(score)").item() == 1


def test_loaded_screen_answers_the_same(screen, tmp_path):
    screen.save(tmp_path / "s")
    sql = "SELECT * EXCLUDE (score) FROM screen ORDER BY row"
    assert Screen.load(tmp_path / "s").query(sql).equals(screen.query(sql))


def test_error_says_what_there_is(screen):
    with pytest.raises(InputError, match="nope") as caught:
        screen.query("SELECT nope FROM screen")
    assert "genes, roles" in str(caught.value)
    assert "deleted has row, gene, role" in str(caught.value)
    with pytest.raises(InputError, match="returns no rows"):
        screen.query("")


def test_sql_reads_no_file(screen, tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    for sql in (
        f"SELECT * FROM '{secret}'",
        f"SELECT * FROM read_csv('{secret}')",
        f"SELECT * FROM read_text('{secret}')",
        f"SELECT * FROM glob('{tmp_path}/*')",
        f"IMPORT DATABASE '{tmp_path}'",
        "LOAD httpfs",
    ):
        with pytest.raises(InputError, match="did not run"):
            screen.query(sql)


def test_sql_writes_no_file(screen, tmp_path):
    for sql in (
        f"COPY screen TO '{tmp_path}/out.csv'",
        f"EXPORT DATABASE '{tmp_path}/out'",
        f"ATTACH '{tmp_path}/out.db'",
        f"SET enable_external_access = true; COPY screen TO '{tmp_path}/out.csv'",
    ):
        with pytest.raises(InputError, match="did not run"):
            screen.query(sql)
    assert list(tmp_path.iterdir()) == []


def test_sql_sees_no_variable_of_the_program(screen):
    hidden = pl.DataFrame({"a": [1]})
    with pytest.raises(InputError, match="hidden"):
        screen.query("SELECT * FROM hidden")
    assert len(hidden) == 1


@pytest.mark.parametrize("sql", ["select 1 as a, 2 as a", "select interval 1 day as d"])
def test_a_result_that_is_no_table_is_refused_with_a_sentence(screen, sql):
    with pytest.raises(InputError, match="the result of the SQL is no table"):
        screen.query(sql)
