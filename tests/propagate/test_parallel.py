import threading

import pytest
import torch

from deltacell.propagate.parallel.chunks import ALL, Chunks, RowFunction, row_wise
from deltacell.propagate.parallel.graphs import GraphWork, in_graphs
from deltacell.propagate.parallel.threads import (
    in_any_worker,
    in_workers,
    one_core,
    workers_for,
)

CPU = torch.device("cpu")


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("workers", [1, 2, 3, 9])
def test_results_come_in_order_and_shares_are_fixed(workers):
    found = in_workers(lambda worker, item: (worker, item * 10), range(7), workers)
    assert found == [(i % min(workers, 7), i * 10) for i in range(7)]
    assert in_any_worker(lambda item: item * 10, range(7), workers) == [i * 10 for i in range(7)]
    assert in_workers(lambda worker, item: item, [], workers) == []


def test_whoever_is_free_takes_the_next():
    waiting = threading.Event()

    def work(item):
        # The first only ends when all others are done, so another thread must do those.
        if item == 0:
            assert waiting.wait(20)
        if item == 4:
            waiting.set()
        return threading.get_ident()

    found = in_any_worker(work, range(5), 2)
    assert found[0] not in found[1:]


@pytest.mark.usefixtures("three_threads")
def test_each_thread_has_one_core_and_the_caller_keeps_its_own():
    assert in_workers(lambda *_: torch.get_num_threads(), range(4), 4) == [1] * 4
    fresh: list[int] = []
    thread = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert [torch.get_num_threads(), *fresh] == [3, 3]
    assert (workers_for(CPU, 100), workers_for(CPU, 2)) == (3, 2)
    assert workers_for(torch.device("cuda"), 100) == 1
    with one_core(2):
        assert torch.get_num_threads() == 1
    with pytest.raises(ZeroDivisionError), one_core(2):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 3
    with one_core(1):
        assert torch.get_num_threads() == 3


def test_errors_and_inference_mode_go_along():
    with pytest.raises(ValueError, match="three"):
        in_workers(lambda _, item: int("three" if item == 3 else 0), range(5), 2)
    for mode in (True, False):
        with torch.inference_mode(mode):
            found = in_workers(lambda *_: torch.is_inference_mode_enabled(), range(2), 2)
        assert found == [mode] * 2


class Rows(RowFunction):
    """A row-wise function, with its parameters."""

    def __init__(self, function, parameters, backward=None):
        self.function, self.parameters, self._backward = function, parameters, backward

    def forward(self, rows, inputs):
        return self.function(*inputs, rows)

    def backward(self, rows, inputs, gradient):
        return self._backward and self._backward(*inputs, rows, gradient)


@pytest.mark.parametrize("chunks", [Chunks(1), Chunks(4, 2), Chunks(100), Chunks(None, 3)])
@pytest.mark.parametrize("n", [0, 7])
def test_chunks_change_nothing(chunks, n):
    torch.manual_seed(0)
    x, y = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    weight, unused = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True).unbind()
    shift = torch.randn(n, 3, dtype=torch.float64)

    def function(x, y, rows):
        return (x @ weight).tanh() * y * shift[rows], x.sum(1)

    assert sum((part.stop - part.start for part in chunks.slices(n)), 0) == n
    for rows in (ALL, torch.randperm(n)):
        expected = function(x, y, rows)
        found = row_wise(Rows(function, [weight, unused]), rows, [x, y], chunks)
        by = [torch.randn_like(one) for one in expected]
        torch.testing.assert_close(list(found), list(expected), rtol=1e-12, atol=1e-12)
        gradients = (torch.autograd.grad(made, [x, y, weight], by) for made in (found, expected))
        torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_nothing_between_is_kept_and_the_backward_has_the_same_autocast():
    x = torch.randn(7, 3)
    weight = torch.randn(3, 3, requires_grad=True)
    seen: list[torch.dtype] = []
    saved: list[int] = []

    def function(x, rows):
        new = x @ weight
        seen.append(new.dtype)
        return (new.float().tanh(),)

    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda t: (saved.append(t.numel()), t)[1],
        lambda t: t,
    )
    with hooks, torch.autocast("cpu", torch.bfloat16):
        (new,) = row_wise(Rows(function, [weight]), ALL, [x], Chunks(100))
    assert sum(saved) == x.numel() + weight.numel()
    new.sum().backward()
    assert seen == [torch.bfloat16, torch.bfloat16]
    assert weight.grad is not None
    assert weight.grad.abs().sum() > 0


def test_a_gradient_by_hand_is_used_for_inputs_and_parameters():
    x, weight = torch.randn(2, 5, 1, dtype=torch.float64, requires_grad=True).unbind()

    def function(x, rows):
        return (x * weight[0],)

    def backward(x, rows, gradient):
        # Wrong on purpose, by factors that show which gradient it is.
        return [2 * gradient * weight[0], 3 * (gradient * x).sum(0, keepdim=True)]

    first = weight[:1]
    (product,) = row_wise(Rows(function, [first], backward), ALL, [x], Chunks(2))
    by_x, by_first = torch.autograd.grad(product.sum(), [x, first])
    torch.testing.assert_close(by_x, (2 * weight[0]).expand(5, 1))
    torch.testing.assert_close(by_first, 3 * x.detach().sum(0, keepdim=True))


class Pieces(GraphWork):
    """Pieces of work of one function, with their inputs and parameters."""

    def __init__(self, function, inputs, parameters):
        self.function, self.inputs, self.parameters = function, inputs, parameters

    def forward(self, piece, inputs):
        return self.function(piece, inputs)


@pytest.mark.parametrize("kept", [None, 0, 2])
@pytest.mark.parametrize("workers", [1, 2])
def test_items_in_graphs_of_their_own(workers, kept):
    x, weight = torch.randn(2, 4, dtype=torch.float64, requires_grad=True).unbind()
    runs: list[int] = []

    def run(i, given):
        runs.append(i)
        a, b = given
        return (i + 1) * a * weight, (a * b).sum()

    # The same tensor twice: its gradient is the sum of both.
    found = in_graphs(Pieces(run, [[x, x]] * 3, [weight]), workers, kept)
    loss = sum((a * (i + 1)).sum() + b**2 for i, (a, b) in enumerate(found))
    by_x, by_weight = torch.autograd.grad(loss, [x, weight])
    torch.testing.assert_close(by_weight, 14 * x)
    torch.testing.assert_close(by_x, 14 * weight + 3 * 4 * (x * x).sum() * x)
    assert len(runs) == (3 if kept is None else 6 - kept)


def test_sums_do_not_write_to_gradients_that_others_hold():
    """Autograd hands one tensor to several inputs of a sum."""
    x, y = (torch.zeros(4, requires_grad=True) for _ in range(2))
    sums = Pieces(lambda piece, inputs: (inputs[0] + inputs[1],), [[x, y]] * 4, [])
    found = in_graphs(sums, 1)
    by = [torch.full((4,), float(i)) for i in range(4)]
    gradients = torch.autograd.grad([made[0] for made in found], [x, y], by)
    assert [g.tolist() for g in gradients] == [[6.0] * 4] * 2
    assert [g[0].item() for g in by] == [0, 1, 2, 3]
