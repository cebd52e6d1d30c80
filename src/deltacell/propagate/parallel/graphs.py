"""Independent pieces of work in threads, forward and backward, each with its own autograd graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from deltacell.profile.components import own_graph, same_component_after
from deltacell.propagate.parallel.threads import in_workers, one_core

Gradients = Sequence[Tensor | None]


class GraphWork(ABC):
    """Pieces of work that may share tensors: a tile of mutants each, a message, or a few rows.

    Attributes
    ----------
    inputs
        The tensors that each piece reads and that may need a gradient.
    parameters
        The tensors that all pieces read and that may need a gradient.
    """

    inputs: Sequence[Sequence[Tensor]]
    parameters: Sequence[Tensor]

    @abstractmethod
    def forward(self, piece: int, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the results of one piece, computed from `inputs` in place of its own."""

    def backward(
        self,
        piece: int,
        inputs: Sequence[Tensor],
        gradient: Tensor | None,
    ) -> Gradients | None:
        """Return the gradients of the inputs and the parameters from that of the only result.

        None, the default, leaves it to automatic differentiation.
        """
        return None


def in_graphs(work: GraphWork, workers: int, kept: int | None = None) -> list[tuple[Tensor, ...]]:
    """Return the results of each piece of work, computed in threads.

    The graphs of the first `kept` pieces (by default all) are kept for the backward, which
    computes the others again.
    """
    all_inputs = chain.from_iterable(work.inputs)
    distinct = {id(tensor): tensor for tensor in all_inputs}
    places = {identity: place for place, identity in enumerate(distinct)}
    n_pieces = len(work.inputs)
    n_kept = n_pieces if kept is None else kept
    job = _Job(
        work=work,
        places=[_places_of(inputs, places) for inputs in work.inputs],
        n_inputs=len(distinct),
        workers=workers,
        n_kept=n_kept if torch.is_grad_enabled() else 0,
        autocast=_present_autocast(work.inputs[0][0].device.type),
    )
    results = _InGraphs.apply(job, *distinct.values(), *work.parameters)  # type: ignore[no-untyped-call]
    n_results = len(results) // n_pieces
    return [results[i : i + n_results] for i in range(0, len(results), n_results)]


def _places_of(inputs: Sequence[Tensor], places: Mapping[int, int]) -> list[int]:
    return [places[id(tensor)] for tensor in inputs]


def gradients_of(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    gradients: Gradients,
) -> list[Tensor | None]:
    """Return the gradients of `inputs` from those of the `outputs`; None for unused inputs."""
    pairs = [
        (output, gradient.to(output.dtype))
        for output, gradient in zip(outputs, gradients, strict=True)
        if gradient is not None and output.requires_grad
    ]
    wanted = [x for x in inputs if x.requires_grad]
    if not pairs or not wanted:
        return [None] * len(inputs)
    used_outputs, used_gradients = zip(*pairs, strict=True)
    results = torch.autograd.grad(used_outputs, wanted, used_gradients, allow_unused=True)
    remaining = iter(results)
    return [next(remaining) if x.requires_grad else None for x in inputs]


Autocast = Callable[[], AbstractContextManager[object]]


def _present_autocast(device_type: str) -> Autocast:
    """Return what enters the present autocast again, in another thread or in the backward."""
    # Casts made without a gradient must not be reused where a gradient is needed.
    return partial(
        torch.autocast,
        device_type,
        torch.get_autocast_dtype(device_type),
        enabled=torch.is_autocast_enabled(device_type),
        cache_enabled=False,
    )


@dataclass(frozen=True, eq=False)
class _Job:
    work: GraphWork
    places: Sequence[Sequence[int]]  # of each piece's inputs among the distinct ones
    n_inputs: int  # distinct ones, which come before the parameters
    workers: int
    n_kept: int
    autocast: Autocast

    def forward(
        self,
        piece: int,
        leaves: Sequence[Tensor],
        *,
        graph: bool,
    ) -> tuple[Tensor, ...]:
        """Return the results of a piece, with a graph if wanted."""
        inputs = [leaves[place] for place in self.places[piece]]
        with torch.set_grad_enabled(graph), self.autocast():
            if not graph:
                return self.work.forward(piece, inputs)
            with own_graph() as mark:
                results = self.work.forward(piece, inputs)
                mark(results)
            return results

    def backward(
        self,
        piece: int,
        leaves: Sequence[Tensor],
        gradient: Tensor | None,
    ) -> Gradients | None:
        """Return the gradients of a piece by hand, or None."""
        with self.autocast():
            inputs = [leaves[place] for place in self.places[piece]]
            return self.work.backward(piece, inputs, gradient)

    def leaves(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the inputs as leaves of new graphs."""
        inputs = tensors[: self.n_inputs]
        return [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in inputs]


class _InGraphs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: _Job, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the results of all pieces, piece by piece."""
        leaves = job.leaves(tensors)
        ctx.job = job
        ctx.leaves = leaves if job.n_kept else None
        ctx.kept = {}

        def compute(_: int, piece: int) -> list[Tensor]:
            is_kept = piece < job.n_kept
            results = job.forward(piece, leaves, graph=is_kept)
            if is_kept:
                ctx.kept[piece] = results
            return [result.detach() for result in results]

        with one_core(job.workers):
            of_pieces = in_workers(compute, range(len(job.places)), job.workers)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        return tuple(chain.from_iterable(of_pieces))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs and the parameters, added up over the pieces."""
        job: _Job = ctx.job
        tensors = ctx.saved_tensors
        leaves = ctx.leaves or job.leaves(tensors)
        parameters = range(job.n_inputs, len(tensors))
        inputs = [*leaves, *tensors[job.n_inputs :]]
        totals: list[dict[int, Tensor]] = [{} for _ in range(job.workers)]
        n_results = len(gradients) // len(job.places)

        def add_gradients(worker: int, piece: int) -> None:
            of_piece = gradients[piece * n_results : (piece + 1) * n_results]
            wanted = [*dict.fromkeys(job.places[piece]), *parameters]
            new = job.backward(piece, leaves, of_piece[0])
            if new is None:
                # Popped to free memory; a second backward computes it again.
                with same_component_after():
                    results = ctx.kept.pop(piece, None) or job.forward(piece, leaves, graph=True)
                    new = gradients_of(results, [inputs[i] for i in wanted], of_piece)
            _add(totals[worker], zip(wanted, new, strict=True))

        with one_core(job.workers):
            in_workers(add_gradients, range(len(job.places)), job.workers)
            for others in totals[1:]:
                _add(totals[0], others.items())
        ctx.leaves = None
        return None, *(totals[0].get(i) for i in range(len(tensors)))


def _add(totals: dict[int, Tensor], gradients: Iterable[tuple[int, Tensor | None]]) -> None:
    for place, gradient in gradients:
        if gradient is not None:
            # Not in place, because autograd may return the same memory for several inputs.
            totals[place] = totals[place] + gradient if place in totals else gradient
