"""The mean loss of an epoch, summed up where it is computed."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from deltacell.train.communication import world_size


class Meter:
    """Means over the genotypes of an epoch; nothing is read before its end.

    Parameters
    ----------
    device
        Where the values are.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.genotypes = 0
        self._sums: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def add(self, values: dict[str, torch.Tensor], genotypes: int) -> None:
        """Add the values of a batch.

        Parameters
        ----------
        values
            This rank's shares of the batch's means, by name.
        genotypes
            How many the global batch has.
        """
        self.genotypes += genotypes
        for name, value in values.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros((), dtype=torch.float64, device=self.device)
            self._sums[name].add_(value.detach(), alpha=genotypes)

    def means(self) -> dict[str, float]:
        """Return the means over all ranks; one collective for all of them."""
        if not self._sums:
            return {}
        means = (self._over_ranks() / max(1, self.genotypes)).tolist()
        return dict(zip(self._sums, means, strict=True))

    def reset(self) -> None:
        """Begin an epoch."""
        self.genotypes = 0
        self._sums = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the sums so far, over all ranks, which all have to call this."""
        sums = dict(zip(self._sums, self._over_ranks(), strict=True)) if self._sums else {}
        return {
            "genotypes": self.genotypes,
            "sums": {name: total.clone() for name, total in sums.items()},
        }

    def load_state_dict(self, state: dict[str, Any], *, first: bool = True) -> None:
        """Go on with sums; where there are several ranks, with those of the first alone.

        Parameters
        ----------
        state
            Of `state_dict`.
        first
            Whether this is the first rank; the others begin with 0, so that nothing counts twice.
        """
        self.genotypes = state["genotypes"]
        self._sums = {
            name: total.to(self.device, torch.float64) * (1.0 if first else 0.0)
            for name, total in state["sums"].items()
        }

    def _over_ranks(self) -> torch.Tensor:
        together = torch.stack(list(self._sums.values()))
        if world_size() > 1:
            dist.all_reduce(together)
        return together


class Latest:
    """The newest value of a tensor for a person to see, without waiting for the device.

    Elsewhere than on a CPU it lags behind by one look.
    """

    def __init__(self) -> None:
        self._copy: torch.Tensor | None = None
        self._ready: Any = None
        self.value = float("nan")

    def look(self, tensor: torch.Tensor) -> float:
        """Return the value, or that of the look before."""
        if tensor.device.type == "cpu":
            self.value = float(tensor.detach())
            return self.value
        if self._copy is not None and self._ready.query():
            self.value = float(self._copy)
            self._copy = None
        if self._copy is None:
            self._copy = torch.empty((), dtype=tensor.dtype, pin_memory=True)
            self._copy.copy_(tensor.detach(), non_blocking=True)
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record()
        return self.value
