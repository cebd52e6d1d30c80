from __future__ import annotations

import pytest

from deltacell.cell.readers import sgd_features
from deltacell.errors import InputError


def row(sgdid, kind, systematic="", standard="", aliases="", chromosome="1", start="", stop=""):
    return "\t".join(
        [sgdid, kind, "", systematic, standard, aliases, "", "", chromosome, start, stop, *[""] * 5]
    )


ROWS = [
    row("S000000001", "ORF", "YAL001C", "TFC3", "TSV115|FUN24", "1", "151166", "147594"),
    row("S000000002", "CDS", "", "", "", "1", "1", "2"),
    row("S000000003", "pseudogene", "YAL002W", "", "", "2", "10", "20"),
    row("S000000004", "transposable_element_gene", "YAR009C", "", "", "1", "", ""),
    row("S000000005", "blocked_reading_frame", "YAR010C", "", "", "1", "5", "9"),
    row("S000000006", "tRNA_gene", "tA(AGC)D", "", "", "4", "1", "2"),
    row("S000000007", "CDS"),
    row("S000000008", "ORF"),
]


def test_genes_with_names_and_places(write):
    genes, source = sgd_features.read(write("\n".join(ROWS) + "\n", "SGD_features.tab.gz"))
    assert list(genes) == ["YAL001C", "YAL002W", "YAR009C", "YAR010C"]
    assert genes.standard == ("TFC3", None, None, None)
    assert genes.aliases == (("TSV115", "FUN24"), (), (), ())
    assert genes.chromosome == ("1", "2", "1", "1")
    assert list(genes.start) == [147594, 10, -1, 5]
    assert list(genes.end) == [151166, 20, -1, 9]
    assert list(genes.has_position) == [True, True, False, True]
    assert (source.reader, source.into) == ("sgd_features", "genes")
    assert (source.counts.read, source.counts.kept) == (8, 4)
    assert source.counts.dropped == {
        "feature type CDS": 2,
        "feature type tRNA_gene": 1,
        sgd_features.NO_NAME: 1,
    }


@pytest.mark.parametrize(
    ("bad", "at", "what"),
    [
        (row("SGDID", "type", "name"), 0, "header where none belongs"),
        (row("x", "ORF", "YAL009W"), 3, "'x' is not an SGDID"),
        (row("S000000009", "ORF", "yal001c"), 4, "'yal001c' stands twice"),
        (row("S000000009", "ORF", "YAL009W", start="near 5"), 2, "'near 5' is not a position"),
    ],
)
def test_bad_rows(bad, at, what, write):
    rows = [*ROWS[:at], bad, *ROWS[at:]]
    with pytest.raises(InputError, match=what) as caught:
        sgd_features.read(write("\n".join(rows) + "\n"))
    assert caught.value.line == at + 1
