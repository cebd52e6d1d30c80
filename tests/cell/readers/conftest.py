"""Genes for the tests of the readers."""

from __future__ import annotations

import pytest

from deltacell.cell import Genes


@pytest.fixture
def genes():
    """Five genes; the alias BOTH belongs to two of them."""
    return Genes(
        ["YAL001C", "YAL002W", "YAL003W", "YDL227C", "YBR001C-A"],
        ["TFC3", "VPS8", "EFB1", "HO", None],
        [["TSV115"], ["VPT8", "BOTH"], ["BOTH"], [], []],
    )
