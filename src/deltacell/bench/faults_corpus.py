"""What `deltacell bench faults` damages: a small file of every kind, and what reads it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from deltacell import store
from deltacell.cell import Cell, Genes
from deltacell.predict.gene_sets import Scored
from deltacell.predict.ranking_file import SCHEMA, Ranking, write_ranking
from deltacell.predict.request import GeneNames, read_sets
from deltacell.predict.search import read_scored, write_scored
from deltacell.profile.record import read_run
from deltacell.screen import Screen, Split
from deltacell.screen.import_folder import READERS, import_folder
from deltacell.table import File
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.compose import compose, from_yaml
from deltacell.train.run import train
from deltacell.train.run_directory import metrics_of, read_config

Reader = Callable[[Path], Any]

#: A file of each format, by the name of its reader.
SAMPLES = {
    Path(file.name).stem: file.read_text("utf-8")
    for file in sorted(files("deltacell.bench").joinpath("samples").iterdir(), key=str)
}

#: What stands in fields of files that somebody made by hand, by accident or on purpose.
NASTY: tuple[bytes, ...] = (
    *(b"", b" ", b"NA", b"nan", b"inf", b"-inf", b"1e39", b"-1e39", b"1e400", b"-1e-400", b"0x1p3"),
    *(b"-0.0", b"1,5", b"1_000", b"9" * 400, b"-1", b"2", b"18446744073709551616", b"1e", b"--"),
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", "Δ".encode(), "ε\u202e".encode()),
    *(b'"', b"'", b'"a\tb"', b"\\", b"#", b"\r", b"\x1f", b"\x0b", b"\t\t\t", b",,,", b";"),
    *(b"YAL001C", b"yal001c", b"TFC3", b"YAL001C+YAL001C", b"HO", b"YDL227C", b"x" * 5000),
    *(b"=1+1", b"${oc.env:HOME}", b"&a [*a]", b"*a", b"!!python/object:os.system", b"{", b"[" * 60),
    *(b"null", b"true", b"- x", b"%s%n", b"../../etc/passwd", b"\x1f\x8b\x08", b"PK\x03\x04"),
)


def write_artefacts(folder: Path) -> None:
    folder.mkdir(parents=True)
    cell = Cell.synthetic("demo")
    cell.save(folder / "cell")
    screen = Screen.synthetic(cell, n=60)
    screen.save(folder / "screen")
    Split.random(screen, seed=1).save(folder / "split")
    small = [
        *("experiment=demo", "data.synthetic_genotypes=150", "data.batch_size=32"),
        *("trainer.epochs=1", "trainer.threads=1", "trainer.figures_every=0", "model.hidden=4"),
        *("trainer.progress=false", "loggers.tensorboard=false", "trainer.keep=1"),
    ]
    train(compose([*small, f"directory={folder / 'trained'}"]))
    shutil.copytree(folder / "trained", folder / "run")
    shutil.copytree(folder / "trained" / "checkpoints", folder / "alone" / "checkpoints")
    (folder / "alone" / "checkpoints" / "index.json").unlink()
    rng = np.random.default_rng(0)
    score, spread = rng.normal(size=(2, 40)).astype(np.float32)
    scored = Scored(rng.integers(0, 99, (40, 3)), score, spread)
    write_scored(folder / "work.arrow", scored, {"done": 3})
    row = {
        **{"end": "lowest", "genes": ["YAL001C", "YAL002W"], "names": ["TFC3", "VPS8"]},
        **{"score": -0.5, "spread": None, "status": "untested", "measured": None, "linked": False},
        **{"relations": ["physical"], "pathways": [], "complexes": ["TFIIIC"]},
        "links": [{"first": "YAL001C", "second": "YAL002W", "relation": "physical"}],
    }
    rows = [{**row, "rank": rank, "score": rank / 8 - 0.5} for rank in range(1, 6)]
    counts = {"genes": 5, "sets": 10, "rows": 5, "lowest": 5, "highest": 0, "listed": 0}
    about = {
        **{"title": "Pairs", "sentences": ["Five."], "request": {"sets": "pairs"}, "runs": []},
        **{"identity": {}, "counts": counts, "relations": ["physical"]},
    }
    write_ranking(folder / "ranking.parquet", [pa.Table.from_pylist(rows, SCHEMA)], about)
    gene = SAMPLES["sgd_features"].replace("TSV115|FUN24", "")
    names = {"YAL001C": "TFC3", "YAL002W": "VPS8", "YAL003W": "EFB1"}
    genes = [gene.replace("YAL001C", o).replace("TFC3", n) for o, n in names.items()]
    sources = {name: SAMPLES[name] for name in ("biogrid", "string_physical", "table")}
    for name, text in {**sources, "sgd_features": "".join(genes)}.items():
        store_text(folder / "sources" / f"{name}.txt", text)
    store_text(folder / "other" / "edges.txt", SAMPLES["biogrid"])
    import_folder(folder / "other").save(folder / "import")


def store_text(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def text_of_state(state: Any) -> str:
    """Return a checkpoint's state as text, with all digits of its tensors."""
    if isinstance(state, torch.Tensor):
        return f"{state.dtype} {state.tolist()}"
    if isinstance(state, dict):
        return repr({key: text_of_state(value) for key, value in state.items()})
    if isinstance(state, list | tuple):
        return repr([text_of_state(value) for value in state])
    return repr(state)


