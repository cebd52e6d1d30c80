"""Genes by any of their names: indices, texts, and facts with links."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
    indices: list[int] = []
    for name in names:
        try:
            indices.append(genes.index(name))
        except GeneNameError as error:
            fix = f"{error.fix} data.screen_genes_only=false trains on all genes of the cell."
            raise GeneNameError(
                error.message,
                code=error.code,
                where=where,
                line=line,
                fix=fix,
            ) from None
    if len(set(indices)) < len(indices):
        what = f"a gene is given twice: {' '.join(map(genes.label, indices))}"
        raise GeneNameError(what, code="gene-twice", where=where, line=line)
    return np.array(indices, dtype=np.int64)


def gene_texts(genes: Genes) -> list[str]:
    """Return the standard name of each gene, or the systematic one if it has none."""
    names = zip(genes.standard, genes.systematic, strict=True)
    return [standard or systematic for standard, systematic in names]


SGD = "https://www.yeastgenome.org/locus/{gene}"
_ADDRESS = re.compile(r"https?://[^{}]*(\{(gene|name)\}[^{}]*)+")


@dataclass(frozen=True)
class GeneFacts:
    """The names of a gene, its description and a link, as far as they are known."""

    gene: str  # the systematic name
    name: str
    description: str | None
    link: str | None


def gene_facts(genes: Genes, which: Iterable[int], template: str | None = None) -> list[GeneFacts]:
    """Return the names, the description and a link of some genes.

    ``template`` is a URL with ``{gene}`` for the systematic or ``{name}`` for the standard name; by
    default it is SGD's, for systematic names of yeast.
    """
    if template is not None and not _ADDRESS.fullmatch(template):
        what = f"--link is '{template}'; expected http(s)://, with {{gene}} or {{name}}"
        raise InputError(what, code="invalid-link", fix=f"Such as: {SGD}")
    texts = gene_texts(genes)
    facts = []
    for number in which:
        gene = genes[number]
        name = texts[number]
        url = template or (SGD if is_systematic(gene) else "")
        # A name must not change the structure of the URL.
        link = url.format(gene=quote(gene, safe=""), name=quote(name, safe=""))
        facts.append(GeneFacts(gene, name, genes.description[number] or None, link or None))
    return facts
