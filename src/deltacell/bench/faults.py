"""Faults, made on purpose: damaged files, hostile input, and commands that are killed or refused.

A *flip* damages a file that the program wrote and reads it: the answer has to be an error or what
was written. A *fuzz* changes a file that somebody else wrote: the answer has to be an error or a
result. An *injection* kills a command, or fails it, at one of its file operations: what was there
before has to be whole, and the command given again has to end as if nothing had happened.

Every case runs in a forked process, so that a crash is counted and not suffered. The process that
forks only imports: a library that has started threads does not survive a fork.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import deltacell.evaluate.runs
import deltacell.predict.search  # noqa: F401
from deltacell.bench.faults_corpus import (
    NASTY,
    SAMPLES,
    flipped,
    readers,
    text_of_state,
    write_artefacts,
)
from deltacell.bench.process import silent
from deltacell.errors import DeltacellError
from deltacell.predict.ranking_file import Ranking
from deltacell.profile.record import Status, read_run
from deltacell.screen.import_folder import Imported
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.loaded_run import load_run
from deltacell.words import Progress

FAULTS = {"kill": None, "ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EACCES": errno.EACCES}
WATCHED = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link")


@dataclass
class Row:
    """What became of the cases of one kind of damaged file or failed command."""

    kind: str
    tries: int = 0
    clean: int = 0  # ended in an error that says what is wrong; rerunning a command worked
    right: int = 0  # ended in the right result
    failures: int = 0  # all others
    examples: list[str] = field(default_factory=list)  # of failures, with the seed to repeat them

    def add(self, outcome: str, example: str = "") -> None:
        setattr(self, outcome, getattr(self, outcome) + 1)
        self.tries += 1
        self.examples += [example] if example else []


Turn = Callable[[Row, int], None]
Cases = Iterator[tuple[Callable[[], Any], Any]]  # what reads a file, and what it has to return


def run(
    minutes: float,
    main: Callable[[], object],
    seed: int = 0,
    only: str = "",
    *,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Make faults for some minutes, kinds that begin as ``only`` names them in turn.

    ``main`` is the program, which is run in forks.
    """
    began, rng, until = time.monotonic(), random.Random(seed), round(60 * minutes)
    with tempfile.TemporaryDirectory(prefix="deltacell-faults-") as folder:
        base = Path(folder)
        code, _ = forked(lambda: write_artefacts(base / "artefacts"), base / "said")
        if code:
            raise DeltacellError((base / "said").read_text(errors="replace"))
        seconds = min(5.0, max(0.2, minutes / 2))
        turns: dict[str, Turn] = {
            **{f"flip {k}": partial(in_fork, base, flips, k, seconds) for k in flipped()},
            **{f"fuzz {k}": partial(in_fork, base, fuzzes, k, seconds) for k in readers()},
            **{f"inject {one.name}": Injected(base, main, one) for one in SCENARIOS},
        }
        rows = [Row(kind) for kind in turns if kind.startswith(tuple(only.split(",")))]
        done = 0.0
        while rows and done <= until:
            for row in rows:
                progress(row.kind, min(round(done), until), until)
                turns[row.kind](row, rng.randrange(2**32))
                done = time.monotonic() - began
    counts = ("tries", "clean", "right", "failures")
    return {
        "rows": [{**asdict(row), "examples": row.examples[:5]} for row in rows],
        "examples": [{"kind": row.kind, "failure": e} for row in rows for e in row.examples[:5]],
        "total": {name: sum(getattr(row, name) for row in rows) for name in counts},
        "seconds": round(done, 1),
    }


