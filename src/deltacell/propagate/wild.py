"""The wild type, propagated once a step, with the parts that mutants are differences from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from deltacell.propagate.aggregate import aggregate
from deltacell.propagate.common import in_parts
from deltacell.propagate.hop import Hop, Message, State
from deltacell.propagate.places import slices
from deltacell.propagate.product import SparseMatrix, multiply
from deltacell.propagate.protocol import WildType
from deltacell.propagate.row_wise import autocast_here, row_wise
from deltacell.propagate.workers import in_any_worker


@dataclass(frozen=True, eq=False)
class WildTypeInParts(WildType):
    """The wild type with what lies between its vectors.

    Parameters
    ----------
    sums
        For each hop, what was received before a mean divides, [k, n, hidden].
    messages
        For each hop, its messages, [k, n, hidden]; None where it has none.
    """

    sums: tuple[torch.Tensor, ...] = ()
    messages: tuple[torch.Tensor | None, ...] = ()


def wild_type_in_parts(
    hops: Sequence[Hop], state: State, rows_at_a_time: int | None, workers: int
) -> WildTypeInParts:
    """Propagate the wild type.

    Parameters
    ----------
    hops, state
        As in `Propagation.wild_type`.
    rows_at_a_time
        How many rows go through a row-wise function together; None is all.
    workers
        Threads that share the aggregates of a hop between them.
    """
    states: list[State] = [state]
    sums: list[torch.Tensor] = []
    messages: list[torch.Tensor | None] = []
    for hop in hops:
        old = states[-1]
        with hop.around():
            if hop.messages is None:
                new, heard = _updated(hop, old, rows_at_a_time)
                made = None
            else:
                new, heard, made = _summed(hop, hop.messages, old, rows_at_a_time, workers)
        states.append({**old, hop.target: new})
        sums.append(heard)
        messages.append(made)
    return WildTypeInParts(tuple(states), tuple(sums), tuple(messages))


def _updated(
    hop: Hop, state: State, rows_at_a_time: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    each = {kind: x.unsqueeze(1) for kind, x in state.items()}
    sums = aggregate(hop.aggregates, each, (None,) * len(hop.aggregates))
    received = sums
    if any(a.mean for a in hop.aggregates):
        scaled = [
            x if scale is None else x * scale.unsqueeze(1)
            for x, scale in zip(sums, _scales(hop, sums), strict=True)
        ]
        received = torch.stack(scaled)
    new = row_wise(hop, each[hop.target], received, rows_at_a_time)
    return new.squeeze(1), sums.squeeze(2)


def _summed(
    hop: Hop,
    messages: tuple[Message, ...],
    state: State,
    rows_at_a_time: int | None,
    workers: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    kinds = tuple(dict.fromkeys([hop.target, *(a.source for a in hop.aggregates)]))
    job = _Job(hop, messages, kinds, rows_at_a_time, workers)
    parameters = [p for m in messages for p in m.parameters]
    found = _Summed.apply(job, *(state[kind] for kind in kinds), *parameters)  # type: ignore[no-untyped-call]
    return cast(tuple[torch.Tensor, torch.Tensor, torch.Tensor], found)


@dataclass(frozen=True, eq=False)
class _Job:
    """A hop with messages, of the wild type."""

    hop: Hop
    messages: tuple[Message, ...]
    kinds: tuple[str, ...]
    rows_at_a_time: int | None
    workers: int


class _Summed(torch.autograd.Function):
    """New vectors, sums and messages of a hop with messages, aggregate by aggregate in threads."""

    @staticmethod
    def forward(ctx: Any, job: _Job, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hop = job.hop
        xs = dict(zip(job.kinds, given, strict=False))
        x = xs[hop.target]
        parts = in_parts(hop.aggregates)
        common = {
            p.common: multiply(p.common, _wide(xs[a.source]))
            for a, p in zip(hop.aggregates, parts, strict=True)
            if p.common is not None
        }
        sums = _wide(x).new_empty(len(parts), *x.shape)
        messages = x.new_empty(len(parts), *x.shape)
        scales = _scales(hop, sums)
        autocast = autocast_here(x.device.type)

        def one(k: int) -> None:
            own, *others = parts[k].of(hop.aggregates[k].matrix)
            with torch.no_grad(), autocast():
                sums[k] = multiply(own, _wide(xs[hop.aggregates[k].source]))
                for other in others:
                    sums[k] += common[other]
                for rows in slices(len(x), job.rows_at_a_time):
                    received = _received(sums[k], scales[k], rows)
                    messages[k, rows] = job.messages[k].function(x[rows], received, rows)

        in_any_worker(one, range(len(parts)), job.workers)
        new = x.clone() if hop.residual else torch.zeros_like(x)
        # One after the other, as in mutants, so that rounding is the same.
        for message in messages:
            new += message
        ctx.job, ctx.autocast = job, autocast
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(sums, *given)
        return new, sums, messages

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any,
        by_new: torch.Tensor | None,
        by_sums: torch.Tensor | None,
        by_messages: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, ...]:
        job: _Job = ctx.job
        hop = job.hop
        sums, *given = ctx.saved_tensors
        xs = dict(zip(job.kinds, given, strict=False))
        x = xs[hop.target]
        parts, scales = in_parts(hop.aggregates), _scales(hop, sums)

        def one(k: int) -> _ByAggregate:
            message, scale = job.messages[k], scales[k]
            found = _ByAggregate(x, sums[k], len(message.parameters))
            with torch.no_grad(), ctx.autocast():
                if by_new is not None or by_messages is not None:
                    for rows in slices(len(x), job.rows_at_a_time):
                        gradient = _total(by_new, by_messages, k, rows)
                        received = _received(sums[k], scale, rows)
                        place = found.sums[rows]
                        found.add(
                            rows,
                            scale,
                            *message.backward(x[rows], received, rows, gradient, place),
                        )
                else:
                    found.sums.zero_()
                if by_sums is not None:
                    found.sums += by_sums[k]
                own = parts[k].of(hop.aggregates[k].matrix)[0]
                found.source = multiply(own.transpose, found.sums)
            return found

        by_given = {kind: torch.zeros_like(value) for kind, value in xs.items()}
        by_parameters: list[torch.Tensor | None] = []
        by_common: dict[tuple[str, SparseMatrix], torch.Tensor] = {}
        for k, found in enumerate(in_any_worker(one, range(len(parts)), job.workers)):
            source, common = hop.aggregates[k].source, parts[k].common
            by_given[hop.target] += found.own
            by_given[source] += found.source
            by_parameters += found.parameters
            if common is not None:
                before = by_common.pop((source, common), None)
                by_common[source, common] = found.sums if before is None else before + found.sums
        for (source, common), gradient in by_common.items():
            by_given[source] += multiply(common.transpose, gradient)
        if hop.residual and by_new is not None:
            by_given[hop.target] += by_new
        return None, *by_given.values(), *by_parameters


class _ByAggregate:
    """The gradients that come back over one aggregate."""

    def __init__(self, x: torch.Tensor, sums: torch.Tensor, n_parameters: int) -> None:
        self.own, self.sums = torch.zeros_like(x), torch.empty_like(sums)
        self.source = self.own
        self.parameters: list[torch.Tensor | None] = [None] * n_parameters

    def add(
        self,
        rows: slice,
        scale: torch.Tensor | None,
        by_own: torch.Tensor | None,
        by_received: torch.Tensor | None,
        by_parameters: Sequence[torch.Tensor | None],
    ) -> None:
        """Take the gradients of a few rows."""
        if by_own is not None:
            self.own[rows] = by_own
        if by_received is None:
            self.sums[rows] = 0
        else:
            self.sums[rows] = by_received if scale is None else by_received * scale[rows]
        self.parameters = [
            before if more is None else more if before is None else before + more
            for before, more in zip(self.parameters, by_parameters, strict=True)
        ]


def _received(sums: torch.Tensor, scale: torch.Tensor | None, rows: slice) -> torch.Tensor:
    return sums[rows] if scale is None else sums[rows] * scale[rows]


def _total(
    by_new: torch.Tensor | None, by_messages: torch.Tensor | None, k: int, rows: slice
) -> torch.Tensor:
    """Return the gradient of messages, which are in the new vectors and wanted for themselves."""
    if by_messages is None:
        assert by_new is not None
        return by_new[rows]
    return by_messages[k, rows] if by_new is None else by_messages[k, rows] + by_new[rows]


def _scales(hop: Hop, like: torch.Tensor) -> list[torch.Tensor | None]:
    return [
        a.matrix.row_counts(device=like.device, dtype=like.dtype).clamp(min=1).reciprocal()
        if a.mean
        else None
        for a in hop.aggregates
    ]


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32)).contiguous()
