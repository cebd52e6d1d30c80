"""Fields with several gene names: when a name is split, and at what.

The characters that join names (``A+B``, ``A;B``, ``A B``, ``A_B``, ``A-B``) also occur in dates, in
numbers such as ``2.31E+13`` and in names. So a field is split only if

- the user says so (``--columns genes=COLUMN``), or the format of a published table does,
- it is a strain ID in a column of strains, such as ``YKL051W+YDL227C_tm3059``: systematic names
  that are joined by ``+``, or
- the table has no second column of genes, and every part is a gene: one of the cell, one that
  stands alone in another row, or a systematic name.

A field whose whole text is a gene of the cell is one name. ``_`` and ``-`` are part of many names
(``HLA-A``, ``YAL001C_tsq508``). So a field without another separator is split at one of these where
both parts are genes, and not at all if there are several such places. If the user says so, it is
split at the one that every field of the column has once, unless it is the ID of a strain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import StrEnum

from deltacell.cell.readers.names import bare_name, is_systematic

IsKnown = Callable[[str], bool]
"""Whether a name is a gene of the cell."""

_JOINS = re.compile(r"\s*[+;|/&]\s*|\s+")
_WITHIN_NAMES = re.compile(r"[_-]")


class Joins(StrEnum):
    """Whether the fields of a column of genes are split."""

    never = "never"
    of_known_genes = "of known genes"
    of_strains = "of strains"
    always = "always"


def may_be_joined(field: str) -> bool:
    return len(_parts(field)) > 1


def may_be_pair(field: str) -> bool:
    """Return whether a field may be two genes or more, joined by whatever joins names."""
    return may_be_joined(field) or _WITHIN_NAMES.search(field) is not None


def separator_of(fields: Iterable[str]) -> str | None:
    """Return the one of ``_`` and ``-`` that is in every field exactly once; None if both are."""
    written = list(fields)
    separators = [mark for mark in "_-" if all(field.count(mark) == 1 for field in written)]
    return separators[0] if len(separators) == 1 and written else None


def split_field(
    field: str,
    joins: Joins,
    is_gene: IsKnown,
    separator: str | None = None,
) -> list[str]:
    """Return the names in a field that is not empty.

    ``separator`` is that of a column that the user said to split, see `separator_of`.
    """
    if joins is Joins.never:
        return [field]
    parts = _parts(field)
    if joins is Joins.always:
        return parts if len(parts) > 1 else _split_at(field, separator)
    if joins is Joins.of_strains:
        orfs = [orf.strip() for orf in field.split("+")]
        return orfs if all(is_systematic(bare_name(orf)) for orf in orfs) else [field]
    if len(parts) == 1 and not is_gene(field):
        return _split_within(field, is_gene)
    are_genes = len(parts) > 1 and all(map(is_gene, parts)) and not is_gene(field)
    return parts if are_genes else [field]


def several_genes(names: Iterable[str], is_gene: IsKnown) -> list[str]:
    """Return the names that are no gene, but whose parts are, such as ``YAL001C+YAL002W``."""
    joined = [name for name in names if may_be_joined(name) and not is_gene(name)]
    return [name for name in joined if all(map(is_gene, _parts(name)))]


def _split_within(field: str, is_gene: IsKnown) -> list[str]:
    """Return the two genes in a field that are joined by ``_`` or ``-``, or the field."""
    halves = [
        [field[: mark.start()], field[mark.end() :]] for mark in _WITHIN_NAMES.finditer(field)
    ]
    of_genes = [names for names in halves if all(names) and all(map(is_gene, names))]
    return of_genes[0] if len(of_genes) == 1 else [field]


def _split_at(field: str, separator: str | None) -> list[str]:
    """Return the two names in a field of a column that is split, or the ID of a strain."""
    if separator is None:
        return [field]
    first, second = field.split(separator)
    is_strain = is_systematic(first) and not is_systematic(second)
    return [field] if is_strain or not (first and second) else [first, second]


def _parts(field: str) -> list[str]:
    return [name for name in _JOINS.split(field) if name]
