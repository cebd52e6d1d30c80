"""The memory that the libraries need to start, and errors that mean that it was not enough."""

from __future__ import annotations

import os
import re

from deltacell.base.errors import DeltacellError

# Measured with the peak of virtual memory (VmPeak) while a small run was fitted and ranked with.
# Libraries reserve far more addresses than they use, and each of their threads reserves some.
BASE_BYTES = 3_000_000_000
BYTES_PER_CORE = 300_000_000
MOST_CORES = 8  # counted, as reservations fail softly once the libraries are loaded

_LACKS_MEMORY = re.compile(
    r"^(OutOf|Arrow)?MemoryError|cannot allocate memory|failed to map segment"
    r"|failed to launch worker thread|can't start new thread|bad_alloc",
    re.IGNORECASE,
)


class NotEnoughMemoryError(DeltacellError):
    """The system grants this process less memory than it needs.

    Args:
        message: The sentence that is shown.
        limit: How many bytes of virtual memory are granted, if that is known.
        needed: How many are needed, if that is known.
    """

    code = "not-enough-memory"

    def __init__(
        self,
        message: str,
        *,
        limit: int | None = None,
        needed: int | None = None,
    ) -> None:
        self.limit = limit
        self.needed = needed
        super().__init__(message)


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error means that memory, or a thread for lack of it, was refused.

    Some libraries only say so in the message of an error of another kind.
    """
    if isinstance(error, MemoryError):
        return True
    return _LACKS_MEMORY.search(f"{type(error).__name__}: {error}") is not None


def needed_bytes() -> int:
    """Return how much virtual memory the libraries reserve on this machine."""
    has_affinity = hasattr(os, "sched_getaffinity")
    n_cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return BASE_BYTES + BYTES_PER_CORE * min(n_cores, MOST_CORES)


def limit_bytes() -> int | None:
    """Return the limit of virtual memory, ``ulimit -v``; None if there is none."""
    try:
        import resource
    except ImportError:  # as on Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def check_limit() -> None:
    """Raise if virtual memory is limited to less than the libraries need.

    Libraries that are refused memory or threads wait for ever, abort, or blame a file.
    """
    limit = limit_bytes()
    needed = needed_bytes()
    if limit is None or limit >= needed:
        return
    kilobytes = -(-needed // 1024)
    message = (
        f"virtual memory is limited to {limit / 1e9:.1f} GB, and {needed / 1e9:.1f} GB are "
        "needed, most of which is reserved but not used\n"
        f"  Raise the limit: ulimit -v {kilobytes}; under Slurm, ask for more memory."
    )
    raise NotEnoughMemoryError(message, limit=limit, needed=needed)


def memory_sentence() -> str:
    """Return that memory was not enough, with the limit if there is one."""
    limit = limit_bytes()
    sentence = "there is not enough memory"
    if limit is None:
        return sentence
    return f"{sentence}: virtual memory is limited to {limit / 1e9:.1f} GB (ulimit -v)"
