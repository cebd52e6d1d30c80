"""Faults, made on purpose: damaged files, hostile input, and commands that are killed or refused.

A *flip* damages a file that the program wrote and reads it: the answer has to be an error or what
was written. A *fuzz* changes a file that somebody else wrote: the answer has to be an error or a
result. An *injection* kills a command, or fails it, at one of its file operations: what was there
before has to be whole, and the command given again has to end as if nothing had happened.

Every case runs in a forked process, so that a crash is counted and not suffered. The processes that
fork only import: a library that has started threads does not survive a fork.
"""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import random
import runpy
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from deltacell.bench.faults_corpus import (
    Cases,
    flipped,
    flips,
    fuzzed,
    fuzzes,
    hash_of_state,
    training,
    write_artefacts,
)
from deltacell.bench.process import silent
from deltacell.errors import DeltacellError, InputError
from deltacell.models.base import check_range
from deltacell.predict.ranking_file import Ranking
from deltacell.profile.record import Status, read_run
from deltacell.screen.import_folder import Imported
from deltacell.train.predictor import load_run
from deltacell.train.run_directory import Checkpoints
from deltacell.words import Progress

FAULTS = {"kill": None, "ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EACCES": errno.EACCES}
OUTCOMES = ("clean", "right", "failures")
WATCHED = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link")
MEMORY = Path("/dev/shm")  # a folder that no disk slows down, where there is one
HANGS = 600  # seconds more than its turn after which a process is given up

CASES = {"flip": flips, "fuzz": fuzzes}
FORK = multiprocessing.get_context("fork")


@dataclass
class Row:
    """What became of the cases of one kind of damaged file or failed command.

    ``clean`` cases ended in an error that says what is wrong, and rerunning a command worked;
    ``right`` ones in the right result; all others are ``failures``.
    """

    kind: str
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0  # of one process
    examples: list[str] = field(default_factory=list)  # of failures, with the seed to repeat them

    def add(self, outcome: str, example: str = "") -> None:
        self.outcomes[outcome] += 1
        self.examples += [example] if example else []

    def update(self, other: Row) -> None:
        self.outcomes.update(other.outcomes)
        self.seconds += other.seconds
        self.examples += other.examples

    def counts(self) -> dict[str, int]:
        return {"tries": self.outcomes.total(), **{name: self.outcomes[name] for name in OUTCOMES}}


