"""Pairs of recorded programs: the kind of the cause is right, or it cannot be told from the traces.

The programs are run and recorded here, on a machine that may be busy with something else. So a
difference may be lost in noise, but it must never have a wrong cause.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import training
from training import (
    CONVOLUTIONS,
    DANGO,
    EDGE_MASK,
    HETERO_CELL,
    LATE,
    MLP,
    PAIR_CELL,
    SHARED,
    SUBGRAPH,
    TRANSFORMER,
    Recording,
    Training,
)

from deltacell.profile.explain import explain
from deltacell.profile.explain.causes import (
    Cause,
    CauseKind,
    GapShare,
    MoreCalls,
    MorePasses,
    StepShare,
)
from deltacell.profile.explain.programs import ProgramPair
from deltacell.profile.explain.view import View
from deltacell.profile.trace.attribution import Attribution
from deltacell.profile.trace.read import read_trace

SHAPES = Recording(shapes=True)
NO_SHAPES = Recording(shapes=False)
STACKS = Recording(shapes=True, stacks=True)

# What can make every part of one program slower, or one that the machine slowed down.
SLOWER_CALLS = {CauseKind.machine, CauseKind.host}


@dataclass(frozen=True)
class Pair:
    """Two programs, and the kinds of cause that are right for them."""

    a: Training
    b: Training
    kinds: frozenset[CauseKind]


def pair(a: Training, b: Training, *kinds: CauseKind) -> Pair:
    return Pair(a, b, frozenset(kinds))


WIDE = replace(MLP, batch=256)
NARROW_MLP = replace(MLP, batch=16)
PROGRAMS = CauseKind.programs
CALLS = CauseKind.calls
SIZES = CauseKind.sizes

PAIRS = {
    "dango, subgraph": pair(DANGO, SUBGRAPH, PROGRAMS),
    "dango, edge mask": pair(DANGO, EDGE_MASK, PROGRAMS),
    "dango, shared": pair(DANGO, SHARED, PROGRAMS),
    "dango, auto": pair(DANGO, HETERO_CELL, PROGRAMS),
    "dango, late": pair(DANGO, LATE, PROGRAMS),
    "dango, pair cell": pair(DANGO, PAIR_CELL, PROGRAMS),
    "pair cell, subgraph": pair(PAIR_CELL, SUBGRAPH, PROGRAMS),
    "pair cell, auto": pair(PAIR_CELL, HETERO_CELL, PROGRAMS),
    "mlp, transformer": pair(NARROW_MLP, TRANSFORMER, PROGRAMS),
    "mlp, convolutions": pair(NARROW_MLP, CONVOLUTIONS, PROGRAMS),
    "convolutions, transformer": pair(CONVOLUTIONS, TRANSFORMER, PROGRAMS),
    "mlp, dango": pair(MLP, DANGO, PROGRAMS),
    "accumulation": pair(TRANSFORMER, replace(TRANSFORMER, accumulate=4), CauseKind.passes),
    "accumulation of dango": pair(DANGO, replace(DANGO, accumulate=4), CauseKind.passes),
    "second backward": pair(
        TRANSFORMER,
        replace(TRANSFORMER, backwards=3),
        CauseKind.backward_passes,
    ),
    "validation": pair(
        TRANSFORMER,
        replace(TRANSFORMER, validations=9),
        CauseKind.forward_passes,
    ),
    "batch": pair(MLP, replace(MLP, batch=4096), CauseKind.batch),
    "width": pair(WIDE, replace(WIDE, width=512), SIZES),
    "layers": pair(TRANSFORMER, replace(TRANSFORMER, layers=8), CALLS),
    "an operator": pair(WIDE, replace(WIDE, tries=20), CALLS),
    "items": pair(MLP, replace(MLP, items=6000), CALLS),
}
MORE_PAIRS = {
    "subgraph, auto": pair(SUBGRAPH, HETERO_CELL, PROGRAMS, CALLS),
    "subgraph, late": pair(SUBGRAPH, LATE, PROGRAMS, CALLS),
    "accumulation of an mlp": pair(MLP, replace(MLP, accumulate=4), CauseKind.passes),
    "accumulation of mutants": pair(SHARED, replace(SHARED, accumulate=4), CauseKind.passes),
    "second backward of mutants": pair(
        SHARED,
        replace(SHARED, backwards=3),
        CauseKind.backward_passes,
    ),
    "validation of dango": pair(DANGO, replace(DANGO, validations=9), CauseKind.forward_passes),
    "batch of a transformer": pair(
        TRANSFORMER,
        replace(TRANSFORMER, batch=96),
        CauseKind.batch,
        SIZES,
    ),
    "width of a transformer": pair(TRANSFORMER, replace(TRANSFORMER, width=256), SIZES),
    "work beside the model": pair(MLP, replace(MLP, work=40), CALLS),
    "foreach": pair(
        replace(MLP, layers=32),
        replace(MLP, layers=32, foreach=False),
        CALLS,
        CauseKind.host,
    ),
    "type": pair(
        replace(MLP, batch=512, width=256),
        replace(MLP, batch=512, width=256, dtype=torch.float64),
        CauseKind.type,
        SIZES,
    ),
    "threads": pair(
        replace(MLP, batch=512, width=256, threads=2),
        replace(MLP, batch=512, width=256),
        *SLOWER_CALLS,
    ),
}
OF_TWO_RANKS = (
    "dango, auto",
    "mlp, transformer",
    "convolutions, transformer",
    "accumulation",
    "batch",
)
WITH_STACKS = ("mlp, transformer", "accumulation", "dango, late", "an operator")


class Recordings:
    """Traces of programs, each recorded when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[tuple[Training, Recording, int, int], Path] = {}

    def of(self, program: Training, recording: Recording, *, turn: int = 0, ranks: int = 1) -> Path:
        key = (program, recording, turn, ranks)
        if key not in self._files:
            path = self._folder / f"{len(self._files)}"
            if ranks > 1:
                self._files[key] = training.record_ranks(program, recording, path)
            else:
                self._files[key] = training.record(program, recording, path.with_suffix(".json"))
        return self._files[key]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    return Recordings(tmp_path_factory.mktemp("recorded"))


