"""Named ranges, so that a profiler shows a forward by component."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def named_range(name: str) -> AbstractContextManager[object]:
    """Return a context whose time a profiler shows under a name; nothing where none records.

    Parameters
    ----------
    name
        ``<model>.<part>``, such as ``dango.encoder``.
    """
    if torch.autograd.profiler._is_profiler_enabled:
        return torch.autograd.profiler.record_function(name)
    return _NOTHING


_NOTHING: AbstractContextManager[object] = nullcontext()
