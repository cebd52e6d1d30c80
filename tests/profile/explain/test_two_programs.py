"""Pairs of recorded programs: the kind of the cause is right, or it cannot be told from the traces.

The programs are run and recorded here, on a machine that may be busy with something else. So they
are compared in two ways. With made-up times, which only depend on what was called, the kind has to
be right. With the times as they were, a difference may be lost in noise, but it must never have a
wrong cause; these tests are marked as timed, and `.ci/full` runs them on an idle machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import training
from fixed_cost import write_fixed
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
    CauseKind,
    GapShare,
    MoreCalls,
    MorePasses,
    StepShare,
    UnlikeCalls,
)
from deltacell.profile.explain.programs import ONE_PROGRAM, ProgramPair
from deltacell.profile.explain.view import View
from deltacell.profile.trace.attribution import Attribution
from deltacell.profile.trace.read import read_trace

SHAPES = Recording(shapes=True)
NO_SHAPES = Recording(shapes=False)
STACKS = Recording(shapes=True, stacks=True)

# With made-up times, all steps are alike.
ONE_STEP = Recording(shapes=True, steps=1)
ONE_STEP_WITH_STACKS = Recording(shapes=True, stacks=True, steps=1)

# What can make every part of one program slower, or one that the machine slowed down.
SLOWER_CALLS = {CauseKind.machine, CauseKind.host}


@dataclass(frozen=True)
class Pair:
    """Two programs, and the kinds of cause that are right for them."""

    a: Training
    b: Training
    kinds: frozenset[CauseKind]

    def kinds_with(self, *, shapes: bool) -> frozenset[CauseKind]:
        """Return the kinds that are right for traces with or without shapes."""
        if not shapes and self.kinds & NEED_SHAPES:
            return frozenset({CauseKind.unknown})
        return self.kinds


def pair(a: Training, b: Training, *kinds: CauseKind) -> Pair:
    return Pair(a, b, frozenset(kinds))


WIDE = replace(MLP, batch=256)
NARROW_MLP = replace(MLP, batch=16)
PROGRAMS = CauseKind.programs
CALLS = CauseKind.calls
SIZES = CauseKind.sizes
NEED_SHAPES = {CauseKind.batch, CauseKind.sizes, CauseKind.type}

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
    "an operator": pair(WIDE, replace(WIDE, tries=60), CALLS),
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
        self._n_paths = 0
        self._files: dict[tuple[Training, Recording, int, int], Path] = {}
        self._fixed_files: dict[tuple[object, ...], Path] = {}

    def of(self, program: Training, recording: Recording, *, turn: int = 0, ranks: int = 1) -> Path:
        """Return a trace with the times that were measured."""
        key = (program, recording, turn, ranks)
        if key not in self._files:
            path = self._new_path()
            if ranks > 1:
                self._files[key] = training.record_ranks(program, recording, path)
            else:
                self._files[key] = training.record(program, recording, path.with_suffix(".json"))
        return self._files[key]

    def fixed(
        self,
        program: Training,
        recording: Recording = ONE_STEP,
        *,
        shapes: bool = True,
        pace: float = 1.0,
        stalls: Mapping[str, float] | None = None,
    ) -> Path:
        """Return a trace with made-up times."""
        key = (program, recording, shapes, pace, *(stalls or {}).items())
        if key not in self._fixed_files:
            file = self._new_path().with_suffix(".json")
            recorded = self.of(program, recording)
            write_fixed(recorded, file, shapes=shapes, pace=pace, stalls=stalls)
            self._fixed_files[key] = file
        return self._fixed_files[key]

    def _new_path(self) -> Path:
        self._n_paths += 1
        return self._folder / f"{self._n_paths}"


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    return Recordings(tmp_path_factory.mktemp("recorded"))


def fixed_pair(recordings: Recordings, name: str, *, shapes: bool = True) -> tuple[Path, Path]:
    """Return traces of a pair with made-up times.

    Two programs may happen to have the same costs, so one of them takes three times as long.
    """
    expected = PAIRS[name]
    pace = 3.0 if PROGRAMS in expected.kinds else 1.0
    first = recordings.fixed(expected.a, shapes=shapes)
    second = recordings.fixed(expected.b, shapes=shapes, pace=pace)
    return first, second


@pytest.mark.parametrize("shapes", [True, False], ids=["shapes", "no shapes"])
@pytest.mark.parametrize("name", PAIRS)
def test_the_cause_is_right(recordings: Recordings, name: str, shapes: bool) -> None:
    first, second = fixed_pair(recordings, name, shapes=shapes)
    for one, other in ((first, second), (second, first)):
        explanation = explain(one, other)
        assert explanation.noise is not None
        assert explanation.noise.is_beyond
        kinds = PAIRS[name].kinds_with(shapes=shapes)
        assert explanation.causes[0].kind in kinds, explanation.sentence


ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"


@pytest.mark.parametrize("times", [30.0, 3000.0])
@pytest.mark.parametrize(
    ("name", "stalled"),
    [
        ("accumulation", ATTENTION),
        ("second backward", ATTENTION),
        ("second backward", "autograd::engine::evaluate_function: AddmmBackward0"),
        ("validation", ATTENTION),
        ("an operator", "aten::addmm"),
    ],
)
def test_a_stall_of_either_program_is_not_the_cause(
    recordings: Recordings,
    name: str,
    stalled: str,
    times: float,
) -> None:
    """An operation that both call as often leads, though one of them calls others far more."""
    expected = PAIRS[name]
    stalls = {stalled: times}
    plain = [recordings.fixed(program) for program in (expected.a, expected.b)]
    slow = [recordings.fixed(program, stalls=stalls) for program in (expected.a, expected.b)]
    for first, second in ((slow[0], plain[1]), (plain[0], slow[1])):
        check(first, second, expected.kinds)
        check(second, first, expected.kinds)


def test_calls_that_do_not_explain_the_difference_are_counted(recordings: Recordings) -> None:
    expected = PAIRS["second backward"]
    slow = recordings.fixed(expected.a, stalls={ATTENTION: 3000.0})
    cause = explain(slow, recordings.fixed(expected.b)).causes[0]
    assert cause.kind is CauseKind.unknown
    assert isinstance(cause.evidence, UnlikeCalls)
    assert cause.evidence.operation == ATTENTION
    assert cause.evidence.calls_b > 1.3 * cause.evidence.calls_a
    assert cause.evidence.ratio < 1


def check(first: Path, second: Path, kinds: frozenset[CauseKind]) -> None:
    """Fail if the cause is wrong; that there is none, or that it is unknown, is not wrong."""
    explanation = explain(first, second)
    if explanation.noise is not None and not explanation.noise.is_beyond:
        return
    cause = explanation.causes[0]
    assert cause.kind in {*kinds, CauseKind.unknown}, explanation.sentence


def check_pair(
    recordings: Recordings,
    expected: Pair,
    recording: Recording,
    ranks: int = 1,
) -> None:
    """Explain a pair in both directions, with the times that were measured."""
    first = recordings.of(expected.a, recording, ranks=ranks)
    second = recordings.of(expected.b, recording, ranks=ranks)
    kinds = expected.kinds_with(shapes=recording.shapes)
    check(first, second, kinds)
    check(second, first, kinds)


@pytest.mark.timed
@pytest.mark.parametrize("recording", [SHAPES, NO_SHAPES], ids=["shapes", "no shapes"])
@pytest.mark.parametrize("name", [*PAIRS, *MORE_PAIRS])
def test_the_cause_is_right_or_unknown(
    recordings: Recordings,
    name: str,
    recording: Recording,
) -> None:
    check_pair(recordings, {**PAIRS, **MORE_PAIRS}[name], recording)


@pytest.mark.timed
@pytest.mark.parametrize("name", WITH_STACKS)
def test_causes_with_stacks(recordings: Recordings, name: str) -> None:
    check_pair(recordings, PAIRS[name], STACKS)


@pytest.mark.timed
@pytest.mark.parametrize("recording", [SHAPES, NO_SHAPES], ids=["shapes", "no shapes"])
@pytest.mark.parametrize("name", OF_TWO_RANKS)
def test_causes_of_two_ranks(recordings: Recordings, name: str, recording: Recording) -> None:
    check_pair(recordings, PAIRS[name], recording, ranks=2)


@pytest.mark.timed
def test_compiled_against_eager(recordings: Recordings) -> None:
    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler, and there is none")
    expected = pair(MLP, replace(MLP, compiled=True), CauseKind.compiled)
    check_pair(recordings, expected, SHAPES)


@pytest.mark.timed
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


@pytest.mark.parametrize("program", [MLP, DANGO], ids=["mlp", "dango"])
@pytest.mark.parametrize("shapes", [True, False], ids=["shapes", "no shapes"])
def test_a_program_has_the_calls_of_itself(
    recordings: Recordings,
    program: Training,
    shapes: bool,
) -> None:
    first = recordings.fixed(program, shapes=shapes)
    second = recordings.of(program, Recording(shapes=shapes, steps=1), turn=1)
    calls = program_pair(first, second)
    assert not calls.are_two_programs
    assert not calls.one_calls_more
    assert calls.calls_as_often
    assert calls.components_as_often


@pytest.mark.parametrize("shapes", [True, False], ids=["shapes", "no shapes"])
def test_a_program_at_another_pace_is_a_slower_machine_or_unknown(
    recordings: Recordings,
    shapes: bool,
) -> None:
    first = recordings.fixed(DANGO, shapes=shapes)
    slower = recordings.fixed(DANGO, shapes=shapes, pace=2.0)
    expected = CauseKind.machine if shapes else CauseKind.unknown
    assert explain(first, slower).causes[0].kind is expected
    assert explain(slower, first).causes[0].kind is expected


def program_pair(first: Path, second: Path) -> ProgramPair:
    views = [View(path.stem, [Attribution(read_trace(path))]) for path in (first, second)]
    return ProgramPair(*views)


@pytest.mark.parametrize("name", PAIRS)
def test_two_programs_are_told_apart_by_their_calls(recordings: Recordings, name: str) -> None:
    pair_of_both = program_pair(*fixed_pair(recordings, name, shapes=False))
    assert pair_of_both.are_two_programs == (PROGRAMS in PAIRS[name].kinds)
    assert pair_of_both.similarity is not None
    assert abs(pair_of_both.similarity - ONE_PROGRAM) >= 0.2


@pytest.mark.parametrize(
    ("name", "factor"),
    [("accumulation", 4.0), ("second backward", 3.0), ("validation", 10.0)],
)
def test_passes_are_counted(recordings: Recordings, name: str, factor: float) -> None:
    evidence = explain(*fixed_pair(recordings, name)).causes[0].evidence
    assert isinstance(evidence, MorePasses)
    assert evidence.factor == pytest.approx(factor, rel=0.05)


@pytest.mark.parametrize("recording", [ONE_STEP, ONE_STEP_WITH_STACKS], ids=["no stacks", "stacks"])
def test_item_in_every_step(recordings: Recordings, recording: Recording) -> None:
    expected = PAIRS["items"]
    slow = recordings.fixed(expected.b, recording)
    # Categories come beside operations without one, of which this is the largest.
    without_category = [
        cause.name
        for cause in explain(slow).causes
        if isinstance(cause.evidence, StepShare) and cause.evidence.part == cause.name
    ]
    assert without_category[0] == "aten::item"
    explanation = explain(recordings.fixed(expected.a, recording), slow)
    evidence = explanation.causes[0].evidence
    assert isinstance(evidence, GapShare)
    assert isinstance(evidence.detail, MoreCalls)
    assert evidence.detail.name == "aten::item"
    assert (evidence.detail.calls_a, evidence.detail.calls_b) == (0, 6000)