def forked(work: Callable[[], Any], said: str | Path = os.devnull) -> tuple[int, Any]:
    """Run something in a fork; return its exit code, negative for a signal, and its result."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)

    def child() -> None:
        target = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(target, 1)
        os.dup2(target, 2)
        theirs.send(work())

    process = fork.Process(target=child)
    process.start()
    theirs.close()
    try:
        result = ours.recv()
    except EOFError:
        result = None
    process.join()
    return process.exitcode or 0, result


def in_fork(
    base: Path, cases: Callable[..., Cases], kind: str, seconds: float, row: Row, seed: int
) -> None:
    """Run cheap cases one after the other in one fork for some seconds, and count them."""

    def work() -> list[tuple[str, str]]:
        mine: list[tuple[str, str]] = []
        until = time.monotonic() + seconds
        for read, expected in cases(base / "artefacts", kind, random.Random(seed)):
            what, said = outcome_of(read, expected)
            mine.append((what, said and f"seed {seed}, {len(mine) + 1}: {said}"))
            if time.monotonic() >= until:
                break
        return mine

    code, mine = forked(work, base / "said")
    if mine is None:
        last = (base / "said").read_text(errors="replace").strip()[-300:]
        mine = [("failures", f"seed {seed}: the process ended with {code}: {last}")]
    for outcome in mine:
        row.add(*outcome)


def outcome_of(call: Callable[[], Any], expected: Any = None) -> tuple[str, str]:
    try:
        found = call()
    except DeltacellError:
        return "clean", ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return "failures", f"{type(error).__name__}: {str(error)[:200]}"
    if expected is None or found == expected:
        return "right", ""
    return "failures", "accepted, and it is not what was written"


def flips(artefacts: Path, kind: str, rng: random.Random) -> Cases:
    pattern, read = flipped()[kind]
    expected = read(artefacts)
    whole = {file: file.read_bytes() for file in sorted(artefacts.glob(pattern))}
    while True:
        file = rng.choice(list(whole))
        damaged = _damaged(rng, whole[file])
        if damaged != whole[file]:
            file.write_bytes(damaged)
            try:
                yield partial(read, artefacts), expected
            finally:
                file.write_bytes(whole[file])


def fuzzes(artefacts: Path, kind: str, rng: random.Random) -> Cases:
    sample, read = readers()[kind]
    others = [one.encode() for one in SAMPLES.values()]
    with tempfile.TemporaryDirectory(dir=artefacts) as folder:
        file = Path(folder) / "file.txt"
        (Path(folder) / "genes.txt").write_text(SAMPLES["string_genes"])
        file.write_text(sample)
        # The sample itself is read, or all its changes would be refused for another reason.
        read(file)
        while True:
            file.write_bytes(_fuzzed(rng, sample.encode(), others))
            yield partial(read, file), None


def _damaged(rng: random.Random, data: bytes) -> bytes:
    """Return bytes as a bad disk, cable or transfer leaves them."""
    at, length = rng.randrange(len(data)), 1 + rng.randrange(512)
    flip = bytes([data[at] ^ 1 << rng.randrange(8)])
    holes = [*[flip] * 5, rng.randbytes(1), bytes(length), rng.randbytes(length)]
    kind = rng.randrange(10)
    if kind == 8:
        return data[:at]
    if kind == 9:
        return data + rng.randbytes(1 + rng.randrange(9))
    hole = holes[kind][: len(data) - at]
    return data[:at] + hole + data[at + len(hole) :]


def _fuzzed(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Return a file as somebody else may have written it."""
    for _ in range(1 + rng.randrange(3)):
        kind = rng.randrange(8)
        lines = data.split(b"\n")
        line = rng.randrange(len(lines))
        if kind < 2 and data:
            data = _damaged(rng, data)
            continue
        if kind < 5:
            between = rng.choice((b"\t", b",", b" "))
            fields = lines[line].split(between)
            fields[rng.randrange(len(fields))] = rng.choice(NASTY)
            lines[line] = between.join(fields)
        elif kind == 5:
            lines.insert(line, rng.choice(lines))
        elif kind == 6:
            del lines[line]
        else:
            lines[line] = rng.choice(rng.choice(others).split(b"\n"))
        data = b"\n".join(lines)
    return gzip.compress(data, 1) if rng.randrange(20) == 0 else data


class Scenario(NamedTuple):
    """A command, what it starts from, and what it is to leave behind."""

    name: str
    words: tuple[str, ...]
    start: Mapping[str, str]  # names of artefacts, and the names of their copies
    out: str  # what it makes
    result: Callable[[Path], str]  # a key of what it left in a folder; raises if that is damaged
    # What a user runs after a fault, where run.json exists; otherwise the same again.
    resume: tuple[str, ...] | None = None


