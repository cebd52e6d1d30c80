"""What `deltacell bench faults` damages: a small file of every kind, and what reads it."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import random
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deltacell import store
from deltacell.cell import Cell, Genes
from deltacell.predict.gene_sets import Scored
from deltacell.predict.ranking_file import Ranking
from deltacell.predict.request import GeneNames, read_sets
from deltacell.predict.search import read_scored, write_scored
from deltacell.profile.explain import explain
from deltacell.profile.record import read_run
from deltacell.profile.trace.read import read_traces
from deltacell.screen import Screen, Split
from deltacell.screen.import_folder import READERS, import_folder
from deltacell.table import File
from deltacell.train.compose import compose, from_yaml
from deltacell.train.run import train
from deltacell.train.run_directory import Checkpoints, read_config
from deltacell.verbs import rank

Reader = Callable[[Path], Any]
Cases = Iterator[tuple[Callable[[], Any], Any]]  # what reads a file, and what it has to return

#: A file of each format, by the name of its reader; of a workbook, a line per file in it.
SAMPLES = {
    Path(file.name).stem: file.read_text("utf-8")
    for file in sorted(files("deltacell.bench").joinpath("samples").iterdir(), key=str)
}
#: Kinds of fuzzes whose sample, or whose reader's package, has another name.
SAMPLE_OF = {"gene sets": "sets", "any file": "table", "explanation": "trace"}
NEEDS = {"sbml": "cobra", "xlsx": "fastexcel"}

#: What stands in fields of files that somebody made by hand, by accident or on purpose.
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


def write_artefacts(folder: Path) -> None:
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
    write_scored(folder / "work.arrow", scored, {"done": 3})
    rank(folder / "trained", top=5, out=folder / "ranking.parquet", progress=False)
    (folder / "sources").mkdir()
    for name in ("biogrid", "string_physical", "table", "gene_table"):
        (folder / "sources" / f"{name}.txt").write_text(SAMPLES[name])
        if name == "biogrid":  # What the command replaces was imported from less.
            import_folder(folder / "sources").save(folder / "import")


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
    """Return a key of a checkpoint's state, in which every bit of its tensors counts."""

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            bits = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            return value.dtype, tuple(value.shape), hashlib.sha256(bits).hexdigest()
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items()}
        return [plain(one) for one in value] if isinstance(value, list | tuple) else value

    return hashlib.sha256(repr(plain(state)).encode()).hexdigest()


def flipped() -> dict[str, tuple[str, Reader]]:
    """Return the files of `write_artefacts` by kind, and what reads them, to be compared."""

    def cell(folder: Path) -> Any:
        found = Cell.load(folder / "cell")
        return found.checksum, found.n_genes, sorted(found.relations)

    def stored(kind: str, folder: Path) -> Any:
        found = store.read(folder / kind, kind)
        return found.checksum, found.meta, {n: t.to_pydict() for n, t in found.parts.items()}

    def state(folder: Path) -> Any:
        found = Checkpoints(folder / "run" / "checkpoints")
        return repr(found.kept), hash_of_state(found.load())

    def work(folder: Path) -> Any:
        scored, about = read_scored(folder / "work.arrow")
        return scored.sets.tolist(), scored.score.tolist(), scored.spread.tolist(), about

    return {
        "cell": ("cell/*", cell),
        "screen": ("screen/*", partial(stored, "screen")),
        "split": ("split/*", partial(stored, "split")),
        "run.json": ("run/run.json", lambda f: repr(read_run(f / "run"))),
        "config.yaml": ("run/config.yaml", lambda f: repr(read_config(f / "run"))),
        "checkpoint": ("run/checkpoints/*.ckpt", state),
        "ranking": ("ranking.parquet", lambda f: Ranking.read(f / "ranking.parquet").to_json()),
        "work on a ranking": ("work.arrow", work),
    }


def fuzzed() -> dict[str, tuple[bytes, Reader]]:
    """Return a sample and the reader of every source format whose packages are installed."""
    genes = Genes(
        ["YAL001C", "YAL002W", "YAL003W", "YAL004W", "YDL227C"],
        ["TFC3", "VPS8", "EFB1", None, "HO"],
    )

    def reading(reader: Any, file: Path) -> Any:
        if reader.gives == "feature":
            return reader.read(file, genes=genes)
        found = reader.read(file)
        found = found if isinstance(found, list) else [found]
        return [one.on(genes, "drop") for one in found if hasattr(one, "on")]

    # Of two readers of one name, the first is that of the sample.
    by_name = {reader.name: reader for reader in reversed(READERS)}
    found: dict[str, Reader] = {
        **{name: partial(reading, reader) for name, reader in by_name.items()},
        "xlsx": partial(reading, by_name["table"]),
        "gene sets": lambda file: read_sets(file, GeneNames(genes)),
        "config": lambda file: from_yaml(file.read_text(errors="replace"), where=file),
        "any file": lambda file: [bool(reader.find(File(file))) for reader in READERS],
        "trace": read_traces,
        "explanation": explain,
    }
    return {
        name: (SAMPLES[SAMPLE_OF.get(name, name)].encode(), read)
        for name, read in found.items()
        if name not in NEEDS or importlib.util.find_spec(NEEDS[name])
    }


def flips(artefacts: Path, kind: str, rng: random.Random) -> Cases:
    pattern, read = flipped()[kind]
    expected = read(artefacts)
    whole = {file: file.read_bytes() for file in sorted(artefacts.glob(pattern))}
    while True:
        file = rng.choice(list(whole))
        changed = damaged(rng, whole[file])
        if changed != whole[file]:
            file.write_bytes(changed)
            try:
                yield partial(read, artefacts), expected
            finally:
                file.write_bytes(whole[file])


def fuzzes(artefacts: Path, kind: str, rng: random.Random) -> Cases:
    sample, read = fuzzed()[kind]
    # A folder each: a gene list that another kind left would be one too many.
    folder, others = artefacts / f"fuzzed {kind}", [one.encode() for one in SAMPLES.values()]
    folder.mkdir(exist_ok=True)
    (folder / "genes.txt").write_text(SAMPLES["string_genes"])
    file = folder / f"file.{kind}"
    file.write_bytes(workbook(sample) if kind == "xlsx" else sample)
    # The sample itself is read, or all its changes would be refused for another reason.
    read(file)
    while True:
        data = changed_by_hand(rng, sample, others)
        if kind == "xlsx" or rng.randrange(20) == 0:
            data = workbook(data) if kind == "xlsx" else gzip.compress(data, 1)
            data = damaged(rng, data) if rng.randrange(4) == 0 else data
        file.write_bytes(data)
        yield partial(read, file), None


def damaged(rng: random.Random, data: bytes) -> bytes:
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


def changed_by_hand(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Return a file as somebody else may have written it."""
    for _ in range(1 + rng.randrange(3)):
        kind, lines = rng.randrange(8), data.split(b"\n")
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
    """Return a zip with a file per line: its name, a tab and its text."""
    packed = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(packed, "w") as archive:
        for line in lines.splitlines():
            name, _, text = line.partition(b"\t")
            # A file in a zip has a name, which ends at a NUL.
            archive.writestr(name.decode(errors="replace").lstrip("\0") or "?", text)
    return packed.getvalue()
