"""A layer of message passing through the metabolism."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import torch
from scipy.sparse import coo_array
from torch import nn

from deltacell.cell import Metabolism
from deltacell.models.activation import activation_of
from deltacell.models.ranges import named_range
from deltacell.propagate import GENE, METABOLITE, REACTION, Aggregate, Hop, SparseMatrix
from deltacell.propagate.hop import Rows


@dataclass(frozen=True, eq=False)
class MetabolicEdges:
    """What reactions, metabolites and genes receive from each other.

    Parameters
    ----------
    genes_of_reaction
        The mean over the living genes of a reaction's rule.
    metabolites_of_reaction
        ``sum_m |s_jm| p_m / sum_m |s_jm|``.
    reactions_of_metabolite
        The mean over living reactions j of ``s_jm q_j``.
    reactions_of_gene
        The mean over the living reactions whose rule names the gene.
    """

    genes_of_reaction: Aggregate
    metabolites_of_reaction: Aggregate
    reactions_of_metabolite: Aggregate
    reactions_of_gene: Aggregate

    @classmethod
    def of(cls, metabolism: Metabolism) -> MetabolicEdges:
        """Make them from a metabolism; the same object for the same metabolism."""
        if metabolism not in _OF_METABOLISM:
            _OF_METABOLISM[metabolism] = cls._made(metabolism)
        return _OF_METABOLISM[metabolism]

    @classmethod
    def _made(cls, metabolism: Metabolism) -> MetabolicEdges:
        reaction, gene = metabolism.rule_genes
        rules = coo_array(
            (np.ones(len(gene)), (reaction, gene)),
            shape=(metabolism.n_reactions, metabolism.n_genes),
        ).tocsr()
        stoichiometry = coo_array(
            (metabolism.coefficient, (metabolism.reaction, metabolism.metabolite)),
            shape=(metabolism.n_reactions, metabolism.n_metabolites),
        ).tocsr()
        stoichiometry.eliminate_zeros()
        share = abs(stoichiometry)
        share.data /= np.repeat(share.sum(axis=1), np.diff(share.indptr))
        return cls(
            Aggregate(GENE, SparseMatrix.from_scipy(rules), mean=True),
            Aggregate(METABOLITE, SparseMatrix.from_scipy(share)),
            Aggregate(REACTION, SparseMatrix.from_scipy(stoichiometry.T), mean=True),
            Aggregate(REACTION, SparseMatrix.from_scipy(rules.T), mean=True),
        )


class MetabolicLayer(nn.Module):
    """Genes act on reactions, reactions on metabolites, and both back on the genes.

    - ``q_j' = act(norm(U_q [q_j ; mean of x_g over the living genes of its rule ;
      sum_m |s_jm| p_m / sum_m |s_jm|]))``
    - ``p_m' = act(norm(U_p [p_m ; mean over living reactions j of s_jm q_j']))``
    - ``x_g' = x_g + V(mean of q_j' over the living reactions of g)``

    Lost reactions send and receive nothing; a mean over nothing is 0.

    Parameters
    ----------
    name
        What a profiler shows it as.
    hidden
        Width of a vector.
    activation
        One of `ACTIVATIONS`.
    """

    def __init__(self, name: str, hidden: int, activation: str) -> None:
        super().__init__()
        self.name = name
        self.activation = activation_of(activation)
        self.reaction = nn.Linear(3 * hidden, hidden)
        self.reaction_norm = nn.LayerNorm(hidden)
        self.metabolite = nn.Linear(2 * hidden, hidden)
        self.metabolite_norm = nn.LayerNorm(hidden)
        self.gene = nn.Linear(hidden, hidden)

    def hops(self, edges: MetabolicEdges, *, last: bool) -> tuple[Hop, ...]:
        """Return the layer as hops.

        Parameters
        ----------
        edges
            Of the metabolism.
        last
            Whether no layer follows, so that nothing would read the metabolites' new vectors.
        """
        around = partial(named_range, self.name)
        reaction = Hop(
            REACTION,
            (edges.genes_of_reaction, edges.metabolites_of_reaction),
            self.update_reactions,
            (*self.reaction.parameters(), *self.reaction_norm.parameters()),
            around,
        )
        metabolite = Hop(
            METABOLITE,
            (edges.reactions_of_metabolite,),
            self.update_metabolites,
            (*self.metabolite.parameters(), *self.metabolite_norm.parameters()),
            around,
        )
        gene = Hop(
            GENE,
            (edges.reactions_of_gene,),
            self.update_genes,
            tuple(self.gene.parameters()),
            around,
        )
        return (reaction, gene) if last else (reaction, metabolite, gene)

    def update_reactions(
        self, vectors: torch.Tensor, aggregated: torch.Tensor, rows: Rows
    ) -> torch.Tensor:
        """Return q' [m, t, hidden]; see `RowWise`."""
        h = self.reaction(torch.cat([vectors, *aggregated], -1))
        return self.activation(self.reaction_norm(h.to(vectors.dtype)))

    def update_metabolites(
        self, vectors: torch.Tensor, aggregated: torch.Tensor, rows: Rows
    ) -> torch.Tensor:
        """Return p' [m, t, hidden]; see `RowWise`."""
        h = self.metabolite(torch.cat([vectors, *aggregated], -1))
        return self.activation(self.metabolite_norm(h.to(vectors.dtype)))

    def update_genes(
        self, vectors: torch.Tensor, aggregated: torch.Tensor, rows: Rows
    ) -> torch.Tensor:
        """Return x' [m, t, hidden]; see `RowWise`."""
        return vectors + self.gene(aggregated[0]).to(vectors.dtype)  # type: ignore[no-any-return]


_OF_METABOLISM: WeakKeyDictionary[Metabolism, MetabolicEdges] = WeakKeyDictionary()
