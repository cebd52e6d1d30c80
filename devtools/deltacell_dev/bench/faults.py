"""Fault injection: damaged files, hostile input, and commands that are killed or fail.

A *flip* damages a file that the program wrote, a *fuzz* alters a source file, a *habit* changes its
names as people and spreadsheets do (see `habits`), a *received* folder has links or is taken over
(see `received`), an *injection* kills a command, or makes it fail, at one of its file operations,
and a *kill* ends it at each of them in turn; see docs/reliability.md. Cases run in forked
processes, so a crash does not end the benchmark. The parent only imports, because threads of
libraries do not survive a fork.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import importlib.util
import io
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
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_flatten

from deltacell import storage
from deltacell.api.rank import rank
from deltacell.base.errors import DeltacellError, InputError
from deltacell.bench import process
from deltacell.cell import Cell, Genes
from deltacell.data.import_folder import READERS, Imported, import_folder
from deltacell.models.baselines.boosted_trees import booster, predicted
from deltacell.profile.explain import explain
from deltacell.profile.record import Status, read_run
from deltacell.profile.trace.read import read_traces
from deltacell.ranking.gene_sets import Scored
from deltacell.ranking.ranking_file import Ranking
from deltacell.ranking.source import read_sets
from deltacell.ranking.work import RankProgress, read_scored, write_scored
from deltacell.screen import Screen, Split
from deltacell.storage.tables import File
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config.compose import compose
from deltacell.train.config.saved import from_yaml
from deltacell.train.loaded_runs import load_run
from deltacell.train.run import train
from deltacell.train.run_config import read_config
from deltacell_dev.bench.habits import KINDS as HABITS
from deltacell_dev.bench.habits import habits
from deltacell_dev.bench.received import KINDS as RECEIVED
from deltacell_dev.bench.received import received

Reader = Callable[[Path], Any]
Cases = Iterator[tuple[Callable[[], Any], Any]]  # calls, and their expected results unless None

FAULTS = {"kill": None, "ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EACCES": errno.EACCES}
OUTCOMES = ("clean", "right", "failures")
WATCHED = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link")
MEMORY = Path("/dev/shm")  # used if it exists, because disks are slow
TIMEOUT = 600  # seconds until a command is killed
TIMEOUT_OF_TURN = 6_000  # of its cases; those of kills run a command up to nine times
POINTS_PER_TURN = 4  # operations at which a turn kills a command, one after the other
FORK = multiprocessing.get_context("fork")


def run(minutes: float = 1.0, seed: int = 0, only: str = "") -> dict[str, Any]:
    """Inject faults for some minutes, one process per core; ``only`` selects kinds by prefix.

    The kinds take turns of equal length, so cheap ones get more tries. A case is ``clean`` if it
    ended in an error that says what is wrong and a command could be rerun, ``right`` if it ended in
    the right result; all others are ``failures``.
    """
    kinds = [f"flip {kind}" for kind in flipped()] + [f"fuzz {kind}" for kind in fuzzed()]
    kinds += [f"habit {kind}" for kind in HABITS]
    kinds += [f"received {kind}" for kind in RECEIVED]
    kinds += [f"inject {name}" for name in COMMANDS]
    kinds += [f"kill {name}" for name in COMMANDS]
    chosen = [kind for kind in kinds if kind.startswith(tuple(only.split(",")))]
    if not chosen:
        raise InputError(f"no kind begins with {only}: {', '.join(kinds)}", code="no-kind")
    torch.set_num_threads(1)
    os.environ["POLARS_MAX_THREADS"] = "1"
    began = time.monotonic()
    seconds = 60 * minutes
    workers = os.cpu_count() or 1
    found = Counter[tuple[str, str]]()
    failures = list[dict[str, str]]()
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="deltacell-faults-", dir=place) as folder:
        artefacts = Path(folder, "artefacts")
        importlib.import_module("lightning_fabric")  # slow to import, and needed by the first fork
        code, _, output = Fork(partial(write_artefacts, artefacts)).end()
        if code:
            raise DeltacellError(output[-2000:])
        for first in count(0, workers):
            took = time.monotonic() - began
            if first >= len(chosen) and took > seconds:
                break
            process.progress("faults", round(min(took, seconds)), round(seconds))
            numbers = [divmod(turn, len(chosen)) for turn in range(first, first + workers)]
            turns = [(chosen[kind], f"{seed}.{number}") for number, kind in numbers]
            lasts = min(5.0, max(0.1, seconds / 120))
            forks = [
                Fork(partial(take_turn, artefacts, *turn, lasts), timeout=TIMEOUT_OF_TURN)
                for turn in turns
            ]
            for (kind, seeded), fork in zip(turns, forks, strict=True):
                code, outcomes, output = fork.end()
                crashed = {"failures": 1}, [f"exit code {code}: {output[-300:]}"]
                counts, failed = outcomes or crashed
                found.update({(kind, outcome): n for outcome, n in counts.items()})
                failures += [{"kind": kind, "failure": f"seed {seeded}, {one}"} for one in failed]
    rows: list[dict[str, Any]] = []
    for kind in chosen:
        row = {outcome: found[kind, outcome] for outcome in OUTCOMES}
        rows.append({"kind": kind, "tries": sum(row.values()), **row})
    total = {key: sum(row[key] for row in rows) for key in ("tries", *OUTCOMES)}
    return {"rows": rows, "examples": failures[:50], "total": total}


class Fork:
    """A call in a forked process: its exit code, its result and its output."""

    def __init__(self, work: Callable[[], Any], timeout: int = TIMEOUT) -> None:
        self._timeout = timeout
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self.result, theirs = FORK.Pipe(duplex=False)
        self._process = FORK.Process(target=self._run, args=(work, theirs))
        self._process.start()
        theirs.close()

    def _run(self, work: Callable[[], Any], result: Any) -> None:
        signal.alarm(self._timeout)
        self.result.close()  # Otherwise a fork that outlives its parent could block in `send`.
        for stream in (1, 2):
            os.dup2(self._output.fileno(), stream)
        result.send((work(), list(sys.modules)))

    def end(self) -> tuple[int, Any, str]:
        """Wait; return the exit code, negative for a signal, the result and the output."""
        result = None
        imported = list[str]()
        # A fork that is killed may have sent nothing, or the beginning of its result.
        with suppress(EOFError, OSError):
            result, imported = self.result.recv()
        self._process.join()
        # Later forks need not import these again.
        for name in set(imported) - set(sys.modules):
            with suppress(Exception):
                importlib.import_module(name)
        with self._output as output:
            output.seek(0)
            text = output.read().decode(errors="replace").strip()
        return self._process.exitcode or 0, result, text


def take_turn(
    artefacts: Path,
    kind: str,
    seed: str,
    seconds: float,
) -> tuple[Counter[str], list[str]]:
    """Run cases of one kind for some seconds; return the number of each outcome, and failures."""
    found = Counter[str]()
    failures = list[str]()
    until = time.monotonic() + seconds
    how, _, what = kind.partition(" ")
    with copied(artefacts) as folder:
        for call, expected in _cases(how, folder, what, seed):
            outcome, problem = outcome_of(call, expected)
            found[outcome] += 1
            failures += [f"case {found.total()}: {problem}"] if problem else []
            if how != "kill" and time.monotonic() >= until:
                break
    return found, failures


def _cases(how: str, folder: Path, what: str, seed: str) -> Cases:
    """Return the cases of a turn; a seed is that of the benchmark and the turn's number."""
    if how == "kill":
        return kills(folder, what, int(seed.rpartition(".")[2]))
    return CASES[how](folder, what, random.Random(f"{how} {what} {seed}"))


