from __future__ import annotations

import pytest

from deltacell.cell.readers import string_genes
from deltacell.errors import InputError


def test_names_in_order(write):
    assert string_genes.read(write("Q0010\r\nYAL001C-A\r\n\r\n")) == ["Q0010", "YAL001C-A"]


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        ("gene\nYAL001C\nYAL002W\n", "header where none belongs", 1),
        ("YAL001C\n\nYAL002W\n", "blank line", 2),
        ("\nYAL001C\n", "blank line", 1),
        ("YAL001C\n \nYAL002W\n", "no gene name", 2),
        ("YAL001C\nYAL002W\nyal001c\n", "stands twice, first in line 1", 3),
        ("YAL001C\nYAL002W\t1\n", "2 columns where 1", 2),
    ],
)
def test_what_would_shift_the_numbers(text, what, line, write):
    with pytest.raises(InputError, match=what) as caught:
        string_genes.read(write(text))
    assert caught.value.line == line


def test_other_names_are_read_but_not_recognised(write):
    assert string_genes.read(write("b0001\nb0002\n")) == ["b0001", "b0002"]
    assert not string_genes.recognise(["b0001", "b0002"], "genes.txt")
