"""Fields with several gene names: when a name is split, and at what.

The characters that join names (``A+B``, ``A;B``, ``A B``) also occur in dates, in numbers such as
``2.31E+13`` and in names. So a field is split only if

- the user says so (``--columns genes=COLUMN``), or the format of a published table does,
- it is a strain ID in a column of strains, such as ``YKL051W+YDL227C_tm3059``: systematic names
  that are joined by ``+``, or
- the table has no second column of genes, and every part is a gene: one of the cell, one that
  stands alone in another row, or a systematic name.

A field whose whole text is a gene of the cell is one name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import StrEnum

from deltacell.cell.readers.names import bare_name, is_systematic

IsKnown = Callable[[str], bool]
"""Whether a name is a gene of the cell."""

_JOINS = re.compile(r"\s*[+;|/&]\s*|\s+")


class Joins(StrEnum):
    """Whether the fields of a column of genes are split."""

    never = "never"
    of_known_genes = "of known genes"
    of_strains = "of strains"
    always = "always"


def may_be_joined(field: str) -> bool:
    return len(_parts(field)) > 1


def split_field(field: str, joins: Joins, is_gene: IsKnown) -> list[str]:
    """Return the names in a field that is not empty."""
    if joins is Joins.never:
        return [field]
    parts = _parts(field)
    if joins is Joins.always:
        return parts
    if joins is Joins.of_strains:
        orfs = [orf.strip() for orf in field.split("+")]
        return orfs if all(is_systematic(bare_name(orf)) for orf in orfs) else [field]
    are_genes = len(parts) > 1 and all(map(is_gene, parts)) and not is_gene(field)
    return parts if are_genes else [field]


def several_genes(names: Iterable[str], is_gene: IsKnown) -> list[str]:
    """Return the names that are no gene, but whose parts are, such as ``YAL001C+YAL002W``."""
    joined = [name for name in names if may_be_joined(name) and not is_gene(name)]
    return [name for name in joined if all(map(is_gene, _parts(name)))]


def _parts(field: str) -> list[str]:
    return [name for name in _JOINS.split(field) if name]
