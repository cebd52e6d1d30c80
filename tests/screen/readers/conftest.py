"""Genes for the tests of the readers of screens."""

from __future__ import annotations

import pytest

from deltacell.cell import Genes


@pytest.fixture
def genes():
    return Genes(
        ["YAL001C", "YAL002W", "YAL003W", "YAL004W", "YAL005C"],
        ["TFC3", "VPS8", "EFB1", None, "SSA1"],
        [["OLD1"], ["SHARED"], ["SHARED"], [], []],
    )
