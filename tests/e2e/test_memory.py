"""Too little memory is an error that says how much is needed, and signals end what is stuck."""

import os
import signal
import subprocess
import sys

import pytest

from deltacell.api import rank
from deltacell.base import memory
from deltacell.base.memory import NotEnoughMemoryError, check_limit, lacks_memory, needed_bytes


def predict(run, out, limit):
    resource_limit = f'ulimit -v {limit // 1024}; exec timeout 300 "$@"'
    words = (sys.executable, "-m", "deltacell", "predict", run, "--sets", "pairs", "--top", "3")
    command = ["bash", "-c", resource_limit, "bash", *map(str, words), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# The limit itself is tried by three processes; what is said of it is tested below, in this one.
@pytest.mark.slow
@pytest.mark.full
def test_a_ranking_fits_the_memory_it_asks_for_and_less_is_refused_at_once(runs, tmp_path):
    needed, out = needed_bytes(), tmp_path / "out.parquet"
    for limit in (3_000_000 * 1024, 1_000_000_000):
        done = predict(runs["trees"], out, limit)
        assert done.returncode == 2, done.stderr
        assert f"limited to {limit / 1e9:.1f} GB" in done.stderr
        assert f"{needed / 1e9:.1f} GB are needed" in done.stderr
        assert not list(tmp_path.glob("out*"))
    done = predict(runs["trees"], out, needed + 1024)
    assert (done.returncode, out.exists()) == (0, True), done.stderr


def test_the_error_has_the_limit_and_what_is_needed(monkeypatch):
    needed = needed_bytes()
    for limit in (None, needed, needed + 1):
        monkeypatch.setattr(memory, "limit_bytes", lambda limit=limit: limit)
        check_limit()
    monkeypatch.setattr(memory, "limit_bytes", lambda: needed - 1)
    with pytest.raises(NotEnoughMemoryError) as caught:
        check_limit()
    assert caught.value.code == "not-enough-memory"
    assert (caught.value.limit, caught.value.needed) == (needed - 1, needed)


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (MemoryError(), True),
        (RuntimeError("can't start new thread"), True),
        (OSError("Unknown error: Failed to launch worker thread: Resource temporarily"), True),
        (ImportError("x.so: failed to map segment from shared object"), True),
        (ValueError("the memory of a gene"), False),
        (OSError(28, "No space left on device"), False),
    ],
)
def test_libraries_say_in_many_ways_that_memory_was_refused(error, lacks):
    assert lacks_memory(error) is lacks


def test_a_signal_ends_a_ranking_that_is_still_loading(tmp_path, monkeypatch):
    """Its handler would only note it, and never run while a library does not return."""
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def load(*arguments):
        seen.append(signal.getsignal(signal.SIGTERM))
        raise KeyboardInterrupt

    monkeypatch.setattr(rank, "load_runs", load)
    with pytest.raises(KeyboardInterrupt):
        rank.rank(os.fspath(tmp_path))
    assert seen == [before]