def flipped() -> dict[str, tuple[str, Reader]]:
    """Return the files of `write_artefacts` by kind, and what reads them, to be compared."""

    def cell(folder: Path) -> Any:
        found = Cell.load(folder / "cell")
        return found.checksum, found.n_genes, sorted(found.relations)

    def stored(kind: str, folder: Path) -> Any:
        found = store.read(folder / kind, kind)
        return found.checksum, found.meta, {n: t.to_pydict() for n, t in found.parts.items()}

    def index(folder: Path) -> Any:
        found = Checkpoints(folder / "run" / "checkpoints")
        return repr((found.kept, found.best, found.last))

    def state(run: str, folder: Path) -> Any:
        return text_of_state(Checkpoints(folder / run / "checkpoints").load())

    def work(folder: Path) -> Any:
        scored, about = read_scored(folder / "work.arrow")
        return scored.sets.tolist(), scored.score.tolist(), scored.spread.tolist(), about

    return {
        "cell": ("cell/*", cell),
        "screen": ("screen/*", partial(stored, "screen")),
        "split": ("split/*", partial(stored, "split")),
        "run.json": ("run/run.json", lambda f: repr(read_run(f / "run"))),
        "config.yaml": ("run/config.yaml", lambda f: repr(read_config(f / "run"))),
        "metrics.csv": ("run/metrics.csv", lambda f: repr(metrics_of(f / "run"))),
        "index of checkpoints": ("run/checkpoints/index.json", index),
        "checkpoint": ("run/checkpoints/*.ckpt", partial(state, "run")),
        "checkpoint without index": ("alone/checkpoints/*.ckpt", partial(state, "alone")),
        "ranking": ("ranking.parquet", lambda f: Ranking.read(f / "ranking.parquet").to_json()),
        "work on a ranking": ("work.arrow", work),
    }


def readers() -> dict[str, tuple[str, Reader]]:
    genes = Genes(
        ["YAL001C", "YAL002W", "YAL003W", "YAL004W", "YDL227C"],
        ["TFC3", "VPS8", "EFB1", None, "HO"],
    )

    def reading(reader: Any, file: Path) -> Any:
        if reader.gives == "feature":
            return reader.read(file, genes=genes)
        found = reader.read(file)
        written = reader.gives in ("edges", "terms", "screens")
        return [one.on(genes, "drop") for one in found] if written else found

    found: dict[str, Reader] = {
        # Of two readers of one name, the first is that of the sample.
        **{r.name: partial(reading, r) for r in reversed(READERS) if r.name in SAMPLES},
        "gene sets": lambda file: read_sets(file, GeneNames(genes)),
        "config": lambda file: from_yaml(file.read_text(errors="replace"), where=file),
        "any file": lambda file: [bool(reader.find(File(file))) for reader in READERS],
    }
    sample_of = {"gene sets": "sets", "any file": "table"}
    return {name: (SAMPLES[sample_of.get(name, name)], read) for name, read in found.items()}
