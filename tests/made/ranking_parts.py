"""Parts of a ranking in processes of their own, which are killed without warning."""

import multiprocessing
import signal
import time
from pathlib import Path

PATIENCE = 240
"""Seconds that a process may take to begin, on a machine that is busy."""


def rank_in_this_process(options):
    """Rank, and save after every block, so that there is something to resume."""
    from deltacell.api.rank import rank
    from deltacell.ranking import search

    search.SAVED_EVERY = 0
    rank(**options, progress=False)


class Parts:
    """Processes that score the parts of one ranking, or merge them."""

    def __init__(self, n_parts, **options):
        self.n_parts = n_parts
        self.options = options
        # The processes share what is imported, which takes longer than a part.
        self._start = multiprocessing.get_context("forkserver")
        self._start.set_forkserver_preload(["deltacell.api.rank", "deltacell.ranking.search"])

    def seconds_of_a_part(self, out):
        """Return how long a part works, after what it needs to begin."""
        process = self._begun(out, 1)
        began = time.monotonic()
        process.join()
        assert process.exitcode == 0
        return time.monotonic() - began

    def killed(self, out, part, seconds):
        """Kill a part, or the merge if it is None, some seconds after it began.

        Return whether it was alive.
        """
        process = self._begun(out, part)
        time.sleep(seconds)
        process.kill()
        process.join()
        return process.exitcode == -signal.SIGKILL

    def _begun(self, out, part):
        name = "merge" if part is None else f"part-{part}-of-{self.n_parts}"
        lock = Path(f"{out}.partial") / f"{name}.lock"
        lock.unlink(missing_ok=True)
        what = {"merge": True} if part is None else {"part": f"{part}/{self.n_parts}"}
        options = {**self.options, "out": out, **what}
        process = self._start.Process(target=rank_in_this_process, args=(options,))
        process.start()
        until = time.monotonic() + PATIENCE
        while not lock.exists() and process.is_alive():
            assert time.monotonic() < until
            time.sleep(0.002)
        return process
