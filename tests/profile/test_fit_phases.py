"""The phases of a fit add up to its wall time, whatever is nested in what."""

import pytest

from deltacell.profile.fit_phases import FitTimer, read_fit_phases, write_fit_phases
from deltacell.profile.limits import limits_of_fit


class Clock:
    """Nanoseconds that pass only when the test says so."""

    def __init__(self) -> None:
        self.now = 7

    def __call__(self) -> int:
        return self.now

    def wait(self, seconds: int) -> None:
        self.now += seconds * 10**9


def test_phases_add_up_to_the_wall_time():
    clock = Clock()
    timer = FitTimer(clock)
    clock.wait(1)
    with timer.phase("columns"):
        clock.wait(2)
        with timer.phase("trees"):
            clock.wait(10)
        clock.wait(3)
    clock.wait(1)
    with timer.phase("trees"):
        clock.wait(20)
    seconds = timer.seconds()
    assert seconds == {"other": 2, "columns": 5, "trees": 30}
    assert sum(seconds.values()) == 37
    clock.wait(1)
    assert timer.seconds()["other"] == 3
    assert limits_of_fit(seconds).startswith("Phase 'trees' takes 81 % of the fit")


def test_a_phase_ends_with_an_error():
    clock = Clock()
    timer = FitTimer(clock)

    def stopped() -> None:
        with timer.phase("trees"):
            clock.wait(2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    clock.wait(5)
    assert timer.seconds() == {"trees": 2, "other": 5}


def test_phases_of_a_fit_read_equal_those_written(tmp_path, refused):
    assert read_fit_phases(tmp_path / "phases").is_empty()
    write_fit_phases(tmp_path / "phases", 0, {"trees": 2.0})
    write_fit_phases(tmp_path / "phases", 1, {"other": 0.5, "trees": 1.0})
    rows = read_fit_phases(tmp_path / "phases").rows()
    assert rows == [(0, "trees", 2.0), (1, "other", 0.5), (1, "trees", 1.0)]
    (tmp_path / "phases" / "fit-attempt0.parquet").write_bytes(b"PAR1")
    refused("damaged-phases", read_fit_phases, tmp_path / "phases")
