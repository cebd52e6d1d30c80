"""Faults, made on purpose: damaged files, hostile input, and commands that are killed or refused.

Three means. A *flip* damages a file that the program wrote and reads it: the answer has to be an
error or what was written. A *fuzz* changes a file that somebody else wrote: the answer has to be an
error or a result. An *injection* kills a command, or fails its file operation, at the n-th of
them: what was there before has to be whole, and the command given again has to end as if nothing
had happened.

Every case runs in a forked process, so that a crash is counted and not suffered. The process that
forks only imports: a library that has started threads does not survive a fork.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from deltacell.bench.faults_corpus import (
    FLIPPED,
    NASTY,
    SAMPLES,
    readers,
    text_of_state,
    write_artefacts,
)
from deltacell.bench.process import machine
from deltacell.errors import DeltacellError

FAULTS: dict[str, int | None] = {
    "kill": None,
    "ENOSPC": errno.ENOSPC,
    "EIO": errno.EIO,
    "EACCES": errno.EACCES,
}
_WATCHED = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link")


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
        """Count a case: ``clean``, ``right`` or ``failures``."""
        self.tries += 1
        setattr(self, outcome, getattr(self, outcome) + 1)
        if outcome == "failures" and len(self.examples) < 5:
            self.examples.append(example)

    def join(self, other: Mapping[str, Any]) -> None:
        """Count the cases of another row too."""
        for name in ("tries", "clean", "right", "failures"):
            setattr(self, name, getattr(self, name) + other[name])
        self.examples = [*self.examples, *other["examples"]][:5]


def run(
    minutes: float,
    main: Callable[[], object],
    *,
    seed: int = 0,
    kinds: Sequence[str] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Make faults for some minutes, each kind in turn."""
    began, until = time.monotonic(), time.monotonic() + 60 * minutes
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="deltacell-faults-") as folder:
        base = Path(folder)
        _preload()
        code, _ = _forked(lambda: write_artefacts(base / "artefacts"), base / "said")
        if code:
            raise DeltacellError((base / "said").read_text(errors="replace"))
        turns = _turns(base, main, kinds, seconds=min(5.0, max(0.2, minutes / 2)))
        rows = {kind: Row(kind) for kind in turns}

        def total(name: str) -> int:
            return sum(getattr(row, name) for row in rows.values())

        said_at = began
        while turns:
            for kind, turn in turns.items():
                turn(rows[kind], rng.randrange(2**32))
                if time.monotonic() > said_at + 60:
                    said_at = time.monotonic()
                    minute = (said_at - began) / 60
                    failures = total("failures")
                    say(f"{total('tries'):,} cases in {minute:.0f} minutes, {failures:,} failures")
            if time.monotonic() > until:
                break
    return {
        "rows": [vars(row) for row in rows.values()],
        "total": {name: total(name) for name in ("tries", "clean", "right", "failures")},
        "bars": {},
        "seconds": round(time.monotonic() - began, 1),
        "seed": seed,
        "machine": machine(),
        "command": f"deltacell bench faults --minutes {minutes:g} --seed {seed}",
    }


Turn = Callable[[Row, int], None]


def _turns(
    base: Path, main: Callable[[], object], kinds: Sequence[str] | None, seconds: float
) -> dict[str, Turn]:
    """Return what makes cases of each kind; a turn of cheap cases lasts so many seconds."""
    flips = {f"flip {k}": partial(_flips, base / "artefacts", k, seconds) for k in FLIPPED}
    fuzzes = {f"fuzz {name}": partial(_fuzzes, name, seconds) for name in readers()}
    found: dict[str, Turn] = {k: _sliced(base, work) for k, work in (flips | fuzzes).items()}
    found |= {f"inject {one.name}": _Injected(base, main, one) for one in _SCENARIOS}
    return {k: turn for k, turn in found.items() if kinds is None or k.startswith(tuple(kinds))}


def _preload() -> None:
    """Import what the forks use, so that none of them has to."""
    # A pool of threads for each fork would cost more than its cases.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    import deltacell.evaluate.runs
    import deltacell.predict.search
    import deltacell.report.evaluate
    import deltacell.screen.import_folder
    import deltacell.train.run  # noqa: F401


def _forked(work: Callable[[], object], said: Path | None = None) -> tuple[int, bytes]:
    """Run something in a fork; return its exit code, negative for a signal, and its JSON result."""
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        code = 70
        try:
            os.close(reading)
            target = os.open(said or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(target, 1)
            os.dup2(target, 2)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            try:
                result = work()
                with os.fdopen(writing, "wb") as pipe:
                    pipe.write(json.dumps(result).encode())
                code = 0
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else int(error.code is not None)
            except BaseException:
                import traceback

                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        result_bytes = pipe.read()
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status), result_bytes


