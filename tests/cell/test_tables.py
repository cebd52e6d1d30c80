"""Cells and screens from tables in memory."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import deltacell as dc

NETWORK = {"a": ["RAD52", "RAD51", "SGS1"], "b": ["RAD51", "RAD54", "MUS81"]}


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, dict])
def test_a_cell_of_tables(kind) -> None:
    fitness = kind({"gene": ["SGS1", "RAD52"], "fitness": [0.9, None], "size": [1, 2]})
    cell = dc.Cell.from_tables(
        {"physical": kind(NETWORK), "regulatory": kind({**NETWORK, "w": [1.0, 2.0, 3.0]})},
        features={"fitness": fitness},
        directed=["regulatory"],
    )
    assert set(cell.genes) == {"RAD52", "RAD51", "SGS1", "RAD54", "MUS81"}
    assert cell.relation("physical").n_edges == 3
    assert cell.relation("regulatory").directed
    values = cell.features["fitness"].values
    assert values[cell.genes.index("SGS1")].tolist() == pytest.approx([0.9, 1])
    assert np.isnan(values[cell.genes.index("RAD52"), 0])
    assert np.isnan(values[cell.genes.index("MUS81")]).all()


def test_genes_of_a_table_have_all_their_names_and_what_is_unknown_is_dropped_or_refused() -> None:
    genes = pd.DataFrame(
        {
            "systematic": ["YML032C", "YER095W"],
            "standard": ["RAD52", None],
            "aliases": [["RAD-52"], []],
            "description": ["Protein that stimulates strand exchange", None],
        }
    )
    networks = {"physical": pd.DataFrame({"a": ["rad-52", "RAD52"], "b": ["YER095W", "XYZ"]})}
    cell = dc.Cell.from_tables(networks, genes, on_unknown="drop")
    assert cell.relation("physical").n_edges == 1
    assert cell.genes.description[0].startswith("Protein")
    assert cell.subset(["RAD52"]).genes.description == cell.genes.description[:1]
    with pytest.raises(dc.InputError, match="XYZ"):
        dc.Cell.from_tables(networks, genes)


@pytest.mark.parametrize(
    ("networks", "features", "code"),
    [
        ({"one": {"a": ["A"]}}, {}, "bad-shape"),
        ({"one": {"a": ["A"], "b": [None]}}, {}, "no-gene-name"),
        ({"one": 3}, {}, "not-a-table"),
        ({"one": NETWORK}, {"f": {"g": ["SGS1", "SGS1"], "x": [1, 2]}}, "duplicate-gene"),
        ({"one": NETWORK}, {"f": {"g": ["SGS1"]}}, "bad-shape"),
        ({"one": NETWORK}, {"f": {"g": ["XYZ"], "x": [1]}}, "unknown-gene"),
    ],
)
def test_a_table_that_is_none_is_refused(networks, features, code) -> None:
    with pytest.raises(dc.InputError) as caught:
        dc.Cell.from_tables(networks, features=features)
    assert caught.value.code == code


CELL = dc.Cell.synthetic("demo")
PAIRS = st.lists(
    st.tuples(
        st.sets(st.integers(0, CELL.n_genes - 1), min_size=2, max_size=3),
        st.floats(-1, 1, width=32),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(PAIRS)
def test_a_screen_is_what_its_table_says(rows) -> None:
    frame = pd.DataFrame(
        {
            **{
                f"gene{i + 1}": [
                    CELL.genes[sorted(genes)[i]] if i < len(genes) else None for genes, _ in rows
                ]
                for i in range(3)
            },
            "score": [score for _, score in rows],
        }
    )
    screen = dc.Screen.from_pandas(frame, CELL)
    assert [one.tolist() for one in screen.genotypes] == [sorted(genes) for genes, _ in rows]
    np.testing.assert_array_equal(
        screen.column("score"), np.array([score for _, score in rows], dtype=np.float32)
    )
    again = dc.Screen.from_pandas(screen.to_pandas(), CELL)
    np.testing.assert_array_equal(again.column("score"), screen.column("score"))
    assert [one.tolist() for one in again.genotypes] == [sorted(genes) for genes, _ in rows]


def test_columns_may_be_called_otherwise_and_errors_name_the_row() -> None:
    a, b, c = CELL.genes[0], CELL.genes[1], CELL.genes[2]
    frame = pd.DataFrame({"left": [a, a], "right": [b, "NOT1"], "eps": [0.1, -0.2]})
    names = {"gene1": "left", "gene2": "right", "score": "eps"}
    with pytest.raises(dc.InputError, match="row 1 of the table"):
        dc.Screen.from_pandas(frame, CELL, columns=names)
    kept = dc.Screen.from_pandas(frame, CELL, columns=names, on_unknown="drop")
    assert len(kept) == 1
    with pytest.raises(dc.InputError, match="no column 'wrong'"):
        dc.Screen.from_pandas(frame, CELL, columns={"gene1": "wrong"})
    missing = pd.DataFrame({"gene1": [a, a], "gene2": [b, c], "score": [0.1, np.nan]})
    assert len(dc.Screen.from_pandas(missing, CELL)) == 1


def test_what_a_notebook_shows_is_text_and_no_markup(hostile) -> None:
    cell = dc.Cell.from_tables(
        {hostile[0]: {"a": ["A"], "b": ["B"]}, "[bold]x": {"a": ["A"], "b": ["B"]}}
    )
    shown = cell._repr_html_()
    assert "<img" not in shown
    assert "[bold]x" in shown
