"""How long a training has taken, and how many genotypes per second it computes."""

from __future__ import annotations

import time

_SHORTEST = 1e-9  # seconds, so that a rate is finite


class Throughput:
    """The seconds of a training over all attempts, and the speed of its current epoch."""

    def __init__(self) -> None:
        self._began = self._epoch_began = time.monotonic()
        self._n_genotypes = 0

    def start(self, seconds_before: float) -> None:
        """Begin an attempt; the seconds of earlier attempts count."""
        self._began = time.monotonic() - seconds_before

    def start_epoch(self) -> None:
        """Begin to count the genotypes of an epoch."""
        self._epoch_began = time.monotonic()
        self._n_genotypes = 0

    def add(self, n_genotypes: int) -> None:
        """Count genotypes of the current epoch."""
        self._n_genotypes += n_genotypes

    def seconds(self) -> float:
        """Return the seconds of training until now."""
        return time.monotonic() - self._began

    def samples_per_second(self) -> float:
        """Return the genotypes per second since the epoch began in this attempt."""
        return self._n_genotypes / max(time.monotonic() - self._epoch_began, _SHORTEST)
