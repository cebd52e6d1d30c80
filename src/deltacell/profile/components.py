"""Components: what the named ranges of a model's own code take of a step, forward and backward.

A model names a part of its forward pass with a block::

    with named_range("hetero_cell.pooling"):
        ...

The backward pass runs the nodes of the graph in the opposite order of their creation. So the time
at which the first node of a range is reached is when the backward of that range begins, and no
other hooks are needed. Only some steps are recorded, so that it costs at most `MOST` of the time.
"""

from __future__ import annotations

import os
import re
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import polars as pl
import torch
from torch import Tensor
from torch._C._autograd import _get_sequence_nr as next_sequence_number
from torch.autograd import profiler as torch_profiler
from torch.autograd.graph import Node

from deltacell.profile.component_rows import (
    COMPONENT_COLUMNS,
    NO_COMPONENT,
    WITHIN,
    StepPass,
    component_prefix,
)
from deltacell.profile.row_files import RowFiles

MOST = 0.005  # the share of the time that recording may cost
FIRST_STEP = 4  # of an attempt that is recorded; those before it are warm-up
_OF_LEAF = 2**63  # nodes of leaves have larger numbers, and run as soon as they can

Clock: TypeAlias = Callable[[], int]
Boundaries: TypeAlias = list[tuple[int, str]]  # the number of the next node, and its component


class NamedRange:
    """A context that profilers show by name, and that is a component of recorded steps.

    The ``title`` is what explanations call it; by default the last part of the name. A range inside
    another one is a component of that component.
    """

    __slots__ = ("_before", "_name", "_shown", "_title", "_track")

    def __init__(self, name: str, title: str | None = None) -> None:
        self._name = name
        self._title = title
        self._shown: torch_profiler.record_function | None = None
        self._track: _Track | None = None
        self._before = NO_COMPONENT

    def __enter__(self) -> None:
        if torch.compiler.is_compiling():
            return
        if torch_profiler._is_profiler_enabled:
            self._shown = torch_profiler.record_function(self._name)
            self._shown.__enter__()  # type: ignore[no-untyped-call]
        track = _track.get()
        if track is not None:
            self._track = track
            self._before = track.component
            track.switch(_inside(track.component, self._title or _default_title(self._name)))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._track is not None:
            self._track.switch(self._before)
            self._track = None
        if self._shown is not None:
            self._shown.__exit__(kind, error, traceback)
            self._shown = None


@cache
def _default_title(name: str) -> str:
    words = name.rpartition(".")[2].replace("_", " ")
    return re.sub(r"(?<=[a-z])(?=\d)", " ", words)  # layer1 is called layer 1


def _inside(component: str, title: str) -> str:
    return f"{component}{WITHIN}{title}" if component else title


class _Track:
    """The time of one thread in one pass: at any moment exactly one component is current."""

    def __init__(self, clock: Clock, component: str = NO_COMPONENT) -> None:
        self.clock = clock
        self.component = component
        self.spent: dict[str, int] = {}
        self.boundaries: Boundaries = [(next_sequence_number(), component)]
        self.n_switches = 0
        self.marking = 0  # nanoseconds spent on finding and hooking nodes
        self._since = clock()

    def switch(self, component: str) -> None:
        """End the current component and begin another one."""
        self.settle()
        self.component = component
        self.boundaries.append((next_sequence_number(), component))
        self.n_switches += 1

    def settle(self) -> None:
        """Count the time until now for the current component."""
        now = self.clock()
        self.spent[self.component] = self.spent.get(self.component, 0) + now - self._since
        self._since = now

    def divide(self, by: Mapping[str, int]) -> None:
        """Divide the time since the last switch in proportion to the time of other threads."""
        whole = sum(by.values())
        before = self.spent.get(self.component, 0)
        self.settle()
        elapsed = self.spent[self.component] - before
        if not whole:
            return
        self.spent[self.component] = before
        for component, nanoseconds in by.items():
            share = elapsed * nanoseconds // whole
            self.spent[component] = self.spent.get(component, 0) + share


