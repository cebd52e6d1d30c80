"""The layers of HeteroCell: messages over the gene relations, and through the metabolism."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import combinations_with_replacement
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from scipy.sparse import coo_array
from torch import Tensor, nn
from torch.nn import functional

from deltacell.cell import Metabolism
from deltacell.models.base import check_choice, check_heads, named_range
from deltacell.propagate import GENE, METABOLITE, REACTION, Aggregate, Hop, Message, SparseMatrix
from deltacell.propagate.base import WildType
from deltacell.propagate.product import kept_with
from deltacell.propagate.workers import Gradients, Rows, gradients_of

COMBINATIONS = ("sum", "mean", "attention", "pairwise")


class EncodedCell(NamedTuple):
    """The hops of message passing, and the wild type after each."""

    hops: list[Hop]
    wild_type: WildType


class GeneLayer(nn.Module):
    """``x' = combine over relations of m_r``, plus x with a residual.

    The message of a relation is ``m_r = act(norm(MLP_r((1 + eps_r) x + a_r)))``, see `gin_message`,
    with a_r the aggregate over the relation and eps_r learned, starting at 0. The MLP has
    activations between its linear layers, and each gene's vector is normalised by itself. Relations
    do not share weights.
    """

    def __init__(
        self,
        name: str,
        relations: int,
        hidden: int,
        gin_layers: int,
        combine: str,
        residual: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        check_choice("combination", combine, COMBINATIONS)
        self.name, self.residual, self.dropout = name, residual, dropout
        self.eps = nn.Parameter(torch.zeros(relations))
        self.linears = nn.ModuleList(
            StackedLinear(relations, hidden, hidden) for _ in range(gin_layers)
        )
        self.norm_weight = nn.Parameter(torch.ones(relations, hidden))
        self.norm_bias = nn.Parameter(torch.zeros(relations, hidden))
        self.factor = 1 / relations if combine == "mean" else 1.0
        self.combine: nn.Module | None = None
        if combine == "attention":
            self.combine = AttentionCombination(relations, hidden)
        elif combine == "pairwise":
            self.combine = PairwiseCombination(relations, hidden)
        self._message = gin_message

    def draw(self, x: Tensor) -> Tensor | None:
        """Draw the dropout of this step's messages, for all mutants; None without dropout."""
        if not (self.training and self.dropout):
            return None
        kept = x.new_empty(len(self.eps), *x.shape)
        return kept.bernoulli_(1 - self.dropout).div_(1 - self.dropout)

    def hop(self, aggregates: Sequence[Aggregate], kept: Tensor | None = None) -> Hop:
        """Return the layer as a hop, with the dropout from `draw`."""
        factors = [None] * len(aggregates) if kept is None else kept
        each = zip(aggregates, self._of_relations(), factors, strict=True)
        messages = tuple(self._message_of(*one) for one in each)
        if self.combine is not None:
            messages = (self._combined(self.combine, messages),)
        around = partial(named_range, self.name)
        return Hop(GENE, messages, self.norm_bias.shape[1], self.residual, around)

    def compile_row_wise(self, **options: Any) -> None:
        self._message = torch.compile(gin_message, **options)
        if self.combine is not None:
            self.combine.compile(**options)

    def _of_relations(self) -> list[tuple[Tensor, ...]]:
        stacked: list[Tensor] = [self.eps, self.norm_weight, self.norm_bias]
        for linear in cast(Iterable[StackedLinear], self.linears):
            stacked += [linear.weight, linear.bias]
        return list(zip(*(p.unbind(0) for p in stacked), strict=True))

    def _message_of(
        self,
        a: Aggregate,
        parameters: tuple[Tensor, ...],
        kept: Tensor | None,
    ) -> Message:
        make, factor = self._message, self.factor

        def weighted(x: Tensor, rows: Rows) -> Tensor:
            if kept is not None:
                x = x * (kept[rows] if isinstance(rows, slice) else kept.index_select(0, rows))
            return x if factor == 1 else x * factor

        def message(vectors: Tensor, received: Tensor, rows: Rows) -> Tensor:
            return weighted(make(vectors, received, parameters), rows)

        def gradients(vectors: Tensor, received: Tensor, rows: Rows, by: Tensor) -> Gradients:
            return gin_message_gradients(vectors, received, parameters, weighted(by, rows))

        return Message((a,), message, parameters, gradients)

    def _combined(self, combine: nn.Module, messages: Sequence[Message]) -> Message:
        def combined(vectors: Tensor, *others: Any) -> Tensor:
            *received, rows = others
            each = zip(messages, received, strict=True)
            made = torch.stack([m.function(vectors, a, rows) for m, a in each])
            with named_range(f"{self.name}.combination"):
                new: Tensor = in_precision_of(combine, made)
            return new

        parameters = (*(p for m in messages for p in m.parameters), *combine.parameters())
        return Message(tuple(a for m in messages for a in m.aggregates), combined, parameters)


