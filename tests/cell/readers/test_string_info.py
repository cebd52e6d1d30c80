from __future__ import annotations

import pytest

from deltacell.cell.readers import string_info
from deltacell.errors import InputError

HEADER = "#string_protein_id\tpreferred_name\tprotein_size\tannotation\n"


def test_preferred_name_is_the_standard_name(write):
    text = HEADER + '4932.YAL001C\tTFC3\t1160\tSays "this"; and that\n4932.Q0010\tQ0010\t128\t\n'
    genes, source = string_info.read(write(text))
    assert list(genes) == ["YAL001C", "Q0010"]
    assert genes.standard == ("TFC3", None)
    assert (source.counts.read, source.counts.kept, source.into) == (2, 2, "genes")


def test_gene_twice(write):
    text = HEADER + "4932.YAL001C\tTFC3\t1\t\n4932.yal001c\tTFC3\t1\t\n"
    with pytest.raises(InputError, match="stands twice") as caught:
        string_info.read(write(text))
    assert caught.value.line == 3