def check(first: Path, second: Path, kinds: frozenset[CauseKind]) -> None:
    """Fail if the cause is wrong; that there is none, or that it is unknown, is not wrong."""
    explanation = explain(first, second)
    if explanation.noise is not None and not explanation.noise.is_beyond:
        return
    cause = explanation.causes[0]
    if CALLS in kinds and cause.kind is CauseKind.host and are_slower_calls(cause, first, second):
        return
    assert cause.kind in {*kinds, CauseKind.unknown}, explanation.sentence


def are_slower_calls(cause: Cause, first: Path, second: Path) -> bool:
    """Return whether the operation that leads is called as often in both.

    On a busy machine, a stall may take longer than the calls that one program has more of.
    """
    pair_of_both = program_pair(first, second)
    calls_a = pair_of_both.a.host_calls(cause.name or "")
    calls_b = pair_of_both.b.host_calls(cause.name or "")
    return calls_a == calls_b > 0


def check_pair(
    recordings: Recordings,
    expected: Pair,
    recording: Recording,
    ranks: int = 1,
) -> None:
    """Explain a pair in both directions."""
    first = recordings.of(expected.a, recording, ranks=ranks)
    second = recordings.of(expected.b, recording, ranks=ranks)
    kinds = expected.kinds
    if not recording.shapes and kinds & {CauseKind.batch, SIZES, CauseKind.type}:
        kinds = frozenset({CauseKind.unknown})
    check(first, second, kinds)
    check(second, first, kinds)


@pytest.mark.parametrize("recording", [SHAPES, NO_SHAPES], ids=["shapes", "no shapes"])
@pytest.mark.parametrize("name", PAIRS)
def test_the_cause_is_right_or_unknown(
    recordings: Recordings,
    name: str,
    recording: Recording,
) -> None:
    check_pair(recordings, PAIRS[name], recording)