@contextmanager
def copied(artefacts: Path) -> Iterator[Path]:
    """Copy the artefacts into a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(dir=artefacts.parent) as folder:
        yield Path(shutil.copytree(artefacts, Path(folder, "copy")))


def outcome_of(call: Callable[[], Any], expected: Any = None) -> tuple[str, str]:
    """Return the outcome of a call, as in `OUTCOMES`, and for a failure what went wrong."""
    try:
        found = call()
    except DeltacellError:
        return "clean", ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return "failures", f"{type(error).__name__}: {str(error)[:300]}"
    if expected is None or found == expected:
        return "right", ""
    return "failures", "accepted, but differs from what was written"


# --- the files ---

#: A file of each format by the name of its reader; a workbook has one line per file in it.
SAMPLES = {
    Path(file.name).stem: file.read_text("utf-8")
    for file in sorted(files("deltacell_dev.bench").joinpath("samples").iterdir(), key=str)
}


def write_artefacts(folder: Path) -> None:
    """Write one of each file and directory that deltacell reads."""
    folder.mkdir(parents=True)
    cell = Cell.synthetic("demo").subset(range(20)).with_relations(["physical", "regulatory"])
    cell.save(folder / "cell")
    screen = Screen.synthetic(cell, n=60)
    screen.save(folder / "screen")
    Split.random(screen, seed=1).save(folder / "split")
    train(compose([*training(folder), "trainer.epochs=1", f"directory={folder / 'trained'}"]))
    shutil.copytree(folder / "trained", folder / "run")
    rng = np.random.default_rng(0)
    score, spread = rng.normal(size=(2, 40)).astype(np.float32)
    scored = Scored(rng.integers(0, 99, (40, 3)), score, spread)
    progress: RankProgress = {"request": {}, "done": 3, "finished": False}
    write_scored(folder / "work.arrow", scored, progress)
    rank(folder / "trained", top=5, out=folder / "ranking.parquet", progress=False)
    write_tables(folder / "tables", screen)
    (folder / "sources").mkdir()
    for name in ("biogrid", "string_physical", "table", "gene_table"):
        (folder / "sources" / f"{name}.txt").write_text(SAMPLES[name])
        if name == "biogrid":  # The command replaces an import of this file alone.
            import_folder(folder / "sources").save(folder / "import")


def write_tables(folder: Path, screen: Screen) -> None:
    """Write a table of pairs and a network, as somebody may have them."""
    folder.mkdir()
    names = screen.genes.systematic
    pairs = [genes.tolist() for genes in screen.genotypes]
    scores = screen.column("score").tolist()
    rows = [
        f"{names[genes[0]]}\t{names[genes[1]]}\t{score}\n"
        for genes, score in zip(pairs, scores, strict=True)
        if len(genes) == 2
    ]
    (folder / "screen.tsv").write_text("gene1\tgene2\tscore\n" + "".join(rows))
    edges = [f"{one}\t{other}\n" for one, other in pairwise(names)]
    (folder / "physical.tsv").write_text("".join(edges))


def training(artefacts: Path) -> list[str]:
    """Return the settings of a training that takes a fraction of a second."""
    return [
        *("experiment=demo", "data.synthetic=null", "data.batch_size=16", "model.hidden=4"),
        *(f"data.cell={artefacts / 'cell'}", f"data.screen={artefacts / 'screen'}"),
        *("model.relations=[physical,regulatory]", "+model.lambdas.physical=0.1"),
        *("+model.lambdas.regulatory=1", "split.method=random"),
        *("trainer.figures_every=0", "trainer.progress=false", "trainer.keep=1"),
        "loggers.tensorboard=false",
    ]


def hash_of_state(state: Any) -> str:
    """Return a hash of a checkpoint's state, including every bit of its tensors."""
    leaves, structure = tree_flatten(state)
    plain = [
        (one.dtype, one.shape, one.numpy().tobytes()) if isinstance(one, torch.Tensor) else one
        for one in leaves
    ]
    return hashlib.sha256(repr((structure, plain)).encode()).hexdigest()


