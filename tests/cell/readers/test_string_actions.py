from __future__ import annotations

import pytest

from deltacell.cell.readers import relation_of, string_actions
from deltacell.errors import InputError

HEADER = "item_id_a\titem_id_b\tmode\taction\tis_directional\ta_is_acting\tscore\n"
A, B, C = "4932.YAL001C", "4932.YAL002W", "4932.YAL003W"


def text_of(*rows: tuple[str, str, str, str, str, int]) -> str:
    return HEADER + "".join(f"{a}\t{b}\t{m}\t\t{d}\t{x}\t{s}\n" for a, b, m, d, x, s in rows)


def arrows(relation) -> list[tuple[int, int]]:
    return sorted(zip(*(c.tolist() for c in relation.edges()[:2]), strict=True))


def test_mode_without_direction_is_undirected(write, genes):
    text = text_of((A, B, "binding", "f", "f", 900), (B, A, "binding", "f", "f", 900))
    [edges] = string_actions.read(write(text))
    relation, source = relation_of(edges, genes)
    assert (relation.name, relation.directed) == ("action_binding", False)
    assert arrows(relation) == [(0, 1)]
    assert relation.weights == pytest.approx([0.9, 0.9])
    assert source.counts.read == 2


def test_directional_rows_point_from_the_acting_item(write, genes):
    text = text_of(
        (A, B, "reaction", "t", "t", 900),
        (B, A, "reaction", "t", "f", 900),
        (A, C, "reaction", "f", "f", 500),
        (C, A, "reaction", "f", "f", 500),
    )
    [edges] = string_actions.read(write(text))
    relation, source = relation_of(edges, genes)
    assert relation.directed
    assert arrows(relation) == [(0, 1), (0, 2), (2, 0)]
    assert list(edges.lines) == [2, 4, 5]
    assert source.counts.read == 4
    assert source.counts.dropped == {string_actions.MIRRORED: 1}
    assert source.notes["directions added"] == 0


def test_halves_that_the_file_does_not_write(write, genes):
    text = text_of((B, A, "reaction", "t", "f", 900), (A, C, "reaction", "f", "f", 500))
    [edges] = string_actions.read(write(text))
    relation, source = relation_of(edges, genes)
    assert arrows(relation) == [(0, 1), (0, 2), (2, 0)]
    assert list(edges.lines) == [2, 3, 3]
    assert source.counts.dropped == {}
    assert source.notes["directions added"] == 1


def test_one_relation_a_mode_in_alphabetical_order(write):
    text = text_of(
        (A, B, "reaction", "f", "f", 900),
        (A, B, "binding", "f", "f", 800),
        (A, C, "reaction", "f", "f", 700),
    )
    found = string_actions.read(write(text))
    assert [(e.name, len(e), list(e.lines)) for e in found] == [
        ("action_binding", 1, [3]),
        ("action_reaction", 2, [2, 4]),
    ]
    assert {e.notes["rows in the file"] for e in found} == {3}


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ((A, B, "binding", "yes", "f", 900), "'yes' is neither 't' nor 'f'"),
        ((A, B, "binding", "t", "1", 900), "'1' is neither 't' nor 'f'"),
        ((A, B, "", "t", "t", 900), "column 'mode' is empty"),
    ],
)
def test_fields_that_mean_nothing(row, what, write):
    with pytest.raises(InputError, match=what) as caught:
        string_actions.read(write(text_of((A, B, "binding", "f", "f", 1), row)))
    assert caught.value.line == 3