_track: ContextVar[_Track | None] = ContextVar("track", default=None)


class _Switch:
    """A hook before a node of the backward, which begins a component."""

    def __init__(self, component: str) -> None:
        self._component = component

    def __call__(self, gradients: Sequence[Tensor]) -> None:
        track = _track.get()
        if track is not None and track.component != self._component:
            track.switch(self._component)


def _mark(outputs: Sequence[Tensor], boundaries: Boundaries, clock: Clock) -> int:
    """Let the backward of outputs switch components where their graph did.

    Returns the nanoseconds that this took.
    """
    if len({component for _, component in boundaries}) < 2:
        return 0
    began = clock()
    for component, node in _first_nodes(outputs, boundaries):
        node.register_prehook(_Switch(component))
    return clock() - began


def _first_nodes(outputs: Sequence[Tensor], boundaries: Boundaries) -> list[tuple[str, Node]]:
    """Return the first node that the backward reaches in each stretch between boundaries.

    A node belongs to the last boundary at or below its number; the backward reaches the one with
    the largest number first.
    """
    numbers = [number for number, _ in boundaries]
    first: dict[int, tuple[int, Node]] = {}
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen: set[Node] = set(waiting)
    while waiting:
        node = waiting.pop()
        number = node._sequence_nr()
        stretch = bisect_right(numbers, number) - 1
        is_later = stretch not in first or number > first[stretch][0]
        if stretch >= 0 and number < _OF_LEAF and is_later:
            first[stretch] = (number, node)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return [(boundaries[stretch][1], node) for stretch, (_, node) in first.items()]


@contextmanager
def own_graph() -> Iterator[Callable[[Sequence[Tensor]], None]]:
    """Prepare a graph of its own, whose backward is run by hand, for being split into components.

    Call what this yields with the outputs of the graph, when they have been computed.
    """
    track = _track.get()
    if track is None:
        yield _ignore
        return
    track.boundaries.append((next_sequence_number(), track.component))
    begin = len(track.boundaries) - 1

    def mark(outputs: Sequence[Tensor]) -> None:
        track.marking += _mark(outputs, track.boundaries[begin:], track.clock)

    yield mark


def _ignore(outputs: Sequence[Tensor]) -> None:
    """Do nothing, because the step is not recorded."""


@contextmanager
def same_component_after() -> Iterator[None]:
    """Return to the present component after a block, such as the backward of a graph of its own."""
    track = _track.get()
    before = NO_COMPONENT if track is None else track.component
    try:
        yield
    finally:
        if track is not None and track.component != before:
            track.switch(before)


class WorkerTimes:
    """What several threads do for one that waits for them; its wait is divided as their time is."""

    def __init__(self) -> None:
        self._waiting = _track.get()
        self._lock = threading.Lock()
        self._spent: dict[str, int] = {}

    def of_thread(self) -> AbstractContextManager[None]:
        """Return a context for the work of one thread."""
        return nullcontext() if self._waiting is None else self._recorded(self._waiting)

    @contextmanager
    def _recorded(self, waiting: _Track) -> Iterator[None]:
        track = _Track(waiting.clock, waiting.component)
        token = _track.set(track)
        try:
            yield
        finally:
            _track.reset(token)
            track.settle()
            with self._lock:
                waiting.n_switches += track.n_switches
                waiting.marking += track.marking
                for component, nanoseconds in track.spent.items():
                    self._spent[component] = self._spent.get(component, 0) + nanoseconds

    def end(self) -> None:
        """Divide the time that the waiting thread has waited."""
        if self._waiting is not None:
            self._waiting.divide(self._spent)