# --- flips and fuzzes ---

#: Fuzz kinds whose sample, or whose reader's package, has another name.
SAMPLE_OF = {"gene sets": "sets", "any file": "table", "explanation": "trace"}
NEEDS = {"sbml": "cobra", "xlsx": "fastexcel"}

#: Values that occur in fields of files made by hand, by accident or on purpose.
NASTY: tuple[bytes, ...] = (
    *(b"", b" ", b"NA", b"nan", b"inf", b"-inf", b"1e39", b"-1e39", b"1e400", b"-1e-400", b"0x1p3"),
    *(b"-0.0", b"1,5", b"1_000", b"9" * 400, b"-1", b"2", b"18446744073709551616", b"1e", b"--"),
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", "Δ".encode(), "ε\u202e".encode()),
    *(b'"', b"'", b'"a\tb"', b"\\", b"#", b"\r", b"\x1f", b"\x0b", b"\t\t\t", b",,,", b";"),
    *(b"YAL001C", b"yal001c", b"TFC3", b"YAL001C+YAL001C", b"HO", b"YDL227C", b"x" * 5000),
    *(b"=1+1", b"${oc.env:HOME}", b"&a [*a]", b"*a", b"!!python/object:os.system", b"{", b"[" * 60),
    *(b"null", b"true", b"- x", b"%s%n", b"../../etc/passwd", b"\x1f\x8b\x08", b"PK\x03\x04"),
    *(b"<!DOCTYPE x [<!ENTITY y SYSTEM 'file:///etc/passwd'>]>", b"&y;", b"XFD1048576", b"]}"),
)
SEPARATORS = (b"\t", b",", b" ", b'"', b":", b"<", b">")


