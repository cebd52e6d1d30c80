"""Hyper-SAGNN: the score of a set of genes by attention within the set."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from deltacell.base.checks import check_range
from deltacell.base.errors import InputError
from deltacell.models.base import check_heads, named_range
from deltacell.screen import Genotypes


class HyperSAGNN(nn.Module):
    r"""Score sets of genes by the distance of each gene's dynamic vector from its static one.

    For a gene with the vector e, the static vector is ``s = relu(Linear(e))``. The dynamic vector d
    is e after ``layers`` layers ``x + beta * attention(x)``, in which a gene attends to the other
    genes of its set but not to itself; beta is a scalar that starts at 0.01. The vector of a gene
    alone in its set does not change. The score of a set is the mean over its genes of
    ``Linear(hidden, 1)((d - s)^2)``.

    Sets are padded to `largest` genes; by default to the largest set of each batch, which requires
    waiting for a device other than a CPU.
    """

    def __init__(
        self,
        hidden: int,
        heads: int = 4,
        layers: int = 2,
        *,
        largest: int | None = None,
    ) -> None:
        super().__init__()
        if largest is not None:
            check_range("[1, inf)", largest=largest)
        self.largest = largest
        self.sets = PaddedSets(hidden, heads, layers)
        self._compiled = False

    def forward(self, gene_vectors: Tensor, genotypes: Genotypes) -> Tensor:
        """Return scores [b] from the vectors of all genes, [n_genes, hidden]."""
        return self.scores(gene_vectors, genotypes)[0]

    def scores(self, gene_vectors: Tensor, genotypes: Genotypes) -> tuple[Tensor, Tensor]:
        """Return scores [b] and z [b, hidden], the mean of ``(d - s)^2`` over a set's genes."""
        with named_range("hyper_sagnn", "Hyper-SAGNN"):
            width = self._width(genotypes)
            genotypes = genotypes.to(gene_vectors.device, non_blocking=True)
            place = torch.arange(width, device=genotypes.offsets.device)
            present = place < genotypes.sizes.unsqueeze(1)
            # Any gene serves as padding.
            last = len(genotypes.genes) - 1
            positions = (genotypes.offsets[:-1].unsqueeze(1) + place).clamp(max=last)
            x = functional.embedding(genotypes.genes[positions], gene_vectors)
            if self._compiled:
                # The numbers of genotypes and of genes change from batch to batch.
                for tensor in (x, present):
                    torch._dynamo.maybe_mark_dynamic(tensor, [0, 1])
            return self.sets(x, present)  # type: ignore[no-any-return]

    def compile_row_wise(self, **options: Any) -> None:
        """Compile the part that works set by set."""
        self._compiled = True
        self.sets.compile(**options)

    def _width(self, genotypes: Genotypes) -> int:
        """Return the number of genes that sets are padded to."""
        sizes = genotypes.sizes
        width = self.largest
        if width is None:
            width = int(sizes.max()) if len(genotypes) else 1
        elif sizes.device.type != "cpu":
            # Checked on the device, because reading the sizes would wait for it.
            torch._assert_async((sizes <= width).all(), "a genotype is larger than `largest`")
        elif (sizes > width).any():
            message = f"a genotype deletes {int(sizes.max())} genes; the model allows {width}"
            raise InputError(message, code="genotype-too-large")
        # At least two, because torch.compile specialises on a size of one.
        return max(2, width)


class PaddedSets(nn.Module):
    """The part of Hyper-SAGNN that can be compiled."""

    def __init__(self, hidden: int, heads: int, layers: int) -> None:
        super().__init__()
        self.static = nn.Linear(hidden, hidden)
        self.attention = nn.ModuleList(OthersAttention(hidden, heads) for _ in range(layers))
        self.score = nn.Linear(hidden, 1)

    def forward(self, x: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores [b] and z [b, hidden] for x [b, s, hidden] and present [b, s]."""
        static = torch.relu(self.static(x))
        dynamic = x
        for layer in self.attention:
            dynamic = layer(dynamic, present)
        distance = (dynamic - static).square()
        is_present = present.unsqueeze(-1)
        # The last layer is linear: the score of the mean is the mean of the scores.
        z = torch.where(is_present, distance, 0).sum(1) / is_present.sum(1)
        return self.score(z).squeeze(-1), z


class OthersAttention(nn.Module):
    """Attention of each gene of a set to the others, ``x + beta * attention(x)``."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        check_heads(heads, hidden)
        self.heads = heads
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.beta = nn.Parameter(torch.tensor(0.01))

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        """Return new vectors for x [b, s, hidden] and present [b, s]."""
        own = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        others = present.unsqueeze(1) & ~own
        projected = self.query_key_value(x).chunk(3, dim=-1)
        query = self._by_head(projected[0])
        key = self._by_head(projected[1])
        value = self._by_head(projected[2])
        logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        # -inf would give NaN for a gene without others, whose row is dropped below.
        lowest = torch.finfo(logits.dtype).min
        masked = logits.masked_fill(~others.unsqueeze(1), lowest)
        attention = masked.softmax(-1).to(value.dtype)
        attended = (attention @ value).transpose(1, 2).flatten(-2)
        has_others = others.any(-1, keepdim=True)
        return x + self.beta * torch.where(has_others, self.out(attended), 0)

    def _by_head(self, x: Tensor) -> Tensor:
        """Return vectors [b, s, hidden] by head, [b, heads, s, hidden / heads]."""
        return torch.unflatten(x, -1, (self.heads, -1)).transpose(1, 2)
