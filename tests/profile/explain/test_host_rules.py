"""Which rule decides what makes a difference on the host."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from deltacell.profile.explain.account import compare
from deltacell.profile.explain.causes import CauseKind
from deltacell.profile.explain.host_rules import HostGap, HostRule, host_changes, host_verdict
from deltacell.profile.explain.programs import ProgramPair
from deltacell.profile.explain.subject import Subject, open_subject
from deltacell.profile.explain.view import View
from deltacell_dev.bench.simulate import Program, write

HOST = Program(device=None, attention=900.0, gemm=1100.0)
NO_SHAPES = replace(HOST, shapes=False)

Pair = tuple[Program, Program]


def view_of(subject: Subject) -> View:
    assert subject.traces is not None
    return View(subject.name, subject.traces.ranks)


def gap_between(a: Subject, b: Subject) -> HostGap:
    pair = ProgramPair(view_of(a), view_of(b))
    return HostGap(pair, compare(a.account, b.account).steps)


@pytest.fixture
def gaps(tmp_path: Path) -> Callable[[Pair], list[HostGap]]:
    """A function that returns the gap between two programs, in both directions."""

    def simulate(programs: Pair) -> list[HostGap]:
        a = open_subject(write(programs[0], tmp_path / "one", 3))
        b = open_subject(write(programs[1], tmp_path / "two", 4))
        return [gap_between(a, b), gap_between(b, a)]

    return simulate


@pytest.mark.parametrize(
    ("programs", "rule", "kind"),
    [
        ((HOST, replace(HOST, layers=8)), HostRule.other_work, CauseKind.calls),
        (
            (HOST, replace(HOST, attention=5_000.0, foreach=False)),
            HostRule.unlike_calls,
            CauseKind.unknown,
        ),
        ((HOST, replace(HOST, host_factor=1.4)), HostRule.common_pace, CauseKind.machine),
        (
            (NO_SHAPES, replace(NO_SHAPES, host_factor=1.4)),
            HostRule.common_pace,
            CauseKind.unknown,
        ),
        (
            (NO_SHAPES, replace(NO_SHAPES, attention=5_000.0)),
            HostRule.same_calls,
            CauseKind.unknown,
        ),
        ((HOST, replace(HOST, attention=5_000.0)), HostRule.largest_change, CauseKind.host),
    ],
)
def test_one_rule_decides_in_both_directions(
    gaps: Callable[[Pair], list[HostGap]],
    programs: Pair,
    rule: HostRule,
    kind: CauseKind,
) -> None:
    for gap in gaps(programs):
        verdict = host_verdict(gap)
        assert (verdict.rule, verdict.cause.kind) == (rule, kind)
        causes = host_changes(gap.pair, gap.fall)
        assert causes[0] == verdict.cause
        # Beside a cause of the whole step, all categories are named.
        is_of_whole_step = rule in (HostRule.unlike_calls, HostRule.common_pace)
        assert len(causes) == len(gap.bars) + is_of_whole_step
        beyond = [gap.beyond_pace(bar) for bar in gap.bars]
        assert beyond == sorted(beyond, reverse=True)


def test_without_a_gap_nothing_makes_it(tmp_path: Path) -> None:
    subject = open_subject(write(HOST, tmp_path / "one", 3))
    gap = gap_between(subject, subject)
    assert gap.fall.gap == 0
    assert host_changes(gap.pair, gap.fall) == []
