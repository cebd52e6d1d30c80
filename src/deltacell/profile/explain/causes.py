"""Causes as values: what takes the time of a step, or what makes the difference between two.

A `Cause` has a kind and the numbers behind it; `sentences.py` turns it into text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from deltacell.profile.explain.settings import SettingChange
from deltacell.profile.record import Messages

DEVICE_PARTS = {
    "compute": "computing",
    "communication": "exposed communication",
    "copies": "exposed copying",
    "idle": "idle",
}


class CauseKind(StrEnum):
    """What takes time, or makes a difference."""

    # The parts of a device's time, and why it is idle.
    compute = "compute"
    communication = "communication"
    copies = "copies"
    idle_data = "idle data"
    idle_sync = "idle sync"
    idle_launch = "idle launch"
    idle_host = "idle host"
    idle_device = "idle device"
    idle_queued = "idle queued"
    idle_unlaunched = "idle unlaunched"
    idle_end = "idle end"
    # A category of the host's time, or an operation without a category.
    host = "host"
    # The rank that the others wait for.
    rank = "rank"
    # Differences between the work of two programs.
    programs = "programs"
    passes = "passes"
    forward_passes = "forward passes"
    backward_passes = "backward passes"
    calls = "calls"
    batch = "batch"
    sizes = "sizes"
    type = "type"
    recompute = "recompute"
    compiled = "compiled"
    graphs = "graphs"
    # The same work takes longer in all its parts, on the device or on the host.
    uniform = "uniform"
    machine = "machine"
    # The traces do not tell.
    unknown = "unknown"
    # Settings that differ between two runs of this program.
    model = "model"
    propagation = "propagation"
    loss_function = "loss function"
    ranks = "ranks"
    relations = "relations"
    parameters = "parameters"
    option = "option"
    genes = "genes"
    cell = "cell"
    accumulated = "accumulated batches"
    precision = "precision"
    device = "other device"
    threads = "threads"
    torch = "torch"
    mode = "mode"
    settings = "settings"
    # None of the settings that are recorded of two runs explains the difference.
    no_setting = "no setting"

    @property
    def is_idle(self) -> bool:
        """Whether it is a reason for idle time of a device."""
        return self.value.startswith("idle ")

    @classmethod
    def idle(cls, reason: str) -> CauseKind:
        """Return the kind of a reason for idle time, as in `profile.trace.device`."""
        return cls(f"idle {reason}")


@dataclass(frozen=True)
class Timed:
    """An operation, kernel or module with its seconds per step."""

    name: str
    seconds: float


@dataclass(frozen=True)
class StepShare:
    """A part of one program's step, with the operation and the module that lead it."""

    part: str  # human-readable
    operation: Timed | None = None
    module: Timed | None = None


@dataclass(frozen=True)
class IdleReason:
    """Why a device is idle, and what the host did or had waited for meanwhile."""

    reason: str
    seconds: float
    operation: str | None


@dataclass(frozen=True)
class IdleShare:
    """The idle time of a device, with its largest reasons."""

    reasons: tuple[IdleReason, ...]


@dataclass(frozen=True)
class LateRank:
    """The rank that the others wait for, and what makes it late."""

    rank: int
    collective: str
    index: int  # of the collective among those of its kind in a step
    late_by_s: float
    late_before_s: float  # by which it began its step later than the first rank
    first_rank: int
    category: str | None  # what it spends more time on than the others, if that is known
    operation: str | None
    more_s: float
    times_last: int
    n_collectives: int

    @property
    def starts_late(self) -> bool:
        """Whether the rank is late mainly because it began its step late."""
        return 2 * self.late_before_s >= self.late_by_s


@dataclass(frozen=True)
class Straggler:
    """A rank of a run that reaches the exchange of gradients later than the others."""

    rank: int
    late_s: float
    part: str  # that it spends more time on
    more_s: float


@dataclass(frozen=True)
class BatchCause:
    """Another batch: the first size of most operators' first input changes by one factor."""

    old: int
    new: int
    ratio: float  # of the times of a step


@dataclass(frozen=True)
class DataType:
    """Another data type of most operators' inputs."""

    old: str
    new: str


@dataclass(frozen=True)
class Execution:
    """How one of two programs carries out the same work: recomputed, compiled or as a graph."""

    kind: CauseKind
    program: str  # that does it


@dataclass(frozen=True)
class UniformOperations:
    """Every operation of the device takes about as many times as long."""

    ratio: float


@dataclass(frozen=True)
class OnlyOne:
    """An operation that only one of two programs has."""

    program: str
    operation: Timed


@dataclass(frozen=True)
class LongerOperation:
    """An operation that takes longer in B, and the module in which it does."""

    name: str
    before: float
    after: float
    module: str | None