@pytest.mark.slow
@pytest.mark.parametrize("recording", [SHAPES, NO_SHAPES], ids=["shapes", "no shapes"])
@pytest.mark.parametrize("name", MORE_PAIRS)
def test_more_causes_are_right_or_unknown(
    recordings: Recordings,
    name: str,
    recording: Recording,
) -> None:
    check_pair(recordings, MORE_PAIRS[name], recording)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_STACKS)
def test_causes_with_stacks(recordings: Recordings, name: str) -> None:
    check_pair(recordings, PAIRS[name], STACKS)


@pytest.mark.slow
@pytest.mark.parametrize("recording", [SHAPES, NO_SHAPES], ids=["shapes", "no shapes"])
@pytest.mark.parametrize("name", OF_TWO_RANKS)
def test_causes_of_two_ranks(recordings: Recordings, name: str, recording: Recording) -> None:
    check_pair(recordings, PAIRS[name], recording, ranks=2)


@pytest.mark.slow
def test_compiled_against_eager(recordings: Recordings) -> None:
    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler, and there is none")
    expected = pair(MLP, replace(MLP, compiled=True), CauseKind.compiled)
    check_pair(recordings, expected, SHAPES)


@pytest.mark.parametrize("program", [MLP, DANGO], ids=["mlp", "dango"])
@pytest.mark.parametrize("recording", [SHAPES, NO_SHAPES], ids=["shapes", "no shapes"])
def test_a_program_is_never_another_one_than_itself(
    recordings: Recordings,
    program: Training,
    recording: Recording,
) -> None:
    first = recordings.of(program, recording)
    second = recordings.of(program, recording, turn=1)
    check(first, second, frozenset(SLOWER_CALLS))
    calls = program_pair(first, second)
    assert not calls.are_two_programs
    assert calls.calls_as_often
    assert calls.components_as_often


def program_pair(first: Path, second: Path) -> ProgramPair:
    views = [View(path.stem, [Attribution(read_trace(path))]) for path in (first, second)]
    return ProgramPair(*views)


@pytest.mark.parametrize("name", [name for name in PAIRS if PROGRAMS in PAIRS[name].kinds])
def test_two_programs_are_told_apart_by_their_calls(recordings: Recordings, name: str) -> None:
    expected = PAIRS[name]
    first = recordings.of(expected.a, NO_SHAPES)
    second = recordings.of(expected.b, NO_SHAPES)
    assert program_pair(first, second).are_two_programs


def test_passes_are_counted(recordings: Recordings) -> None:
    for name, factor in (("accumulation", 4.0), ("second backward", 3.0), ("validation", 10.0)):
        expected = PAIRS[name]
        first = recordings.of(expected.a, SHAPES)
        cause = explain(first, recordings.of(expected.b, SHAPES)).causes[0]
        if cause.kind in expected.kinds:
            assert isinstance(cause.evidence, MorePasses)
            assert cause.evidence.factor == pytest.approx(factor, rel=0.05)


@pytest.mark.parametrize("recording", [NO_SHAPES, STACKS], ids=["no stacks", "stacks"])
def test_item_in_every_step(recordings: Recordings, recording: Recording) -> None:
    expected = PAIRS["items"]
    slow = recordings.of(expected.b, recording)
    # Categories come beside operations without one, of which this is the largest.
    without_category = [
        cause.name
        for cause in explain(slow).causes
        if isinstance(cause.evidence, StepShare) and cause.evidence.part == cause.name
    ]
    assert without_category[0] == "aten::item"
    explanation = explain(recordings.of(expected.a, recording), slow)
    evidence = explanation.causes[0].evidence
    assert isinstance(evidence, GapShare)
    assert isinstance(evidence.detail, MoreCalls)
    assert evidence.detail.name == "aten::item"
    assert (evidence.detail.calls_a, evidence.detail.calls_b) == (0, 6000)
