"""All mutants of a batch, tile by tile in threads, as one step of automatic differentiation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from deltacell.propagate.changed import Tile
from deltacell.propagate.given import Given, GradientSums, Name
from deltacell.propagate.tile_backward import TileBackward
from deltacell.propagate.tile_forward import Kept, TileForward
from deltacell.propagate.tile_state import Job
from deltacell.propagate.workers import in_workers, one_core


@dataclass(frozen=True)
class Keeping:
    """What the forward keeps for the backward, which computes the rest again.

    Parameters
    ----------
    states
        Of how many tiles the vectors after each hop are kept.
    sums
        Of how many tiles also the sums over the aggregates.
    workers
        Threads.
    """

    states: int
    sums: int
    workers: int


def run_batch(
    job: Job, tiles: Sequence[Tile], keeping: Keeping, given: Given, *, vectors: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return z [b, hidden] of all mutants, and their genes' vectors [b, n, hidden] if wanted.

    Parameters
    ----------
    job
        What the tiles have in common.
    tiles
        The mutants.
    keeping
        What is kept for the backward.
    given
        What they are computed from.
    vectors
        Whether the genes' vectors are wanted.
    """
    run = _Run(job, tuple(tiles), keeping, tuple(given), vectors, torch.is_grad_enabled())
    z, per_gene = _Batch.apply(run, *given.values())  # type: ignore[no-untyped-call]
    return z, cast(torch.Tensor, per_gene) if vectors else None


@dataclass(frozen=True, eq=False)
class _Run:
    job: Job
    tiles: tuple[Tile, ...]
    keeping: Keeping
    names: tuple[Name, ...]
    vectors: bool
    will_go_back: bool

    def named(self, tensors: Sequence[torch.Tensor]) -> Given:
        return dict(zip(self.names, tensors, strict=True))


class _Batch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: _Run, *tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        given = run.named(tensors)
        kept: list[Kept | None] = [None] * len(run.tiles)

        def one(worker: int, i: int) -> tuple[torch.Tensor, torch.Tensor | None]:
            keep = run.will_go_back and i < run.keeping.states
            tile = TileForward(run.job, run.tiles[i], given)
            z, vectors, made = tile.run(keep_sums=keep and i < run.keeping.sums)
            if keep:
                kept[i] = made
            return z, vectors if run.vectors else None

        with one_core(run.keeping.workers):
            found = in_workers(one, range(len(run.tiles)), run.keeping.workers)
        ctx.run, ctx.kept = run, kept
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        z = torch.cat([z for z, _ in found])
        if not run.vectors:
            return z, z.new_empty(0)
        return z, torch.cat([x for _, x in found if x is not None])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, by_z: torch.Tensor | None, by_vectors: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        run: _Run = ctx.run
        given = run.named(ctx.saved_tensors)
        wants = zip(run.names, ctx.needs_input_grad[1:], strict=True)
        wanted = {name: given[name] for name, want in wants if want}
        sums = [GradientSums(wanted) for _ in range(run.keeping.workers)]
        if not run.vectors:
            by_vectors = None

        def one(worker: int, i: int) -> None:
            tile, kept = run.tiles[i], ctx.kept[i]
            if kept is None:
                *_, kept = TileForward(run.job, tile, given).run(keep_sums=False)
            # Used up, so that memory goes down from here on; a second backward makes it again.
            ctx.kept[i] = None
            mutants = slice(tile.begin, tile.end)
            TileBackward(run.job, tile, given, kept, sums[worker]).run(
                None if by_z is None else by_z[mutants],
                None if by_vectors is None else by_vectors[mutants],
            )

        with one_core(run.keeping.workers):
            in_workers(one, range(len(run.tiles)), run.keeping.workers)
            for other in sums[1:]:
                sums[0].join(other)
        return None, *(sums[0].sums.get(n) for n in run.names)
