"""DANGO: its sizes, what it returns, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from deltacell import Cell, Genotypes, InputError, Relation
from deltacell.models import STRING_LAMBDAS, STRING_RELATIONS, Dango, DangoLoss
from deltacell.models.reconstruction import dense_loss


def _cell(n: int, names: tuple[str, ...] = STRING_RELATIONS, edges: int = 30) -> Cell:
    rng = np.random.default_rng(0)
    relations = [
        Relation.from_edges(name, *rng.integers(0, n, (2, edges)), n_genes=n, directed=False)
        for name in names
    ]
    return Cell([f"Y{i:04d}" for i in range(n)], relations)


def _count(*modules: nn.Module) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())


def test_parameters_are_those_of_the_specification() -> None:
    model = Dango(_cell(6_607))
    assert model.embedding.numel() == 422_848
    assert _count(model.sage) == 99_072
    assert _count(model.reconstruction) == 2_576_730
    assert model.embedding.numel() + _count(model.sage, model.reconstruction) == 3_098_650
    assert _count(model.meta_embedding) == 2_113
    assert _count(model.hyper_sagnn) == 37_507
    assert _count(model) == 3_138_270
    assert float(model.embedding.detach().std()) == pytest.approx(0.1, rel=0.01)


def test_what_it_returns() -> None:
    model = Dango(_cell(40), hidden=8)
    prediction = model(_cell(40), Genotypes.of([[0], [1, 2], [3, 4, 5, 6]]))
    assert prediction.score.shape == (3,)
    assert {name: tuple(t.shape) for name, t in prediction.intermediate.items()} == {
        "networks": (6, 40, 8),
        "genes": (40, 8),
        "attention": (40, 6),
        "z": (3, 8),
        "reconstruction": (6,),
    }
    without = model(_cell(40), Genotypes.of([[0]]), reconstruct=False)
    assert "reconstruction" not in without.intermediate


def test_the_reconstruction_is_that_of_each_network_with_its_lambda() -> None:
    from deltacell.propagate.product import SparseMatrix

    cell = _cell(20).with_relations(STRING_RELATIONS)
    model = Dango(cell, hidden=8).double()
    prediction = model(cell, Genotypes.of([[0]]))
    for k, name in enumerate(STRING_RELATIONS):
        head = model.reconstruction.heads[k]
        plain = dense_loss(
            prediction.intermediate["networks"][k],
            head.weight,
            head.bias,
            SparseMatrix.of(cell.relation(name)),
            STRING_LAMBDAS[name],
        )
        torch.testing.assert_close(prediction.intermediate["reconstruction"][k], plain)
    assert {k for k, v in STRING_LAMBDAS.items() if v == 0.1} == {
        "string_coexpression",
        "string_experimental",
    }


def test_every_parameter_has_a_gradient_even_without_genotypes() -> None:
    cell = _cell(20)
    model = Dango(cell, hidden=8)
    prediction = model(cell, Genotypes.of([]))
    assert prediction.score.shape == (0,)
    loss = DangoLoss()(prediction, torch.zeros(0), torch.zeros(0), epoch=3)
    loss.total.backward()
    assert loss.total == 0
    assert all(p.grad is not None and not p.grad.isnan().any() for p in model.parameters())


def test_other_relations_with_their_lambdas() -> None:
    cell = _cell(20, ("regulatory", "own"))
    model = Dango(cell, ["own", "regulatory"], {"own": 0.5, "regulatory": 1.0}, hidden=8)
    assert model(cell, Genotypes.of([[1, 2]])).intermediate["networks"].shape[0] == 2


def test_a_step_runs_the_encoder_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    encode = Dango.encode
    monkeypatch.setattr(Dango, "encode", lambda *a: (calls.append("encoder"), encode(*a))[1])
    cell = _cell(20)
    Dango(cell, hidden=8)(cell, Genotypes.of([[1], [2, 3]] * 10))
    assert calls == ["encoder"]


def test_it_trains_on_the_planted_reconstruction() -> None:
    torch.manual_seed(0)
    cell = _cell(30)
    model = Dango(cell, hidden=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    genotypes, targets = Genotypes.of([[1], [2, 3], [4, 5, 6]]), torch.tensor([0.5, -0.5, 0.1])
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = DangoLoss("additive")(model(cell, genotypes), targets, epoch=0).total
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]


def test_bf16_is_close_to_float32() -> None:
    torch.manual_seed(0)
    cell = _cell(40)
    model = Dango(cell, hidden=32)
    genotypes, targets = Genotypes.of([[0], [1, 2], [3, 4, 5]]), torch.zeros(3)

    def loss_and_gradient() -> tuple[torch.Tensor, torch.Tensor]:
        model.zero_grad()
        total = DangoLoss()(model(cell, genotypes), targets, epoch=5).total
        total.backward()
        assert model.embedding.grad is not None
        return total.detach(), model.embedding.grad.clone()

    exact, gradient = loss_and_gradient()
    # Without oneDNN, whose bf16 kernels stop some virtual machines by an illegal instruction.
    with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", torch.bfloat16):
        rounded, rounded_gradient = loss_and_gradient()
    torch.testing.assert_close(rounded.float(), exact, rtol=0.02, atol=1e-4)
    assert (rounded_gradient - gradient).norm() < 0.05 * gradient.norm()


def test_a_profiler_sees_the_parts() -> None:
    cell = _cell(20)
    model = Dango(cell, hidden=8)
    with torch.profiler.profile() as profiler:
        model(cell, Genotypes.of([[1, 2]]))
    names = {event.name for event in profiler.events()}
    assert {
        "dango.encoder",
        "dango.encoder.string_fusion",
        "dango.meta_embedding",
        "dango.reconstruction",
        "hyper_sagnn",
    } <= names


def test_ranges_cost_nothing_where_nothing_records(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a range was recorded")

    monkeypatch.setattr(torch.autograd.profiler.record_function, "__init__", fail)
    cell = _cell(20)
    Dango(cell, hidden=8)(cell, Genotypes.of([[1, 2]]))


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ([[1], [2, 20]], r"genotype 1 deletes gene 20, and the cell's genes are 0 to 19"),
        ([[-1]], r"genotype 0 deletes gene -1"),
        ([[1], []], r"genotype 1 deletes no gene"),
        ([[1, 1]], r"genotype 0 deletes gene 1 twice"),
    ],
)
def test_bad_genotypes(
    sets: list[list[int]], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = _cell(20)
    model = Dango(cell, hidden=8)
    monkeypatch.setattr(Dango, "encode", lambda *_: pytest.fail("work was done"))
    with pytest.raises(InputError, match=message):
        model(cell, Genotypes.of(sets))


def test_bad_relations() -> None:
    cell = _cell(20, ("a", "b"))
    with pytest.raises(InputError, match="no relation 'string_neighborhood'; it has a, b"):
        Dango(cell)
    with pytest.raises(InputError, match="network 'b' has no lambda; there are values for a"):
        Dango(cell, ["a", "b"], {"a": 1.0})
    with pytest.raises(InputError, match="given twice"):
        Dango(cell, ["a", "a"], {"a": 1.0})
    with pytest.raises(InputError, match="at least one relation"):
        Dango(cell, [], {})
    with pytest.raises(InputError, match="hidden is 10, which 4 attention heads"):
        Dango(cell, ["a"], {"a": 1.0}, hidden=10)
    with pytest.raises(InputError, match="made for 20 genes, and the cell has 21"):
        Dango(cell, ["a"], {"a": 1.0}, hidden=8)(_cell(21, ("a",)), Genotypes.of([[1]]))