def flipped() -> dict[str, tuple[str, Reader]]:
    """Return for each kind a pattern of files of `write_artefacts`, and their reader."""

    def stored(kind: str, folder: Path) -> Any:
        """Return all that a directory holds."""
        found = storage.read(folder / kind, kind)
        return found.checksum, found.meta, {n: t.to_pydict() for n, t in found.parts.items()}

    def state(folder: Path) -> Any:
        """Return which checkpoints a run has, and the hash of the last state."""
        found = Checkpoints(folder / "run" / "checkpoints")
        return repr(found.kept), hash_of_state(found.load())

    def work(folder: Path) -> Any:
        scored, about = read_scored(folder / "work.arrow")
        return scored.sets.tolist(), scored.score.tolist(), scored.spread.tolist(), about

    return {
        "cell": ("cell/*", lambda f: (Cell.load(f / "cell").checksum, stored("cell", f))),
        "screen": ("screen/*", partial(stored, "screen")),
        "split": ("split/*", partial(stored, "split")),
        "run.json": ("run/run.json", lambda f: repr(read_run(f / "run"))),
        "config.yaml": ("run/config.yaml", lambda f: repr(read_config(f / "run"))),
        "checkpoint": ("run/checkpoints/*.ckpt", state),
        "ranking": ("ranking.parquet", lambda f: Ranking.read(f / "ranking.parquet").to_json()),
        "work on a ranking": ("work.arrow", work),
    }


def fuzzed() -> dict[str, tuple[bytes, Reader]]:
    """Return the sample and the reader of every format whose packages are installed."""
    genes = Genes(
        ["YAL001C", "YAL002W", "YAL003W", "YAL004W", "YDL227C"],
        ["TFC3", "VPS8", "EFB1", None, "HO"],
    )

    def reading(reader: Any, file: Path) -> Any:
        """Return what a reader makes of a file, on the genes."""
        if reader.gives == "feature":
            return reader.read(file, genes=genes)
        found = reader.read(file)
        found = found if isinstance(found, list) else [found]
        return [one.on(genes, "drop") for one in found if hasattr(one, "on")]

    # If two readers share a name, the sample is for the first.
    by_name = {reader.name: reader for reader in reversed(READERS)}

    def predict(file: Path) -> Any:
        """Return the predictions of trees that are written in a file."""
        text = file.read_text(errors="replace")
        return predicted(booster(text), np.zeros((3, 5), np.float32)).tolist()

    found: dict[str, Reader] = {
        **{name: partial(reading, reader) for name, reader in by_name.items()},
        "xlsx": partial(reading, by_name["table"]),
        "gene sets": lambda file: read_sets(file, genes),
        "config": lambda file: from_yaml(file.read_text(errors="replace"), where=file),
        "any file": lambda file: [bool(reader.find(File(file))) for reader in READERS],
        "trace": read_traces,
        "explanation": explain,
        "trees": predict,
    }
    return {
        name: (_sample_of(name), read)
        for name, read in found.items()
        if name not in NEEDS or importlib.util.find_spec(NEEDS[name])
    }


def _sample_of(name: str) -> bytes:
    """Return the sample of a kind of file; that of embeddings is no text."""
    if name != "embeddings":
        return SAMPLES[SAMPLE_OF.get(name, name)].encode()
    archive = io.BytesIO()
    names = np.array(["YAL001C", "YAL002W", "YAL003W"])
    np.savez(archive, names=names, embeddings=np.arange(24.0).reshape(3, 8))
    return archive.getvalue()