def run(
    minutes: float,
    seed: int = 0,
    only: str = "",
    workers: int | None = None,
    *,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Make faults for some minutes, with kinds that begin as ``only`` names them in turn.

    Every kind gets the same time, so that cheap ones get more tries. Ctrl-C ends it after the
    present turns, with what was found until then.
    """
    began = time.monotonic()
    workers = (os.cpu_count() or 1) if workers is None else workers
    check_range("[1, inf)", workers=workers)
    torch.set_num_threads(1)
    os.environ["POLARS_MAX_THREADS"] = "1"
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="deltacell-faults-", dir=place) as folder:
        bench = Bench(Path(folder), 60 * minutes, seed, only)
        Fork(partial(write_artefacts, bench.base / "artefacts"), bench.base / "said").must()
        folders = [bench.base / f"worker{i}" for i in range(workers)]
        forks = [Fork(partial(bench.work, one), one.with_suffix(".said")) for one in folders]
        rows = [Row(kind) for kind in bench.kinds]
        for fork in forks:
            try:
                while not fork.result.poll(0.2):
                    done = min(time.monotonic() - began, 60 * minutes)
                    progress("faults", round(done), round(60 * minutes))
            except KeyboardInterrupt:
                bench.until.value = 0.0
            for row, more in zip(rows, fork.must(), strict=True):
                row.update(more)
    total = Row("all")
    for row in rows:
        total.update(row)
    return {
        "rows": [{"kind": row.kind, **row.counts(), "seconds": row.seconds} for row in rows],
        "examples": [{"kind": row.kind, "failure": e} for row in rows for e in row.examples[:5]],
        "total": total.counts(),
        "seconds": round(time.monotonic() - began, 1),
    }


class Fork:
    """Something that runs in a fork; what it prints goes to a file."""

    def __init__(self, work: Callable[[], Any], said: Path) -> None:
        self.said = said
        self.result, theirs = FORK.Pipe(duplex=False)
        self._process = FORK.Process(target=self._run, args=(work, theirs))
        self._process.start()
        theirs.close()

    def _run(self, work: Callable[[], Any], result: Any) -> None:
        target = os.open(self.said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(target, 1)
        os.dup2(target, 2)
        result.send((work(), list(sys.modules)))

    def end(self) -> tuple[int, Any, str]:
        """Wait; return the exit code, negative for a signal, the result, and what was printed."""
        result, imported = None, list[str]()
        with suppress(EOFError):
            result, imported = self.result.recv()
        self._process.join()
        # What one fork took time to import, the next will find.
        for name in set(imported) - set(sys.modules):
            with suppress(Exception):
                import_module(name)
        return self._process.exitcode or 0, result, self.said.read_text(errors="replace").strip()

    def must(self) -> Any:
        code, result, said = self.end()
        if code:
            raise DeltacellError(said[-2000:])
        return result


class Bench:
    """The turns of all kinds, which workers take one after the other."""

    def __init__(self, base: Path, seconds: float, seed: int, only: str) -> None:
        self.base, self.seed, self.slice = base, seed, min(5.0, max(0.2, seconds / 120))
        self.until, self._turns = FORK.Value("d", time.monotonic() + seconds), FORK.Value("q")
        kinds = [f"flip {kind}" for kind in flipped()] + [f"fuzz {kind}" for kind in fuzzed()]
        kinds += [f"inject {name}" for name in COMMANDS]
        self.kinds = [kind for kind in kinds if kind.startswith(tuple(only.split(",")))]
        if not self.kinds:
            raise InputError(f"no kind begins with {only}: {', '.join(kinds)}", code="no-kind")

    def work(self, folder: Path) -> list[Row]:
        """Take turns until the time is over and every kind had one."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        parent = os.getppid()
        shutil.copytree(self.base / "artefacts", folder)
        artefacts = self.base / "artefacts"
        commands = {n: replace(one, artefacts=artefacts, own=folder) for n, one in COMMANDS.items()}
        rows = {kind: Row(kind) for kind in self.kinds}
        while True:
            with self._turns.get_lock():
                turn = self._turns.value
                self._turns.value += 1
            began = time.monotonic()
            if os.getppid() != parent:
                os._exit(1)  # There is nobody left to tell.
            if turn >= len(self.kinds) and began > self.until.value:
                return list(rows.values())
            kind = self.kinds[turn % len(self.kinds)]
            how, _, what = kind.partition(" ")
            seed = f"{self.seed}.{turn}"
            if how == "inject":
                found = commands[what].row(seed, self.slice)
            else:
                found = in_fork(folder, CASES[how], what, self.slice, seed)
            found.seconds = time.monotonic() - began
            rows[kind].update(found)


def in_fork(folder: Path, cases: Callable[..., Cases], kind: str, seconds: float, seed: str) -> Row:
    """Run cheap cases one after the other in one fork for some seconds, and count them."""

    def work() -> Row:
        row, until = Row(kind), time.monotonic() + seconds
        signal.alarm(round(seconds) + HANGS)
        for read, expected in cases(folder, kind, random.Random(seed)):
            what, said = outcome_of(read, expected)
            row.add(what, said and f"seed {seed}, case {row.outcomes.total() + 1}: {said}")
            if time.monotonic() >= until:
                break
        return row

    code, found, said = Fork(work, folder / "said").end()
    row: Row = found or Row(kind)
    if found is None:
        row.add("failures", f"seed {seed}: the process ended with {code}: {said[-300:]}")
    return row


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


@dataclass
class Command:
    """A command that is failed at its file operations: what it starts from and leaves behind."""

    words: Sequence[str]
    start: Mapping[str, str]  # names of artefacts, and the names of their copies
    out: str  # what it makes
    result: Callable[[Path], str]  # a key of what it left in a folder; raises if that is damaged
    # What a user runs after a fault, where run.json exists; otherwise the same again.
    resume: Sequence[str] = ()
    artefacts: Path = Path()
    own: Path = Path()  # the folder of the worker
    operations: int = 0  # of the last command

    @cached_property
    def undisturbed(self) -> tuple[int, set[str | None], str | None]:
        """The number of operations, all results that a fault may leave, and the right one."""
        with self._copied() as folder:
            before = self._result(folder)
            code, said = self._command(folder, self.words)
            if code:
                raise DeltacellError(f"a command failed without a fault: {said}")
            operations, right = self.operations, self._result(folder)
        return operations, {before, right, "unfinished"}, right

    def row(self, seed: str, seconds: float) -> Row:
        row, rng, until = Row(""), random.Random(seed), time.monotonic() + seconds
        operations = self.undisturbed[0]
        while not row.outcomes or time.monotonic() < until:
            at, fault = 1 + rng.randrange(operations), rng.choice(list(FAULTS))
            with self._copied() as folder:
                code, said = self._command(folder, self.words, at, FAULTS[fault])
                problem = self._problem(folder, code, said, fault)
            if problem is None:
                row.add("clean" if code else "right")
            else:
                row.add("failures", f"{fault} at operation {at} of {operations}: {problem}")
        return row

    def _problem(self, folder: Path, code: int, said: str, fault: str) -> str | None:
        _, allowed, right = self.undisturbed
        if code not in (-signal.SIGKILL, 0) if fault == "kill" else code < 0:
            return f"it ended with {code}: {said[-200:]}"
        if "a fault of deltacell" in said or "Traceback" in said:
            return f"it blames itself: {said[-300:]}"
        found = self._result(folder)
        if found not in allowed or (code == 0 and found != right):
            return f"it ended with {code} and left another result, or part of one: {found}"
        if code == 0:
            return None
        begun = (folder / "run" / "run.json").exists()
        words = self.resume if self.resume and begun else self.words
        code, said = self._command(folder, words)
        if code != 0 or self._result(folder) != right:
            return f"run again it ended with {code}, or in another result: {said[-200:]}"
        left = [path.name for path in folder.rglob(".*.tmp")]
        return f"{left[0]} was left behind" if left else None

    def _result(self, folder: Path) -> str | None:
        if not (folder / self.out).exists():
            return None
        code, found, said = Fork(partial(self.result, folder), self.own / "looked").end()
        return f"damaged: {said[-200:]}" if code else str(found)

    def _command(
        self, folder: Path, words: Sequence[str], at: int = 0, number: int | None = None
    ) -> tuple[int, str]:
        def work() -> Any:
            os.chdir(folder)
            operations = inject(folder, at, number)
            sys.argv = ["deltacell", *words]
            try:
                runpy.run_module("deltacell", run_name="__main__")
            except SystemExit as end:
                return operations(), end.code
            return operations(), 0

        code, result, said = Fork(work, self.own / "said").end()
        self.operations, ended = result or (0, code)
        return ended or code, said

    @contextmanager
    def _copied(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self.own) as folder:
            for source, target in self.start.items():
                shutil.copytree(self.artefacts / source, Path(folder) / target)
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
    return f"{hash_of_state([state['model'], state['optimizer']])} {run.data.split.checksum}"


def _ranking_result(folder: Path) -> str:
    Ranking.read(folder / "out.parquet").to_json()
    return hashlib.sha256((folder / "out.parquet").read_bytes()).hexdigest()


def _evaluation_result(folder: Path) -> str:
    return json.dumps(json.loads((folder / "out.json").read_text())["groups"], sort_keys=True)


TRAIN = (
    *("train", *training(Path("data")), "trainer.epochs=2", "trainer.figures_every=2"),
    *("trainer.checkpoint_every_steps=2", "directory=run"),
)
IMPORT = ("data", "import", "sources", "--out", "out", "--overwrite")
PREDICT = ("predict", "trained", "--sets", "pairs", "--top", "50", "--out", "out.parquet")
EVALUATE = ("evaluate", "trained", "--baselines", "additive", "--json", "out.json")
DATA = {"cell": "data/cell", "screen": "data/screen"}
TRAINED = {"trained": "trained"}
COMMANDS = {
    "data import": Command(IMPORT, {"sources": "sources", "import": "out"}, "out", _import_result),
    "train": Command(TRAIN, DATA, "run/run.json", _train_result, ("train", "--resume", "run")),
    "predict": Command(PREDICT, TRAINED, "out.parquet", _ranking_result),
    "evaluate": Command(EVALUATE, TRAINED, "out.json", _evaluation_result),
}
