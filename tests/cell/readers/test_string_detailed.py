from __future__ import annotations

import pytest

from deltacell.cell.readers import relation_of, string_detailed
from deltacell.errors import InputError

TEXT = """\
protein1 protein2 neighborhood fusion cooccurence coexpression experimental database textmining \
combined_score
4932.YAL001C 4932.YAL002W 0 0 0 120 0 900 300 910
4932.YAL002W 4932.YAL001C 0 0 0 120 0 900 300 910
4932.YAL001C 4932.YAL003W 57 0 0 0 250 0 1 300
4932.YAL003W 4932.YAL001C 57 0 0 0 250 0 1 300
"""


def test_one_relation_a_channel(write, genes):
    found = {e.name: relation_of(e, genes) for e in string_detailed.read(write(TEXT))}
    assert list(found) == [
        "string_neighborhood",
        "string_fusion",
        "string_cooccurence",
        "string_coexpression",
        "string_experimental",
        "string_database",
    ]
    edges = {
        name: [(int(a), int(b), round(float(w), 6)) for a, b, w in zip(*r.edges(), strict=True)]
        for name, (r, _) in found.items()
    }
    assert edges == {
        "string_neighborhood": [(0, 2, 0.057)],
        "string_fusion": [],
        "string_cooccurence": [],
        "string_coexpression": [(0, 1, 0.12)],
        "string_experimental": [(0, 2, 0.25)],
        "string_database": [(0, 1, 0.9)],
    }
    for relation, source in found.values():
        assert not relation.directed
        assert source.counts.read == 4
        assert source.counts.dropped["score 0"] == 4 - 2 * relation.n_edges
        assert source.notes == {"rows in the file": 4}


def test_lines_are_those_of_the_kept_rows(write):
    by_name = {e.name: e for e in string_detailed.read(write(TEXT))}
    assert list(by_name["string_experimental"].lines) == [4, 5]


def test_textmining_only_on_request(write):
    path = write(TEXT)
    [edges] = string_detailed.read(path, ["textmining"])
    assert (edges.name, len(edges)) == ("string_textmining", 4)
    with pytest.raises(InputError, match="no channel 'textming'"):
        string_detailed.read(path, ["textming"])


def test_score_outside_the_scale(write):
    with pytest.raises(InputError, match="2500 is not between 0 and 1000") as caught:
        string_detailed.read(
            write(TEXT.replace(" 250 0 1 300\n4932.YAL003W", " 2500 0 1 300\n4932.YAL003W"))
        )
    assert caught.value.line == 4
