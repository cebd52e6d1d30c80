"""Where training time goes: phases, the capture window, and what limits a run.

It stands alone, so that any program's time can be looked at without the models.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltacell.profile.capture import Capture
    from deltacell.profile.host_profilers import HostProfiler, host_profiler
    from deltacell.profile.limits import PhaseSummary, PhaseTime, Rate, steady_steps, summarise
    from deltacell.profile.phase_rows import PHASES, read_phases
    from deltacell.profile.phases import NoTimer, PhaseTimer
    from deltacell.profile.window import Window, check_window, optimizer_steps, steps_per_epoch

_HOME = {
    "capture": ("Capture",),
    "host_profilers": (
        "HostProfiler",
        "host_profiler",
    ),
    "limits": (
        "PhaseSummary",
        "PhaseTime",
        "Rate",
        "steady_steps",
        "summarise",
    ),
    "phase_rows": ("PHASES", "read_phases"),
    "phases": ("NoTimer", "PhaseTimer"),
    "window": (
        "Window",
        "check_window",
        "optimizer_steps",
        "steps_per_epoch",
    ),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

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


def __getattr__(name: str) -> Any:
    # Names are looked up when used, so that reading a trace does not wait for PyTorch.
    if name not in _MODULE:
        raise AttributeError(f"module 'deltacell.profile' has no attribute '{name}'")
    return getattr(import_module(f"deltacell.profile.{_MODULE[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