def flips(artefacts: Path, kind: str, rng: random.Random) -> Cases:
    """Yield cases in which bytes of a stored file were changed."""
    pattern, read = flipped()[kind]
    expected = read(artefacts)
    whole = {file: file.read_bytes() for file in sorted(artefacts.glob(pattern))}
    while True:
        file = rng.choice(list(whole))
        changed = damaged(rng, whole[file])
        if changed != whole[file]:
            file.write_bytes(changed)
            yield partial(read, artefacts), expected
            file.write_bytes(whole[file])


def fuzzes(artefacts: Path, kind: str, rng: random.Random) -> Cases:
    """Yield cases in which a file of a format was changed as hands and programs change it."""
    sample, read = fuzzed()[kind]
    folder = artefacts / "fuzzed"
    others = [one.encode() for one in SAMPLES.values()]
    folder.mkdir()
    (folder / "genes.txt").write_text(SAMPLES["string_genes"])
    file = folder / f"file.{kind}"
    file.write_bytes(workbook(sample) if kind == "xlsx" else sample)
    # If the sample itself could not be read, all its changes would fail for that reason.
    read(file)
    while True:
        data = changed_by_hand(rng, sample, others)
        if kind == "xlsx" or rng.randrange(20) == 0:
            data = workbook(data) if kind == "xlsx" else gzip.compress(data, 1)
            data = damaged(rng, data) if rng.randrange(4) == 0 else data
        file.write_bytes(data)
        yield partial(read, file), None


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Return the bytes with damage typical of a bad disk, cable or transfer."""
    at = rng.randrange(len(data))
    length = 1 + rng.randrange(512)
    flip = bytes([data[at] ^ 1 << rng.randrange(8)])
    holes = [*[flip] * 5, rng.randbytes(1), bytes(length), rng.randbytes(length)]
    kind = rng.randrange(10)
    if kind == 8:
        return data[:at]
    if kind == 9:
        return data + rng.randbytes(1 + rng.randrange(9))
    hole = holes[kind][: len(data) - at]
    return data[:at] + hole + data[at + len(hole) :]


def changed_by_hand(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Return the file with changes that somebody may have made by hand."""
    for _ in range(1 + rng.randrange(3)):
        kind = rng.randrange(8)
        lines = data.split(b"\n")
        line = rng.randrange(len(lines))
        if kind < 2 and data:
            lines = [damaged(rng, data)]
        elif kind < 5:
            between = rng.choice([one for one in SEPARATORS if one in lines[line]] or SEPARATORS)
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
    return data


def workbook(lines: bytes) -> bytes:
    """Return a zip with one file per line, which holds its name, a tab and its text."""
    packed = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(packed, "w") as archive:
        for line in lines.splitlines():
            name, _, text = line.partition(b"\t")
            # A zip cannot store an empty name, and a NUL ends a name.
            archive.writestr(name.decode(errors="replace").lstrip("\0") or "?", text)
    return packed.getvalue()


# --- injections ---


class Command(NamedTuple):
    """A command whose file operations are made to fail."""

    words: tuple[str, ...]  # run in a folder with a copy of all artefacts
    out: str  # the file or directory that it writes
    result: Reader  # returns a key of the output; raises an error if that is damaged
    resume: tuple[str, ...] = ()  # rerun with these words instead if the output exists
    ranks: int = 1  # processes that share the work, one after the other


