"""Hyper-SAGNN: the score of a set of genes by attention within the set."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from deltacell.errors import InputError
from deltacell.models.ranges import named_range
from deltacell.screen import Genotypes


class SetScores(NamedTuple):
    """What Hyper-SAGNN finds of ``b`` genotypes, padded to ``s`` genes each.

    Parameters
    ----------
    score
        [b].
    z
        The mean over the genes of a set of ``(dynamic - static)^2``, [b, hidden].
    static, dynamic
        The two vectors of each gene, [b, s, hidden]; padding carries values that mean nothing.
    present
        Which of the ``s`` places hold a gene, [b, s].
    """

    score: torch.Tensor
    z: torch.Tensor
    static: torch.Tensor
    dynamic: torch.Tensor
    present: torch.Tensor


class HyperSAGNN(nn.Module):
    r"""Score sets of genes by how far each gene's vector moves among the others of its set.

    For the vector e of a gene, its static vector is ``s = relu(Linear(e))``. Its dynamic vector d
    is e after ``layers`` times ``x + beta * attention(x)``, where a gene attends to the other genes
    of its set and never to itself, with beta a scalar that starts at 0.01. A gene alone in its set
    passes through unchanged. The score is the mean over the genes of a set of
    ``Linear(hidden, 1)((d - s)^2)``.

    Sets are padded to the largest, so time and memory are linear in the number of sets.

    Parameters
    ----------
    hidden
        Width of a gene's vector.
    heads
        Attention heads; they divide the width.
    layers
        Attention layers.
    largest
        The most genes that a genotype will have. Where not given it is found in each batch, which
        is free for genotypes on a CPU and waits for the device elsewhere.
    """

    def __init__(
        self, hidden: int, heads: int = 4, layers: int = 2, *, largest: int | None = None
    ) -> None:
        super().__init__()
        if largest is not None and largest < 1:
            raise InputError(f"largest is {largest}; a genotype has at least one gene")
        self.hidden = hidden
        self.largest = largest
        self.sets = PaddedSets(hidden, heads, layers)
        self._compiled = False

    def forward(self, gene_vectors: torch.Tensor, genotypes: Genotypes) -> torch.Tensor:
        """Return the scores [b] of genotypes.

        Parameters
        ----------
        gene_vectors
            [n_genes, hidden].
        genotypes
            Sets of one gene or more, ``b`` of them, which may be none. Those on a CPU are sent to
            the device of the vectors.
        """
        return self.scores(gene_vectors, genotypes).score

    def scores(self, gene_vectors: torch.Tensor, genotypes: Genotypes) -> SetScores:
        """Return the scores of genotypes with all that led to them; arguments as in `forward`."""
        with named_range("hyper_sagnn"):
            width = self._width(genotypes)
            genotypes = genotypes.to(gene_vectors.device, non_blocking=True)
            genes, present = padded(genotypes, width)
            x = functional.embedding(genes, gene_vectors)
            if self._compiled:
                _vary_in_size(x, present)
            score, z, static, dynamic = self.sets(x, present)
            return SetScores(score, z, static, dynamic, present)

    def compile_row_wise(self, **options: Any) -> None:
        """Compile what happens after the genes are gathered.

        The compiled code is for any number of genotypes and genes, so that a batch of another size
        does not compile it again.

        Parameters
        ----------
        options
            Of `torch.compile`.
        """
        self._compiled = True
        self.sets.compile(**options)

    def _width(self, genotypes: Genotypes) -> int:
        sizes = genotypes.sizes
        if self.largest is None:
            width = int(sizes.max()) if len(genotypes) else 1
        else:
            width = self.largest
            _check_largest(sizes, width)
        # At least two, because torch.compile makes code of its own for a size of one.
        return max(2, width)


class PaddedSets(nn.Module):
    """The part of Hyper-SAGNN that works on vectors alone.

    Parameters
    ----------
    hidden, heads, layers
        As in `HyperSAGNN`.
    """

    def __init__(self, hidden: int, heads: int, layers: int) -> None:
        super().__init__()
        self.static = nn.Linear(hidden, hidden)
        self.attention = nn.ModuleList(OthersAttention(hidden, heads) for _ in range(layers))
        self.score = nn.Linear(hidden, 1)

    def forward(
        self, x: torch.Tensor, present: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return score [b], z [b, hidden], and the static and dynamic vectors [b, s, hidden].

        Parameters
        ----------
        x
            The genes' vectors, [b, s, hidden].
        present
            Which places hold a gene, [b, s].
        """
        static = torch.relu(self.static(x))
        dynamic = x
        for layer in self.attention:
            dynamic = layer(dynamic, present)
        moved = (dynamic - static).square()
        here = present.unsqueeze(-1)
        # The last layer is linear: the score of the mean is the mean of the scores.
        z = torch.where(here, moved, 0).sum(1) / here.sum(1)
        return self.score(z).squeeze(-1), z, static, dynamic


class OthersAttention(nn.Module):
    """Attention of each gene of a set to the others, ``x + beta * attention(x)``.

    Parameters
    ----------
    hidden
        Width of a vector.
    heads
        Attention heads; they divide the width.
    """

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        if heads < 1 or hidden % heads:
            raise InputError(
                f"hidden is {hidden}, which {heads} attention heads do not divide evenly",
                fix=f"Take {' or '.join(str(h) for h in _divisors(hidden))} heads.",
            )
        self.heads = heads
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.beta = nn.Parameter(torch.tensor(0.01))

    def forward(self, x: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """Return the new vectors [b, s, hidden].

        Parameters
        ----------
        x
            [b, s, hidden].
        present
            Which places hold a gene, [b, s].
        """
        own = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        others = present.unsqueeze(1) & ~own
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.query_key_value(x).chunk(3, dim=-1)
        )
        logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        # Not -inf: a gene alone has no others, and its row, dropped below, must stay a number.
        lowest = torch.finfo(logits.dtype).min
        attention = logits.masked_fill(~others.unsqueeze(1), lowest).softmax(-1).to(value.dtype)
        out = self.out((attention @ value).transpose(1, 2).flatten(-2))
        return x + self.beta * torch.where(others.any(-1, keepdim=True), out, 0)


def padded(genotypes: Genotypes, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the genes of genotypes as a rectangle, and which of its places hold one.

    Parameters
    ----------
    genotypes
        ``b`` sets of genes.
    width
        At least the size of the largest.

    Returns
    -------
    tuple of torch.Tensor
        Gene indices [b, width], any gene where there is none, and bool [b, width].
    """
    place = torch.arange(width, device=genotypes.offsets.device)
    present = place < genotypes.sizes.unsqueeze(1)
    at = (genotypes.offsets[:-1].unsqueeze(1) + place).clamp(max=len(genotypes.genes) - 1)
    return genotypes.genes[at], present


def _check_largest(sizes: torch.Tensor, largest: int) -> None:
    if sizes.device.type != "cpu":
        # Not looked at here: the device itself stops where a gene would be lost.
        torch._assert_async((sizes <= largest).all(), "a genotype is larger than `largest`")
    elif (sizes > largest).any():
        raise InputError(
            f"a genotype deletes {int(sizes.max())} genes, and the model was made for at most "
            f"{largest} (largest={largest})"
        )


def _vary_in_size(*tensors: torch.Tensor) -> None:
    """Tell the compiler which sizes change from batch to batch: genotypes and genes of one."""
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, [0, 1])


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
