"""Hyper-SAGNN: sets of any size, attention to the others only."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from deltacell import Genotypes, InputError
from deltacell.models.hyper_sagnn import HyperSAGNN, OthersAttention, padded


def _one_set(model: HyperSAGNN, e: torch.Tensor) -> torch.Tensor:
    """The score of one set, gene by gene and head by head, as the formula is written."""
    sets = model.sets
    x = e
    for layer in sets.attention:
        assert isinstance(layer, OthersAttention)
        query, key, value = layer.query_key_value(x).chunk(3, dim=-1)
        width = x.shape[1] // layer.heads
        new = []
        for i in range(len(x)):
            others = [j for j in range(len(x)) if j != i]
            if not others:
                new.append(x[i])
                continue
            heads = []
            for h in range(layer.heads):
                at = slice(h * width, (h + 1) * width)
                logits = torch.stack([query[i, at] @ key[j, at] for j in others]) / width**0.5
                share = torch.exp(logits) / torch.exp(logits).sum()
                heads.append(sum(a * value[j, at] for a, j in zip(share, others, strict=True)))
            new.append(x[i] + layer.beta * layer.out(torch.cat(heads)))
        x = torch.stack(new)
    static = torch.relu(sets.static(e))
    return sets.score((x - static) ** 2).mean()


@pytest.mark.parametrize(("heads", "layers"), [(4, 2), (8, 2), (1, 1), (2, 3)])
def test_it_is_the_formula(heads: int, layers: int) -> None:
    torch.manual_seed(0)
    model = HyperSAGNN(16, heads, layers).double()
    for layer in model.sets.attention:
        nn.init.constant_(layer.beta, 0.7)
    e = torch.randn(9, 16, dtype=torch.float64)
    sets = [[0, 3, 4], [5], [8, 1], [2, 6, 7, 1, 0], [3, 2]]
    expected = torch.stack([_one_set(model, e[s]) for s in sets])
    torch.testing.assert_close(model(e, Genotypes.of(sets)), expected)


def test_a_gene_alone_passes_through_unchanged() -> None:
    model = HyperSAGNN(8)
    e = torch.randn(4, 8)
    scores = model.scores(e, Genotypes.of([[2], [0, 1, 3]]))
    assert torch.equal(scores.dynamic[0, 0], e[2])
    assert not torch.allclose(scores.dynamic[1, 0], e[0])


def test_parameters() -> None:
    assert sum(p.numel() for p in HyperSAGNN(64).parameters()) == 37_507
    assert all(layer.beta == 0.01 for layer in HyperSAGNN(64).sets.attention)


def test_no_genotypes_give_no_scores_and_zero_gradients() -> None:
    model = HyperSAGNN(8)
    e = torch.randn(4, 8, requires_grad=True)
    score = model(e, Genotypes.of([]))
    score.sum().backward()
    assert score.shape == (0,)
    assert e.grad is not None
    assert not e.grad.any()


def test_a_wider_bound_changes_nothing() -> None:
    model = HyperSAGNN(8).double()
    e = torch.randn(6, 8, dtype=torch.float64)
    genotypes = Genotypes.of([[1], [2, 3], [0, 4, 5]])
    narrow = model(e, genotypes)
    model.largest = 7
    torch.testing.assert_close(model(e, genotypes), narrow, rtol=1e-12, atol=0)


def test_a_genotype_above_the_bound_is_an_error() -> None:
    model = HyperSAGNN(8, largest=2)
    with pytest.raises(InputError, match=r"deletes 3 genes.*at most 2"):
        model(torch.randn(6, 8), Genotypes.of([[1], [0, 4, 5]]))
    with pytest.raises(InputError, match="largest is 0"):
        HyperSAGNN(8, largest=0)


def test_memory_is_linear_in_the_batch() -> None:
    model = HyperSAGNN(8)
    kept: list[int] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        kept.append(t.numel())
        return t

    def largest(batch: int) -> int:
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            model(torch.randn(9, 8), Genotypes.of([[0, 1, 2]] * batch))
        return max(kept)

    assert largest(2_000) <= 10 * largest(200) + 100


def test_padding() -> None:
    genes, present = padded(Genotypes.of([[4, 2], [7], [1, 3, 5]]), 3)
    assert present.tolist() == [[True, True, False], [True, False, False], [True] * 3]
    assert genes[present].tolist() == [4, 2, 7, 1, 3, 5]


@pytest.mark.parametrize("heads", [3, 0, 128])
def test_heads_that_do_not_divide_the_width(heads: int) -> None:
    with pytest.raises(InputError, match=rf"hidden is 64, which {heads} attention heads.*"):
        HyperSAGNN(64, heads)


def test_bf16_is_close() -> None:
    torch.manual_seed(0)
    model = HyperSAGNN(32)
    e = torch.randn(20, 32)
    genotypes = Genotypes.of([[1], [2, 3], [0, 4, 5], [7, 9, 11, 13]])
    exact = model(e, genotypes)
    # Without oneDNN, whose bf16 kernels stop some virtual machines by an illegal instruction.
    with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", torch.bfloat16):
        rounded = model(e, genotypes)
    torch.testing.assert_close(rounded.float(), exact, rtol=0.05, atol=0.02)