class Injected:
    """Faults at the operations of a command, one case per turn."""

    def __init__(self, base: Path, main: Callable[[], object], scenario: Scenario) -> None:
        self.base, self.main, self.scenario = base, main, scenario
        self._operations = 0

    def __call__(self, row: Row, seed: int) -> None:
        scenario, rng = self.scenario, random.Random(seed)
        if not self._operations:
            with self._copied() as folder:
                before = self._result(folder)
                code, said = self._command(folder, scenario.words)
                if code != 0:
                    raise DeltacellError(f"{scenario.name} failed without a fault: {said}")
                self._operations = int((self.base / "operations").read_text())
                self._expected = self._result(folder)
                self._allowed = {before, self._expected, "unfinished"}
        at, fault = 1 + rng.randrange(self._operations), rng.choice(list(FAULTS))
        with self._copied() as folder:
            code, said = self._command(folder, scenario.words, at, FAULTS[fault])
            problem = self._problem(folder, code, said, fault)
        if problem is None:
            row.add("clean" if code else "right")
        else:
            row.add("failures", f"{fault} at operation {at} of {self._operations}: {problem}")

    def _problem(self, folder: Path, code: int, said: str, fault: str) -> str | None:
        if code not in (-signal.SIGKILL, 0) if fault == "kill" else code < 0:
            return f"it ended with {code}: {said[-200:]}"
        if "a fault of deltacell" in said or "Traceback" in said:
            return f"it blames itself: {said[-300:]}"
        found = self._result(folder)
        if found not in self._allowed or (code == 0 and found != self._expected):
            return f"it ended with {code} and left another result, or part of one: {found}"
        if code == 0:
            return None
        begun = (folder / "run" / "run.json").exists()
        words = self.scenario.resume if self.scenario.resume and begun else self.scenario.words
        code, said = self._command(folder, words)
        if code != 0 or self._result(folder) != self._expected:
            return f"run again it ended with {code}, or in another result: {said[-200:]}"
        left = [path.name for path in folder.rglob(".*.tmp")]
        return f"{left[0]} was left behind" if left else None

    def _result(self, folder: Path) -> str | None:
        if not (folder / self.scenario.out).exists():
            return None
        code, found = forked(lambda: self.scenario.result(folder), self.base / "looked")
        damage = (self.base / "looked").read_text(errors="replace")[-200:]
        return f"damaged: {damage}" if code else str(found)

    def _command(
        self, folder: Path, words: Sequence[str], at: int = 0, number: int | None = None
    ) -> tuple[int, str]:
        def work() -> None:
            os.chdir(folder)
            operations = inject(folder, at, number)
            sys.argv = ["deltacell", *words]
            try:
                self.main()
            finally:
                (self.base / "operations").write_text(str(operations()))

        code, _ = forked(work, self.base / "said")
        return code, (self.base / "said").read_text(errors="replace")

    @contextmanager
    def _copied(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="deltacell-fault-") as folder:
            for source, target in self.scenario.start.items():
                shutil.copytree(self.base / "artefacts" / source, Path(folder) / target)
            yield Path(folder)


def inject(folder: Path, at: int, number: int | None) -> Callable[[], int]:
    """Count this process's file operations in a folder; at operation `at`, fail or be killed."""
    done, inside, mine, fsync = 0, os.fspath(folder), os.getpid(), os.fsync

    def operation() -> None:
        nonlocal done
        if os.getpid() != mine:
            return
        done += 1
        if done == at:
            if number is None:
                os.kill(mine, signal.SIGKILL)
            else:
                raise OSError(number, os.strerror(number))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            flags = arguments[2]
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR):
                return
        elif event not in WATCHED:
            return
        path = arguments[0]
        path = os.fsdecode(path) if isinstance(path, bytes) else path
        if isinstance(path, str) and (path.startswith(inside) or not path.startswith("/")):
            operation()

    def watched_fsync(handle: Any) -> None:
        operation()
        fsync(handle)

    os.fsync = watched_fsync  # type: ignore[assignment]
    sys.addaudithook(hook)
    return lambda: done


def _import_result(folder: Path) -> str:
    found = Imported.load(folder / "out")
    return " ".join([found.cell.checksum, *(s.checksum for s in found.screens.values())])


def _train_result(folder: Path) -> str:
    if read_run(folder / "run").status is not Status.finished:
        return "unfinished"
    run = load_run(folder / "run", "last")
    state = Checkpoints(folder / "run" / "checkpoints").load("last")
    weights = text_of_state([state["model"], state["optimizer"]])
    return f"{_hash(weights.encode())} {run.data.split.checksum}"


def _ranking_result(folder: Path) -> str:
    Ranking.read(folder / "out.parquet").to_json()
    return _hash((folder / "out.parquet").read_bytes())


def _evaluation_result(folder: Path) -> str:
    found = json.loads((folder / "out.json").read_text())
    return _hash(json.dumps(found["groups"], sort_keys=True).encode())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


TRAIN = (
    *("train", "experiment=demo", "data.synthetic_genotypes=150", "data.batch_size=32"),
    *("model.hidden=4", "trainer.epochs=2", "trainer.threads=1", "trainer.figures_every=1"),
    *("trainer.checkpoint_every_steps=2", "trainer.progress=false", "loggers.tensorboard=false"),
    "directory=run",
)
IMPORT = ("data", "import", "sources", "--out", "out", "--overwrite")
PREDICT = ("predict", "trained", "--sets", "pairs", "--top", "50", "--out", "out.parquet")
EVALUATE = ("evaluate", "trained", "--baselines", "additive", "--json", "out.json")
FROM, TRAINED = {"sources": "sources", "import": "out"}, {"trained": "trained"}
SCENARIOS = (
    Scenario("data import", IMPORT, FROM, "out", _import_result),
    Scenario("train", TRAIN, {}, "run/run.json", _train_result, ("train", "--resume", "run")),
    Scenario("predict", PREDICT, TRAINED, "out.parquet", _ranking_result),
    Scenario("evaluate", EVALUATE, TRAINED, "out.json", _evaluation_result),
)