class MetabolicEdges(NamedTuple):
    """The aggregates between genes, reactions and metabolites."""

    genes_of_reaction: Aggregate  # the mean over the living genes of a reaction's rule
    metabolites_of_reaction: Aggregate  # sum_m |s_jm| p_m / sum_m |s_jm|
    reactions_of_metabolite: Aggregate  # the mean over living reactions j of s_jm q_j
    reactions_of_gene: Aggregate  # the mean over the living reactions whose rule names the gene

    @staticmethod
    @kept_with
    def of(metabolism: Metabolism) -> MetabolicEdges:
        reaction, gene = metabolism.rule_genes
        n = metabolism.n_reactions
        rules = coo_array((np.ones(len(gene)), (reaction, gene)), (n, metabolism.n_genes)).tocsr()
        stoichiometry = coo_array(
            (metabolism.coefficient, (metabolism.reaction, metabolism.metabolite)),
            (n, metabolism.n_metabolites),
        ).tocsr()
        stoichiometry.eliminate_zeros()
        share = abs(stoichiometry)
        share.data /= np.repeat(share.sum(axis=1), np.diff(share.indptr))
        return MetabolicEdges(
            Aggregate(GENE, SparseMatrix.from_scipy(rules), mean=True),
            Aggregate(METABOLITE, SparseMatrix.from_scipy(share)),
            Aggregate(REACTION, SparseMatrix.from_scipy(stoichiometry.T), mean=True),
            Aggregate(REACTION, SparseMatrix.from_scipy(rules.T), mean=True),
        )


class MetabolicLayer(nn.Module):
    """Messages from genes to reactions, to metabolites, and back to the genes.

    - ``q_j' = act(norm(U_q [q_j ; mean of x_g over the living genes of its rule ;
      sum_m |s_jm| p_m / sum_m |s_jm|]))``
    - ``p_m' = act(norm(U_p [p_m ; mean over living reactions j of s_jm q_j']))``
    - ``x_g' = x_g + V(mean of q_j' over the living reactions of g)``

    Lost reactions neither send nor receive; a mean over nothing is 0.
    """

    def __init__(self, name: str, hidden: int) -> None:
        super().__init__()
        self.name = name
        self.reaction = nn.Sequential(nn.Linear(3 * hidden, hidden), nn.LayerNorm(hidden))
        self.metabolite = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.LayerNorm(hidden))
        self.gene = nn.Linear(hidden, hidden)

    def hops(self, edges: MetabolicEdges, *, last: bool) -> tuple[Hop, ...]:
        """Return the layer as hops; the last layer does not update the metabolites."""

        def mixed(module: nn.Module, vectors: Tensor, *others: Any) -> Tensor:
            return functional.gelu(module(torch.cat([vectors, *others[:-1]], -1)))

        def hop(kind: str, aggregates: tuple[Aggregate, ...], module: nn.Module, how: Any) -> Hop:
            message = Message(aggregates, partial(how, module), tuple(module.parameters()))
            return Hop(kind, (message,), width, kind == GENE, partial(named_range, self.name))

        width = self.gene.out_features
        of_reaction = edges.genes_of_reaction, edges.metabolites_of_reaction
        hops = (
            hop(REACTION, of_reaction, self.reaction, mixed),
            hop(METABOLITE, (edges.reactions_of_metabolite,), self.metabolite, mixed),
            hop(GENE, (edges.reactions_of_gene,), self.gene, lambda module, _, a, rows: module(a)),
        )
        return hops[::2] if last else hops