@dataclass(frozen=True)
class Experiment:
    """A command, and what an undisturbed run of it does."""

    artefacts: Path
    command: Command
    before: str | None  # the key of what the command replaces
    result: str | None  # the key of what it writes
    n_operations: int

    @classmethod
    def of(cls, artefacts: Path, command: Command) -> Experiment:
        """Run the command without a fault."""
        with copied(artefacts) as folder:
            before = result_of(command, folder)
            ended = carry_out(folder, command.words, ranks=command.ranks)
            result = result_of(command, folder)
        if ended.code:
            raise DeltacellError(f"the command failed without a fault: {ended.output}")
        return cls(artefacts, command, before, result, ended.n_operations)

    def disturb(self, at: int, fault: str) -> None:
        """Run the command with a fault at an operation, and again without one.

        Raises
        ------
        DeltacellError
            If the command failed as it should, and the rerun gave the undisturbed result.
        AssertionError
            If anything else happened.
        """
        with copied(self.artefacts) as folder:
            ended = carry_out(folder, self.command.words, at, FAULTS[fault], self.command.ranks)
            problem = self._problem_of_end(folder, ended, fault)
            if problem is None and ended.code == 0:
                return
            problem = problem or self._problem_of_rerun(folder)
        if problem is not None:
            raise AssertionError(f"{fault} at operation {at} of {self.n_operations}: {problem}")
        raise DeltacellError("the command failed and was rerun")

    def _problem_of_end(self, folder: Path, ended: Ended, fault: str) -> str | None:
        """Return what is wrong after a fault, or None."""
        is_expected = ended.code in (-signal.SIGKILL, 0) if fault == "kill" else ended.code >= 0
        if not is_expected:
            return f"exit code {ended.code}: {ended.output[-200:]}"
        if "(this is a " in ended.output or "Traceback" in ended.output:
            return f"reported as a bug: {ended.output[-300:]}"
        result = result_of(self.command, folder)
        allowed = [self.result] if ended.code == 0 else [self.before, self.result, UNFINISHED]
        if result not in allowed:
            return f"exit code {ended.code} with another result: {result}"
        return None

    def _problem_of_rerun(self, folder: Path) -> str | None:
        """Rerun the command without a fault; return what is wrong then, or None.

        A run that was killed when it had ended may be refused as finished, but must stay the same.
        """
        had_ended = result_of(self.command, folder) == self.result
        has_begun = self.command.resume and (folder / self.command.out).exists()
        words = self.command.resume if has_begun else self.command.words
        ended = carry_out(folder, words, ranks=self.command.ranks)
        result = result_of(self.command, folder)
        is_refused = had_ended and ended.code == 2 and "the run has finished" in ended.output
        if (ended.code != 0 and not is_refused) or result != self.result:
            return f"the rerun has exit code {ended.code} or another result: {ended.output[-200:]}"
        left = [path.name for path in folder.rglob(".*.tmp")]
        return f"temporary files were left: {left}" if left else None


def injections(artefacts: Path, name: str, rng: random.Random) -> Cases:
    """Yield faults of all kinds at operations drawn at random."""
    experiment = Experiment.of(artefacts, COMMANDS[name])
    while True:
        at = 1 + rng.randrange(experiment.n_operations)
        yield partial(experiment.disturb, at, rng.choice(list(FAULTS))), None


def kills(artefacts: Path, name: str, turn: int) -> Cases:
    """Yield kills at the operations of a turn; one turn after the other covers all operations."""
    experiment = Experiment.of(artefacts, COMMANDS[name])
    first = turn * POINTS_PER_TURN
    for point in range(first, first + POINTS_PER_TURN):
        yield partial(experiment.disturb, 1 + point % experiment.n_operations, "kill"), None


def result_of(command: Command, folder: Path) -> str | None:
    """Return the key of a command's output, None if there is none."""
    if not (folder / command.out).exists():
        return None
    code, found, said = Fork(partial(command.result, folder)).end()
    return f"damaged: {said[-200:]}" if code else str(found)


class Ended(NamedTuple):
    """How a command ended."""

    code: int  # the exit code, negative for a signal
    output: str
    n_operations: int  # file operations until it ended


def carry_out(
    folder: Path,
    words: Sequence[str],
    at: int = 0,
    number: int | None = None,
    ranks: int = 1,
) -> Ended:
    """Run a command with a fault at operation ``at``, counted over all its processes.

    Several ranks run one after the other, the first rank last, because it waits for the others.
    """
    code = 0
    output = ""
    n_operations = 0
    for number_of_rank in reversed(range(ranks)):
        place = {"RANK": str(number_of_rank), "WORLD_SIZE": str(ranks)} if ranks > 1 else {}
        ended = _carry_out_rank(folder, words, at - n_operations, number, place)
        code = ended.code
        output = ended.output
        n_operations += ended.n_operations
        if code:
            break
    return Ended(code, output, n_operations)