@dataclass(frozen=True)
class Operation:
    """The operation or kernel that changed most, without anything else known of it."""

    name: str


@dataclass(frozen=True)
class MoreCalls:
    """An operator that is called more often, with how often per step in A and in B."""

    name: str
    calls_a: float
    calls_b: float
    slower: str  # the program that calls it more often


@dataclass(frozen=True)
class LargerInputs:
    """The same calls on larger inputs: of most operators, and of the one that takes longest."""

    ratio: float
    name: str
    sizes_a: str
    sizes_b: str


@dataclass(frozen=True)
class CannotTell:
    """The same calls take longer, in all parts or in one, and the traces do not tell why."""

    ratio: float
    has_shapes: bool


@dataclass(frozen=True)
class UnlikeCalls:
    """One program calls operators more often, and this does not explain the difference.

    It is the faster one, or its other calls take longer, as in a few steps of a busy machine.
    """

    a: str
    b: str
    calls_a: float  # of all operators of a step
    calls_b: float
    ratio: float  # of the times of a step
    part: str  # that changed most
    operation: str | None  # that changed most in it


# What is behind the change of a part from A to B.
Detail = (
    BatchCause
    | DataType
    | Execution
    | MoreCalls
    | LargerInputs
    | UniformOperations
    | OnlyOne
    | LongerOperation
    | Operation
    | CannotTell
    | None
)


@dataclass(frozen=True)
class BusyTime:
    """The device computes longer in one of two traces, whatever the noise of their steps."""

    a: str
    b: str
    seconds_a: float  # per step
    seconds_b: float
    detail: Detail


@dataclass(frozen=True)
class OtherOperations:
    """Kernels or operators that only one of two traces has, the longest first."""

    what: str  # kernels or operators
    a: str
    b: str
    only_a: tuple[Timed, ...]
    only_b: tuple[Timed, ...]


@dataclass(frozen=True)
class GapShare:
    """The change of one part of a step from A to B, as a share of the gap between them."""

    part: str  # a category of the host, a part of the device, or "idle" with a reason
    change: float
    gap: float
    operation: str | None = None
    detail: Detail = None


@dataclass(frozen=True)
class SlowerMachine:
    """Every part of the host takes about as many times as long.

    ``beyond`` is the part that takes still longer, if there is one.
    """

    ratio: float
    competing_workers: bool  # only B has loader workers
    beyond: GapShare | None


@dataclass(frozen=True)
class TwoPrograms:
    """Two different programs, with the components that the other one does not have.

    If they have the same components, ``changed`` is the one whose time changed most. ``beside`` is
    a part of the step that belongs to no component and makes much of the gap, such as the wait for
    other ranks.
    """

    a: str
    b: str
    only_a: tuple[Timed, ...]  # the longest first
    only_b: tuple[Timed, ...]
    changed: LongerOperation | None
    step_a: float  # seconds
    step_b: float
    beside: Timed | None = None  # with the change from A to B


@dataclass(frozen=True)
class MorePasses:
    """One program that runs more passes of its model in a step."""

    kind: CauseKind  # passes, forward_passes or backward_passes
    a: str
    b: str
    factor: float  # how many times as many B runs
    ratio: float  # of the times of a step


@dataclass(frozen=True)
class RunWork:
    """On what the model of a run passes messages, and how."""

    run: str
    model: str
    messages: Messages | None
    propagation: str | None  # as in the config
    strategy: str | None  # that is used


@dataclass(frozen=True)
class OtherWork:
    """Two runs with different models, or of one model with different propagations."""

    slow: RunWork
    fast: RunWork


@dataclass(frozen=True)
class OtherSettings:
    """Settings of two runs of one model that differ and can make the gap.

    If there are several, the runs do not tell which of them does.
    """

    changes: tuple[SettingChange, ...]
    ratio: float
    part: GapShare  # the part of a step that changes most


@dataclass(frozen=True)
class NoSetting:
    """The part of a step that makes most of a gap that the recorded settings do not explain.

    ``changes`` are the settings that differ. They are None if the settings are not recorded.
    """

    part: GapShare
    changes: tuple[SettingChange, ...] | None


Evidence = (
    StepShare
    | IdleShare
    | LateRank
    | GapShare
    | SlowerMachine
    | TwoPrograms
    | MorePasses
    | CannotTell
    | UnlikeCalls
    | OtherWork
    | OtherSettings
    | NoSetting
)


@dataclass(frozen=True)
class Cause:
    """What takes time, or makes a difference.

    ``seconds`` are per step, or the change from A to B; ``share`` is of the step or of the gap.
    """

    kind: CauseKind
    name: str | None  # the operation, kernel, rank or program behind it
    seconds: float
    share: float
    evidence: Evidence