def in_precision_of(module: nn.Module, x: Tensor) -> Any:
    """Return ``module(x)`` in float64 if x is, and otherwise in the precision of the module."""
    own = next(module.parameters()).dtype
    if x.dtype != torch.float64 or own == torch.float64:
        return module(x.to(own))
    # The module itself must not change for a moment: other threads are using it.
    weights: dict[int, Any] = {id(p): p.double() for p in module.parameters()}
    return copy.deepcopy(module, weights)(x)


EPS = 1e-5  # added to a variance before its root is taken


def gin_message(x: Tensor, received: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Return the message of one relation, [m, hidden], in fp32 or better; see `GeneLayer`.

    The parameters are eps, the norm's weight and bias, and weight [in, out] and bias of each
    linear layer.
    """
    if x.dtype == torch.float64:
        parameters = [p.double() for p in parameters]
    eps, norm_weight, norm_bias, *linears = parameters
    h = torch.addmm(linears[1], torch.addcmul(received, 1 + eps, x), linears[0])
    for weight, bias in zip(linears[2::2], linears[3::2], strict=True):
        h = torch.addmm(bias, functional.gelu(h), weight)
    h = h.to(torch.promote_types(h.dtype, torch.float32))
    return functional.gelu(functional.layer_norm(h, h.shape[-1:], norm_weight, norm_bias, EPS))


@torch.no_grad()
def gin_message_gradients(
    x: Tensor,
    received: Tensor,
    parameters: Sequence[Tensor],
    by_message: Tensor,
) -> Gradients:
    """Return the gradients of x, received and the parameters from that of the `gin_message`.

    The message is recomputed. Most of a training step is spent here; with buffers that stay in
    cache, it takes three quarters of the time of automatic differentiation.
    """
    mixed = not x.dtype == received.dtype == parameters[0].dtype
    if mixed or torch.is_autocast_enabled(x.device.type):
        with torch.enable_grad():
            x, received = x.detach().requires_grad_(), received.detach().requires_grad_()
            message = gin_message(x, received, parameters)
        return gradients_of([message], [x, received, *parameters], [by_message])
    act, derivative = torch.ops.aten.gelu.out, torch.ops.aten.gelu_backward.grad_input
    eps, norm_weight, norm_bias, *linears = parameters
    weights, biases = linears[::2], linears[1::2]
    n = len(weights)
    # The inputs and the outputs of each linear layer.
    before, after = x.new_empty(2, n, *x.shape).unbind()
    torch.addcmul(received, 1 + eps, x, out=before[0])
    torch.addmm(biases[0], before[0], weights[0], out=after[0])
    for i in range(1, n):
        act(after[i - 1], out=before[i])
        torch.addmm(biases[i], before[i], weights[i], out=after[i])
    width = [x.shape[1]]
    normed, mean, rstd = torch.native_layer_norm(after[-1], width, norm_weight, norm_bias, EPS)
    by_normed = derivative(by_message, normed, grad_input=normed)
    h, by_norm_weight, by_norm_bias = torch.ops.aten.native_layer_norm_backward(
        by_normed,
        after[-1],
        width,
        mean,
        rstd,
        norm_weight,
        norm_bias,
        [True] * 3,
    )
    by_linears: list[Tensor] = []
    for i in reversed(range(n)):
        by_linears = [before[i].t() @ h, h.sum(0), *by_linears]
        if i:
            torch.mm(h, weights[i].t(), out=after[i])
            h = derivative(after[i], after[i - 1], grad_input=after[i])
    by_received = torch.mm(h, weights[0].t())
    by_x = torch.addcmul(by_received, eps, by_received)
    by_eps = torch.dot(by_received.flatten(), x.flatten())
    return [by_x, by_received, by_eps, by_norm_weight, by_norm_bias, *by_linears]


NARROW = 32  # the hidden width of each pair's MLP and of the scorer


class AttentionCombination(nn.Module):
    """``x = mean_r attention(m + e)_r`` of a gene's messages [r, m, hidden], with a learned e_r."""

    def __init__(self, relations: int, hidden: int, heads: int = 4) -> None:
        super().__init__()
        check_heads(heads, hidden)
        self.heads = heads
        self.relation = nn.Parameter(torch.empty(relations, 1, hidden).normal_(std=0.02))
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, messages: Tensor) -> Tensor:
        r, m, hidden = messages.shape
        projected = self.query_key_value(messages + self.relation)
        by_head = projected.view(r, m, 3, self.heads, hidden // self.heads)
        attended = functional.scaled_dot_product_attention(*by_head.permute(2, 1, 3, 0, 4))
        # The last layer is linear, so it can be applied to the mean.
        return self.out(attended.mean(2).reshape(m, hidden))  # type: ignore[no-any-return]


class PairwiseCombination(nn.Module):
    r"""A softmax-weighted sum, gene by gene, of one option for each pair of relations.

    Each of the ``r (r + 1) / 2`` unordered pairs of relations with repetition has an option
    ``o_ab = B_ab act(A_ab [m_a ; m_b])`` with a separate MLP, Linear(2 hidden, 32), act,
    Linear(32, hidden); the plain mean is one further option. A scorer Linear(hidden, 32), act,
    Linear(32, 1) is shared by all options, and ``x = norm(sum_o softmax(score)_o o)``.

    For speed, ``A [m_a ; m_b] = A' m_a + A'' m_b`` is computed without concatenation, in one
    batched product that projects each relation for its ``r + 1`` places in pairs. The scorer's
    first layer is applied to B_ab, and the weighted sum is taken before B_ab.
    """

    def __init__(self, relations: int, hidden: int) -> None:
        super().__init__()
        self.pairs = tuple(combinations_with_replacement(range(relations), 2))
        n_pairs, n_places, n_in = len(self.pairs), relations + 1, 2 * hidden
        self.project = nn.Parameter(
            default_uniform(relations, hidden, n_places * NARROW, n_in=n_in),
        )
        self.project_bias = nn.Parameter(default_uniform(n_pairs, 1, NARROW, n_in=n_in))
        self.expand = StackedLinear(n_pairs, NARROW, hidden)
        self.score = nn.Linear(hidden, NARROW)
        self.score_out = nn.Linear(NARROW, 1)
        self.norm = nn.LayerNorm(hidden)
        # The places of relation a: first the pairs with it on the left, then on the right.
        left = [a * n_places + (b - a) for a, b in self.pairs]
        right = [b * n_places + (relations - b + a) for a, b in self.pairs]
        self.places = nn.Buffer(torch.tensor(left + right), persistent=False)

    def forward(self, messages: Tensor) -> Tensor:
        r, m, _ = messages.shape
        n_pairs = len(self.pairs)
        projected = torch.bmm(messages, self.project).view(r, m, r + 1, NARROW)
        by_place = projected.transpose(1, 2).reshape(r * (r + 1), m, NARROW)
        left, right = by_place.index_select(0, self.places).view(2, n_pairs, m, NARROW)
        narrow = functional.gelu(left + right + self.project_bias)
        mean = messages.mean(0)
        chosen = self._scores(narrow, mean).softmax(0)
        of_pairs, of_mean = chosen[:n_pairs], chosen[n_pairs]
        weighted = (of_pairs.unsqueeze(-1) * narrow).transpose(0, 1).reshape(m, -1)
        total = torch.addmm(
            of_pairs.t() @ self.expand.bias,
            weighted,
            self.expand.weight.flatten(0, 1),
        )
        return self.norm(total + of_mean.unsqueeze(-1) * mean)  # type: ignore[no-any-return]

    def _scores(self, narrow: Tensor, mean: Tensor) -> Tensor:
        """Return the score of each option for each gene, [n_pairs + 1, m], fp32 or better."""
        weight = self.expand.weight @ self.score.weight.t()
        bias = functional.linear(self.expand.bias, self.score.weight, self.score.bias)
        of_pairs = torch.baddbmm(bias.unsqueeze(1), narrow, weight)
        of_mean = self.score(mean).unsqueeze(0)
        found = self.score_out(functional.gelu(torch.cat([of_pairs, of_mean]))).squeeze(-1)
        return found.to(torch.promote_types(found.dtype, torch.float32))  # type: ignore[no-any-return]


class StackedLinear(nn.Module):
    """The weights of k linear layers of one size, initialised like `torch.nn.Linear`."""

    def __init__(self, k: int, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(default_uniform(k, n_in, n_out, n_in=n_in))
        self.bias = nn.Parameter(default_uniform(k, n_out, n_in=n_in))


def default_uniform(*shape: int, n_in: int) -> Tensor:
    bound = 1 / math.sqrt(n_in)
    return torch.empty(*shape).uniform_(-bound, bound)