def _sliced(base: Path, work: Callable[[Row, int], None]) -> Turn:
    """Return a turn of cheap cases, which run one after the other in one fork."""

    def turn(row: Row, seed: int) -> None:
        def in_fork() -> dict[str, Any]:
            mine = Row(row.kind)
            work(mine, seed)
            return vars(mine)

        said = base / "said"
        code, result = _forked(in_fork, said)
        if code == 0 and result:
            row.join(json.loads(result))
        else:
            last = said.read_text(errors="replace").strip()[-300:]
            row.add("failures", f"seed {seed}: the process ended with {code}: {last}")

    return turn


def _outcome(call: Callable[[], Any], row: Row, what: str, expected: Any = None) -> None:
    """Count what a call does: a clean error, the right result, or anything else."""
    try:
        found = call()
    except DeltacellError:
        row.add("clean")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        row.add("failures", f"{what}: {type(error).__name__}: {str(error)[:200]}")
    else:
        if expected is None or found == expected:
            row.add("right")
        else:
            row.add("failures", f"{what}: accepted, and it is not what was written")


def _damaged(rng: random.Random, data: bytes) -> bytes:
    """Return bytes as a bad disk, cable or transfer leaves them."""
    at = rng.randrange(len(data))
    kind = rng.randrange(10)
    if kind < 5:
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if kind == 5:
        return data[:at] + rng.randbytes(1) + data[at + 1 :]
    if kind == 6:
        return data[:at]
    if kind == 7:
        return data + rng.randbytes(1 + rng.randrange(9))
    length = 1 + rng.randrange(512)
    hole = bytes(length) if kind == 8 else rng.randbytes(length)
    return data[:at] + hole[: len(data) - at] + data[at + length :]


def _flips(artefacts: Path, kind: str, seconds: float, row: Row, seed: int) -> None:
    """Damage one file after the other for some seconds, and read it."""
    pattern, read = FLIPPED[kind]
    rng, expected = random.Random(seed), read(artefacts)
    until = time.monotonic() + seconds
    files = sorted(artefacts.glob(pattern))
    whole = {file: file.read_bytes() for file in files}
    number = 0
    while time.monotonic() < until:
        file = rng.choice(files)
        damaged = _damaged(rng, whole[file])
        number += 1
        if damaged == whole[file]:
            continue
        file.write_bytes(damaged)
        try:
            _outcome(lambda: read(artefacts), row, f"{file.name}, seed {seed}, {number}", expected)
        finally:
            file.write_bytes(whole[file])


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
            other = rng.choice(others).split(b"\n")
            lines[line] = rng.choice(other)
        data = b"\n".join(lines)
    return gzip.compress(data, 1) if rng.randrange(20) == 0 else data


def _fuzzes(name: str, seconds: float, row: Row, seed: int) -> None:
    """Read one fuzzed file after the other for some seconds."""
    sample, read = readers()[name]
    rng, data = random.Random(seed), sample.encode()
    others = [one.encode() for one in SAMPLES.values()]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "file.txt"
        (Path(folder) / "genes.txt").write_text(SAMPLES["string_genes"])
        file.write_bytes(data)
        # The sample itself is read, or all its changes would be refused for another reason.
        read(file)
        number, until = 0, time.monotonic() + seconds
        while time.monotonic() < until:
            number += 1
            file.write_bytes(_fuzzed(rng, data, others))
            _outcome(lambda: read(file), row, f"seed {seed}, {number}")


class Scenario(NamedTuple):
    """A command, what it starts from, and what it is to leave behind."""

    name: str
    words: tuple[str, ...]
    start: tuple[str, ...]  # names in the artefacts
    result: Callable[[Path], str | None]  # what it left; raises where that is not whole
    again: Callable[[Path], tuple[str, ...]] | None = None  # what a user runs after a fault
    before: bool = False  # whether what it starts from is also right until it is run again


