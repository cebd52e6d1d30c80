"""Genes by any of their names: indices, texts, and facts with links."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from deltacell.base.arrays import Ints
from deltacell.base.errors import GeneNameError, InputError
from deltacell.cell import Genes
from deltacell.cell.readers.names import is_systematic


def gene_indices(
    genes: Genes,
    names: Sequence[str],
    where: Path | None = None,
    line: int | None = None,
) -> Ints:
    """Return the indices of some genes of a run, by any of their names."""
    found: list[int] = []
    for name in names:
        try:
            found.append(genes.index(name))
        except GeneNameError as e:
            fix = f"{e.fix} data.screen_genes_only=false trains on all genes of the cell."
            raise GeneNameError(e.message, code=e.code, where=where, line=line, fix=fix) from None
    if len(set(found)) < len(found):
        what = f"a gene is given twice: {' '.join(map(genes.label, found))}"
        raise GeneNameError(what, code="gene-twice", where=where, line=line)
    return np.array(found, dtype=np.int64)


def gene_texts(genes: Genes) -> list[str]:
    """Return the standard name of each gene, or the systematic one if it has none."""
    return [a or b for a, b in zip(genes.standard, genes.systematic, strict=True)]


SGD = "https://www.yeastgenome.org/locus/{gene}"
_ADDRESS = re.compile(r"https?://[^{}]*(\{(gene|name)\}[^{}]*)+")


def gene_facts(
    genes: Genes,
    which: Iterable[int],
    template: str | None = None,
) -> list[dict[str, str | None]]:
    """Return the names, the description and a link of some genes.

    ``template`` is a URL with ``{gene}`` for the systematic or ``{name}`` for the standard name; by
    default it is SGD's, for systematic names of yeast.
    """
    if template is not None and not _ADDRESS.fullmatch(template):
        what = f"--link is '{template}'; expected http(s)://, with {{gene}} or {{name}}"
        raise InputError(what, code="invalid-link", fix=f"Such as: {SGD}")
    names = gene_texts(genes)
    found: list[dict[str, str | None]] = []
    for g in which:
        fact = {"gene": genes[g], "name": names[g]}
        url = template or (SGD if is_systematic(genes[g]) else "")
        # A name must not change the structure of the URL.
        link = url.format(**{key: quote(name, safe="") for key, name in fact.items()})
        found.append({**fact, "description": genes.description[g] or None, "link": link or None})
    return found
