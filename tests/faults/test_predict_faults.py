"""A ranking that is killed or interrupted, for real, whenever it happens: the file is the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from deltacell.train.compose import compose
from deltacell.train.run import train

pytestmark = pytest.mark.slow

# A process that has imported everything runs each command in a fork of itself, in which a ranking
# saves after every block, and blocks are so small that there are many, and long enough to be hit.
SERVER = """
import json, os, sys, time
import pandas
import deltacell.predict.request as request
import deltacell.predict.search as search
import deltacell.verbs
from deltacell.cli import main
from deltacell.predict.ensemble import Ensemble

search.SAVED_EVERY = 0.0
request.SETS_PER_BLOCK["dango"] = 8**3
candidates = Ensemble.candidates

def slowly(self, *words):
    time.sleep(pause)
    return candidates(self, *words)

Ensemble.candidates = slowly
for line in sys.stdin:
    words, pause, said = json.loads(line)
    child = os.fork()
    if child == 0:
        sys.argv = ["deltacell", *words]
        for stream in (1, 2):
            os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        main()
        sys.exit()
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def begin(tmp_path_factory):
    """Return a function that begins a command, and returns its process and what ends it."""
    environment = {**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = subprocess.Popen([sys.executable, "-c", SERVER], text=True, env=environment, **pipes)

    def begin(*words, said, pause=0.0):
        print(json.dumps([list(map(str, words)), pause, str(said)]), file=server.stdin, flush=True)
        return int(server.stdout.readline()), lambda: int(server.stdout.readline())

    yield begin
    server.stdin.close()
    assert server.wait(60) == 0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    words = ["experiment=demo", "data.synthetic_genotypes=400", "trainer.epochs=1"]
    quiet = ["trainer.figures_every=0", "loggers.tensorboard=false", "trainer.progress=false"]
    train(compose([*words, *quiet, f"directory={path}"]))
    return path


@pytest.mark.parametrize(
    ("number", "words"),
    [
        pytest.param(signal.SIGKILL, ["--top", "300"], id="SIGKILL-top"),
        pytest.param(signal.SIGTERM, ["--below", "9"], id="SIGTERM-all"),
    ],
)
def test_the_file_is_the_same_whenever_it_was_stopped(begin, run, tmp_path, words, number):
    command = ["predict", run, "--sets", "triples", *words, "--out"]
    whole, killed, log = (tmp_path / name for name in ("whole.parquet", "killed.parquet", "log"))
    assert begin(*command, whole, said=log)[1]() == 0, log.read_text()
    pause = random.Random(0)
    went_on = 0
    for _ in range(3):
        log.write_text("")
        process, end = begin(*command, killed, said=log, pause=0.03)
        # It begins to score when it says how much there is.
        while "to score" not in log.read_text():
            os.kill(process, 0)
            time.sleep(0.01)
        went_on += "resuming" in log.read_text()
        time.sleep(pause.uniform(0.1, 0.7))
        os.kill(process, number)
        assert end() == (-number if number == signal.SIGKILL else 128 + number), log.read_text()
        assert not killed.exists()
        if number != signal.SIGKILL:
            assert "rerun the command to resume" in log.read_text()
    assert went_on, "no attempt went on from another"
    assert begin(*command, killed, said=log)[1]() == 0, log.read_text()
    assert killed.read_bytes() == whole.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["killed.parquet", "log", "whole.parquet"]