class _Injected:
    """Faults at the operations of a command, one case per turn."""

    def __init__(self, base: Path, main: Callable[[], object], scenario: Scenario) -> None:
        self.base, self.main, self.scenario = base, main, scenario
        self._operations = 0
        self._expected: str | None = None
        self._before: str | None = None

    def __call__(self, row: Row, seed: int) -> None:
        """Inject a fault at an operation that the seed chooses, and run the command again."""
        scenario = self.scenario
        if not self._operations:
            with _copied(self.base / "artefacts", scenario.start) as folder:
                self._before = self._result(folder)
                counted = self.base / "counted"
                code, said = self._command(folder, scenario.words, counted=counted)
                if code != 0:
                    raise DeltacellError(f"{scenario.name} failed without a fault: {said}")
                self._operations = int(counted.read_text())
                self._expected = self._result(folder)
        rng = random.Random(seed)
        at, fault = 1 + rng.randrange(self._operations), rng.choice(list(FAULTS))
        with _copied(self.base / "artefacts", scenario.start) as folder:
            code, said = self._command(folder, scenario.words, at, FAULTS[fault])
            problem = self._judged(folder, code, said, killed=fault == "kill")
            if problem is None and (code != 0 or self._result(folder) != self._expected):
                words = scenario.words if scenario.again is None else scenario.again(folder)
                code_again, said = self._command(folder, words)
                if code_again != 0:
                    problem = f"run again it ended with {code_again}: {said[-200:]}"
                elif self._result(folder) != self._expected:
                    problem = "run again it ended in another result"
            left = [p.name for p in folder.rglob(".*.tmp")]
            if problem is None and code != 0 and left:
                problem = f"{left[0]} was left behind"
        if problem is not None:
            row.add("failures", f"{fault} at operation {at} of {self._operations}: {problem}")
        else:
            row.add("right" if code == 0 else "clean")

    def _judged(self, folder: Path, code: int, said: str, *, killed: bool) -> str | None:
        """Return what is wrong right after the fault."""
        if code not in (-signal.SIGKILL, 0) if killed else code < 0 or code == 70:
            return f"it ended with {code}: {said[-200:]}"
        if "a fault of deltacell" in said or "Traceback" in said:
            return f"it blames itself: {said[-300:]}"
        found = self._result(folder)
        if code == 0 and found != self._expected:
            return f"it ended well with another result: {found}"
        allowed = {self._expected, self._before if self.scenario.before else None}
        if found not in allowed and not str(found).startswith("unfinished"):
            return f"what it left is not whole: {found}"
        return None

    def _result(self, folder: Path) -> str | None:
        code, found = _forked(lambda: self.scenario.result(folder), self.base / "looked")
        if code != 0:
            return f"damaged: {(self.base / 'looked').read_text(errors='replace')[-200:]}"
        result: str | None = json.loads(found)
        return result

    def _command(
        self,
        folder: Path,
        words: Sequence[str],
        at: int | None = None,
        number: int | None = None,
        counted: Path | None = None,
    ) -> tuple[int, str]:
        def work() -> None:
            os.chdir(folder)
            operations = _inject(folder, at, number)
            sys.argv = ["deltacell", *words]
            try:
                self.main()
            finally:
                if counted is not None:
                    counted.write_text(str(operations()))

        code, _ = _forked(work, self.base / "said")
        return code, (self.base / "said").read_text(errors="replace")


@contextmanager
def _copied(artefacts: Path, names: Sequence[str]) -> Iterator[Path]:
    """Give a new folder with copies of some artefacts, ``name`` or ``name:new name``."""
    with tempfile.TemporaryDirectory(prefix="deltacell-fault-") as folder:
        for name in names:
            source, _, target = name.partition(":")
            shutil.copytree(artefacts / source, Path(folder) / (target or source))
        yield Path(folder)


def _inject(folder: Path, at: int | None, number: int | None) -> Callable[[], int]:
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
        elif event not in _WATCHED:
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


def _import_result(folder: Path) -> str | None:
    from deltacell.screen.import_folder import Imported

    if not (folder / "out").exists():
        return None
    found = Imported.load(folder / "out")
    return " ".join([found.cell.checksum, *(s.checksum for s in found.screens.values())])


def _train_result(folder: Path) -> str | None:
    from deltacell.profile.record import Status, read_run
    from deltacell.train.checkpoints import Checkpoints
    from deltacell.train.loaded_run import load_run

    if not (folder / "run" / "run.json").exists():
        return None
    if read_run(folder / "run").status is not Status.finished:
        return "unfinished"
    run = load_run(folder / "run", "last")
    state = Checkpoints(folder / "run" / "checkpoints").load("last")
    weights = text_of_state(state["model"]) + text_of_state(state["optimizer"])
    return f"{hashlib.sha256(weights.encode()).hexdigest()} {run.data.split.checksum}"


def _train_again(folder: Path) -> tuple[str, ...]:
    if (folder / "run" / "run.json").exists():
        return ("train", "--resume", "run")
    return _TRAIN


def _ranking_result(folder: Path) -> str | None:
    from deltacell.predict.ranking_file import Ranking

    out = folder / "out.parquet"
    if not out.exists():
        return None
    Ranking.read(out).to_json()
    return hashlib.sha256(out.read_bytes()).hexdigest()


def _evaluation_result(folder: Path) -> str | None:
    out = folder / "out.json"
    if not out.exists():
        return None
    found = json.loads(out.read_text())
    return hashlib.sha256(json.dumps(found["groups"], sort_keys=True).encode()).hexdigest()


_TRAIN = (
    *("train", "experiment=demo", "data.synthetic_genotypes=150", "data.batch_size=32"),
    *("model.hidden=4", "trainer.epochs=2", "trainer.threads=1", "trainer.figures_every=1"),
    *("trainer.checkpoint_every_steps=2", "trainer.progress=false", "loggers.tensorboard=false"),
    "directory=run",
)
_SCENARIOS = (
    Scenario(
        "data import",
        ("data", "import", "sources", "--out", "out", "--overwrite"),
        ("sources", "import:out"),
        _import_result,
        before=True,
    ),
    Scenario("train", _TRAIN, (), _train_result, _train_again),
    Scenario(
        "predict",
        ("predict", "trained", "--sets", "pairs", "--top", "50", "--out", "out.parquet"),
        ("trained",),
        _ranking_result,
    ),
    Scenario(
        "evaluate",
        ("evaluate", "trained", "--baselines", "additive", "--json", "out.json"),
        ("trained",),
        _evaluation_result,
    ),
)