class ComponentTimer:
    """Records the components of some steps, so few that it costs at most ``most`` of the time.

    A recorded step is one row per component and pass. The first steps are not recorded, and the
    longer a training takes, the fewer of its steps are.
    """

    def __init__(self, clock: Clock = time.perf_counter_ns, *, most: float = MOST) -> None:
        self._clock = clock
        self._most = most
        self._began = clock()
        self._steps = 0
        self._recorded = 0
        self._next = FIRST_STEP
        self._spent: dict[tuple[StepPass, str], int] | None = None  # None if not recorded
        self._last: tuple[StepPass, str] | None = None  # the component that ended last
        self._boundaries: Boundaries = []
        self._cost = 0  # nanoseconds of all recorded steps
        self._cost_of_step = 0
        self._cost_of_switch = _cost_of_switch()
        self._rows: list[tuple[Any, ...]] = []
        self._files = RowFiles("the components")

    @property
    def is_recording(self) -> bool:
        """Whether the present step is recorded."""
        return self._spent is not None

    @property
    def cost_share(self) -> float:
        """The share of the time since the beginning that recording took."""
        return self._cost / max(1, self._clock() - self._began)

    def begin_step(self) -> None:
        """Begin a step, and decide whether it is recorded."""
        self._steps += 1
        allowed = self._most * (self._clock() - self._began)
        is_cheap = self._cost + self._cost_of_step <= allowed
        is_due = self._steps >= self._next and is_cheap
        # A profiler would make the ranges longer than they are.
        self._spent = {} if is_due and not torch_profiler._is_profiler_enabled else None
        self._cost_of_step = 0 if self.is_recording else self._cost_of_step

    def during(self, step_pass: StepPass) -> AbstractContextManager[None]:
        """Return a context for a pass of the step."""
        return nullcontext() if self._spent is None else self._recorded_pass(step_pass)

    @contextmanager
    def _recorded_pass(self, step_pass: StepPass) -> Iterator[None]:
        track = _Track(self._clock)
        token = _track.set(track)
        try:
            yield
        finally:
            _track.reset(token)
            track.settle()
            self._add(step_pass, track)

    def _add(self, step_pass: StepPass, track: _Track) -> None:
        assert self._spent is not None
        self._boundaries = track.boundaries
        self._last = (step_pass, track.component)
        self._cost_of_step += track.marking + round(self._cost_of_switch * track.n_switches)
        for component, nanoseconds in track.spent.items():
            key = (step_pass, component)
            self._spent[key] = self._spent.get(key, 0) + nanoseconds

    def before_backward(self, loss: Tensor) -> None:
        """Let the backward of a loss switch components as its forward pass did."""
        if self._spent is not None:
            self._cost_of_step += _mark([loss], self._boundaries, self._clock)

    def leave_out(self, seconds: float) -> None:
        """Leave out what the last component spent on waiting for other ranks."""
        if self._spent is not None and self._last in self._spent:
            self._spent[self._last] -= min(round(seconds * 1e9), self._spent[self._last])

    def end_step(self, step: int, samples: int) -> None:
        """Keep what was recorded; ``samples`` are those of this process alone."""
        spent = self._spent
        if spent is None:
            return
        self._spent = None
        self._recorded += 1
        self._next = self._steps + 1 + self._recorded // 100
        self._cost += self._cost_of_step
        for (step_pass, component), nanoseconds in spent.items():
            self._rows.append((step, samples, step_pass.value, component, nanoseconds / 1e9))

    def flush(self, folder: str | os.PathLike[str], rank: int, attempt: int) -> None:
        """Write the new rows atomically; they are kept if that fails."""
        if not self._rows:
            return
        rows = [(rank, attempt, *row) for row in self._rows]
        frame = pl.DataFrame(rows, COMPONENT_COLUMNS, orient="row")
        self._files.add(Path(folder), component_prefix(rank, attempt), frame)
        self._rows = []


class NoComponents(ComponentTimer):
    """A timer that records no step."""

    def begin_step(self) -> None:
        """Do nothing."""


@cache
def _cost_of_switch(n: int = 200) -> float:
    """Return the nanoseconds that a switch of components takes, measured once per process."""
    track = _Track(time.perf_counter_ns)
    began = time.perf_counter_ns()
    for _ in range(n):
        track.switch("a component")
    return (time.perf_counter_ns() - began) / n
