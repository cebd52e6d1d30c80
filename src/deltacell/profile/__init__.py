"""Where training time goes: phases, the capture window, and what limits a run.

It stands alone, so that any program's time can be looked at without the models.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltacell.profile.capture import (
        Capture,
        Window,
        check_window,
        optimizer_steps,
        steps_per_epoch,
    )
    from deltacell.profile.host_profilers import HostProfiler, host_profiler
    from deltacell.profile.phase_rows import (
        PHASES,
        PhaseSummary,
        PhaseTime,
        Rate,
        read_phases,
        steady_steps,
        summarise,
    )
    from deltacell.profile.phases import NoTimer, PhaseTimer

__all__ = [
    "PHASES",
    "Capture",
    "HostProfiler",
    "NoTimer",
    "PhaseSummary",
    "PhaseTime",
    "PhaseTimer",
    "Rate",
    "Window",
    "check_window",
    "host_profiler",
    "optimizer_steps",
    "read_phases",
    "steady_steps",
    "steps_per_epoch",
    "summarise",
]

_MODULES = {
    "capture": ("Capture", "Window", "check_window", "optimizer_steps", "steps_per_epoch"),
    "host_profilers": ("HostProfiler", "host_profiler"),
    "phases": ("NoTimer", "PhaseTimer"),
}


def __getattr__(name: str) -> Any:
    # Names are looked up when used, so that reading a trace does not wait for PyTorch.
    if name not in __all__:
        raise AttributeError(f"module 'deltacell.profile' has no attribute '{name}'")
    module = next((module for module, names in _MODULES.items() if name in names), "phase_rows")
    return getattr(import_module(f"deltacell.profile.{module}"), name)


def __dir__() -> list[str]:
    return list(__all__)
