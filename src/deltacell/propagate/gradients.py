"""Gradients of what was just computed."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def gradients_of(
    made: torch.Tensor, inputs: Sequence[torch.Tensor], gradient: torch.Tensor
) -> list[torch.Tensor | None]:
    """Return the gradients of inputs; None for those that want none or had no part in it.

    Parameters
    ----------
    made
        What was made of the inputs, with its graph.
    inputs
        Of which to find the gradients.
    gradient
        Of what was made.
    """
    wanted = [x.requires_grad for x in inputs]
    chosen = [x for x, want in zip(inputs, wanted, strict=True) if want]
    if not chosen or not made.requires_grad:
        return [None] * len(inputs)
    found = iter(torch.autograd.grad(made, chosen, gradient.to(made.dtype), allow_unused=True))
    return [next(found) if want else None for want in wanted]
