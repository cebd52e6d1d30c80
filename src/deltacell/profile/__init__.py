"""Where training time goes: phases, the capture window, and what limits a run.

It stands alone, so that any program's time can be looked at without the models.
"""

from deltacell.profile.capture import Capture
from deltacell.profile.host_profilers import HostProfiler, host_profiler
from deltacell.profile.limits import PhaseSummary, PhaseTime, Rate, steady_steps, summarise
from deltacell.profile.phases import PHASES, NoTimer, PhaseTimer, read_phases
from deltacell.profile.window import Window, check_window, optimizer_steps, steps_per_epoch

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