def _carry_out_rank(
    folder: Path,
    words: Sequence[str],
    at: int,
    number: int | None,
    environment: dict[str, str],
) -> Ended:
    def work() -> tuple[Any, int]:
        os.chdir(folder)
        os.environ.update(environment)
        operations = inject(folder, at, number)
        ended = None
        sys.argv = ["deltacell", *words]
        try:
            runpy.run_module("deltacell", run_name="__main__")
        except SystemExit as end:
            ended = end.code
        return ended, operations()

    code, result, output = Fork(work).end()
    ended, n_operations = result or (code, 0)
    return Ended(ended or code, output, n_operations)


def inject(folder: Path, at: int, number: int | None) -> Callable[[], int]:
    """Count this process's file operations in a folder; fail or be killed at operation ``at``."""
    done = 0
    inside = os.fspath(folder)
    mine = os.getpid()
    fsync = os.fsync

    def operation() -> None:
        """Count a file operation, and fail or be killed if its turn has come."""
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
        """Count an audited event that changes something in the folder."""
        if event == "open":
            flags = arguments[2]
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR):
                return
        elif event not in WATCHED:
            return
        path = os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes) else "/"
        if path.startswith(inside) or not path.startswith("/"):
            operation()

    def watched_fsync(handle: Any) -> None:
        """Count a flush, and flush."""
        operation()
        fsync(handle)

    os.fsync = watched_fsync  # type: ignore[assignment]
    sys.addaudithook(hook)
    return lambda: done


def _import_result(folder: Path) -> str:
    found = Imported.load(folder / "import")
    return " ".join([found.cell.checksum, *(s.checksum for s in found.screens.values())])


def _result_of_run(path: Path) -> str:
    """Return a key of a run's weights and split."""
    if read_run(path).status is not Status.finished:
        return UNFINISHED
    run = load_run(path, "last")
    state = Checkpoints(path / "checkpoints").load("last")
    return f"{hash_of_state([state['model'], state['optimizer']])} {run.data.split.checksum}"


def _ranking_result(folder: Path) -> str:
    Ranking.read(folder / "out.parquet").to_json()
    return hashlib.sha256((folder / "out.parquet").read_bytes()).hexdigest()


def _start_result(folder: Path) -> str:
    """Return a key of the weights, the test and the ranking of `deltacell start`."""
    results = folder / "started"
    if not (results / "ranking.html").exists():
        return UNFINISHED
    groups = json.loads((results / "evaluation.json").read_text())["groups"]
    ranking = hashlib.sha256((results / "ranking.parquet").read_bytes()).hexdigest()
    return f"{_result_of_run(results / 'run')} {ranking} {groups}"


UNFINISHED = "unfinished"
TRAIN = (
    *("train", *training(Path()), "trainer.epochs=2", "trainer.figures_every=2"),
    *("trainer.checkpoint_every_steps=2", "directory=new"),
)
IMPORT = ("data", "import", "sources", "--out", "import", "--overwrite")
PREDICT = ("predict", "trained", "--sets", "pairs", "--top", "50", "--out", "out.parquet")
FIT = (
    *("train", "data.cell=cell", "data.screen=screen", "model=pair_trees", "model.rounds=3"),
    *("split.method=random", "directory=fitted"),
)
START = ("start", "tables", "model.rounds=3", "--out", "started", "--top", "5")
EVALUATE = ("evaluate", "trained", "--baselines", "additive", "--json", "out.json")
COMMANDS = {
    "data import": Command(IMPORT, "import", _import_result),
    "train": Command(
        TRAIN, "new/run.json", lambda f: _result_of_run(f / "new"), ("train", "--resume", "new")
    ),
    "fit trees": Command(
        FIT,
        "fitted/run.json",
        lambda f: _result_of_run(f / "fitted"),
        ("train", "--resume", "fitted"),
    ),
    "predict": Command(PREDICT, "out.parquet", _ranking_result),
    "predict in two processes": Command(PREDICT, "out.parquet", _ranking_result, ranks=2),
    "evaluate": Command(
        EVALUATE,
        "out.json",
        lambda f: json.loads((f / "out.json").read_text())["groups"],
    ),
    "start": Command(START, "started", _start_result),
}

CASES = {
    "flip": flips,
    "fuzz": fuzzes,
    "habit": habits,
    "received": received,
    "inject": injections,
}
