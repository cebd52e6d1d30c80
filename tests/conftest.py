"""Fixtures that all tests share."""

import gzip
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import golden
import pytest

from deltacell.base.errors import InputError
from deltacell.cell import Genes
from deltacell.data.public_studies import CACHE

ROOT = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "write the files in tests/golden anew instead of comparing with them"
    parser.addoption(golden.WRITE_OPTION, action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    golden.write_files(bool(config.getoption(golden.WRITE_OPTION)))
    # No test depends on what the user has downloaded.
    os.environ[CACHE] = os.devnull


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with files of slow tests, so that no worker is left alone with one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real files, which a user's checkout does not have."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the real files are not here: {folder} does not exist")
    return folder


SMALL = (
    *("experiment=demo", "data.synthetic_genotypes=400", "data.screen_genes_only=false"),
    *("data.batch_size=64", "model.hidden=8", "trainer.epochs=1", "trainer.threads=1"),
    *("trainer.figures_every=0", "trainer.progress=false", "loggers.tensorboard=false"),
)
FITTED = ("data.synthetic=demo", "data.synthetic_genotypes=400", "split.method=gene")
HETERO = ("model=hetero_cell", "model.relations=[physical,tflink]", "model.layers=1")
RUNS = {
    "seed0": SMALL,
    "seed1": (*SMALL, "seed=1", "trainer.ema=0.5"),
    "other_split": (*SMALL, "seed=1", "split.seed=1"),
    "hetero": (*SMALL, *HETERO, "model.local_heads=2", "name=hetero"),
    "additive": (*FITTED, "model=additive", "name=additive"),
    "trees": (*FITTED, "model=boosted_trees", "model.rounds=5", "name=trees"),
    "mean": (*FITTED, "model=global_mean"),
}


class Runs(dict[str, Path]):
    """Small runs on one synthetic screen, each trained when it is first asked for."""

    small, fitted = SMALL, FITTED

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __missing__(self, name: str) -> Path:
        from deltacell.train.config.compose import compose
        from deltacell.train.run import train

        self[name] = train(compose([*RUNS[name], f"directory={self.folder / name}"])).path
        return self[name]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "]]></style><svg onload=alert(3)>",
    "\"' onmouseover='alert(4)",
    "a\u2028b\u202ec{{ 7 * 7 }}",
    "\u05d0\u05d1 `$(x)`",
    "long" * 50,
)
"""Names as no one should give them: markup, scripts, other ways of writing, no end."""


@pytest.fixture(scope="session")
def hostile() -> tuple[str, ...]:
    return HOSTILE


@pytest.fixture(scope="session")
def made_ranking() -> Callable[..., dict[str, Any]]:
    return _ranking


@pytest.fixture(scope="session")
def made_demo() -> Callable[..., dict[str, Any]]:
    return _demo


def _ranking(
    rows: int = 60,
    *,
    size: int = 3,
    runs: int = 3,
    measured: int = 200,
    names: Sequence[str] = (),
    relations: Sequence[str] = ("coexpression", "regulatory", "physical", "experimental"),
    statuses: Sequence[str] = ("untested", "tested", "measured"),
    ends: Sequence[str | None] = ("lowest", "highest"),
) -> dict[str, Any]:
    """Return a ranking of 40 genes, as `Ranking.to_json`; the first genes have the names given."""
    draw = random.Random(1)
    genes = [f"YAL{i:03}{'WC'[i % 2]}" for i in range(40)]
    standard = [*names, *(f"ABC{i}" for i in range(40 - len(names)))]
    where = {gene: i for i, gene in enumerate(genes)}

    def of(these: Sequence[str]) -> dict[str, Any]:
        return {"genes": list(these), "names": [standard[where[gene]] for gene in these]}

    def row(end: str | None, rank: int) -> dict[str, Any]:
        these = sorted(draw.sample(genes, size))
        links = [
            {"first": a, "second": b, "relation": relation}
            for i, a in enumerate(these)
            for b in these[i + 1 :]
            for relation in relations
            if draw.random() < 0.2
        ]
        status = draw.choice(list(statuses))
        sign = 1 if end == "highest" else -1
        return {
            **of(these),
            "end": end,
            "rank": rank,
            "score": sign * (0.9 - 0.8 * rank / max(rows, 1)),
            "spread": draw.uniform(0.01, 0.1) if runs > 1 else None,
            "low": None,
            "high": None,
            "status": status,
            "measured": draw.gauss(0, 0.3) if status == "measured" else None,
            "linked": draw.choice([False, False, False, True, None]),
            "relations": [name for name in relations if any(x["relation"] == name for x in links)],
            "links": links,
            "pathways": [f"pathway {i}" for i in range(8) if draw.random() < 0.08],
            "complexes": [f"complex {i}" for i in range(4) if draw.random() < 0.08],
        }

    listed = []
    for place, end in enumerate(ends):
        of_end = rows // len(ends) + (place < rows % len(ends))
        listed += [row(end, rank + 1) for rank in range(of_end)]
    known = []
    for i in range(measured):
        score = draw.gauss(0, 0.3)
        part = "test" if i < measured // 4 else "validation" if i < measured // 2 else "training"
        told = {"predicted": 0.5 * score + draw.gauss(0, 0.1), "measured": score, "part": part}
        known.append({**of(sorted(draw.sample(genes, size))), **told})
    run = {"model": "dango", "checkpoint": "best", "sha256": "0" * 64}
    parts = [part for part in ("test", "validation", "training") if measured > 3]
    sets = {part: sum(one["part"] == part for one in known) for part in parts}
    return {
        "title": "Untested triples of 40 genes, lowest and highest by score",
        "sentences": [f"Sentence {i}." for i in range(7)],
        "file": "ranking.parquet",
        "request": {"sets": "triples", "size": size, "top": 1000, "above": None},
        "runs": [
            {"name": f"run-{i}", "seed": i, "validation_pearson": 0.4 if i else None, **run}
            for i in range(runs)
        ],
        "counts": {"genes": 40, "sets": 9880, "rows": rows, "lowest": rows, "highest": 0},
        "relations": list(relations),
        "rows": listed,
        "rows_not_here": 0,
        "enrichment": [],
        "measured": known,
        "accuracy": [],
        "gene_list": "0123456789ab" * 5,
        "agreement": [
            {"part": part, "sets": sets[part], "pearson": 0.5 if part == "test" else 0.7}
            for part in parts
        ],
    }


def _demo(*, name: str = "", models: int = 2, sets: int = 20) -> dict[str, Any]:
    """Return a demonstration, as `demo_page` takes it; ``name`` is put into every text of it."""
    draw = random.Random(2)

    def pearson(value: float) -> dict[str, float | None]:
        return {"value": value, "low": value - 0.03, "high": value + 0.03}

    titles = ("DANGO", "HeteroCell", "third", "fourth", "fifth")
    return {
        "seed": 0,
        "seconds": 131.0,
        "cell": {f"genes{name}": 300, "relations": 6, "edges": 5210},
        "screen": {"measured gene sets": 6790, f"of them triples{name}": 3611},
        "models": [
            {
                "name": f"{titles[i]}{name}",
                "parameters": 61_000 + i,
                "epochs": 12,
                "seconds": 41.5,
                "pearson": pearson(0.55 - 0.04 * i),
                "limit": f"Of a step 61 % is the backward pass{name}.",
            }
            for i in range(models)
        ],
        "baselines": [
            {"name": "additive", "pearson": pearson(0.24)},
            {"name": f"boosted trees{name}", "pearson": pearson(0.41)},
            {"name": "global mean", "pearson": {"value": None, "low": None, "high": None}},
        ],
        "verdict": f"DANGO has the highest Pearson correlation on test{name}.",
        "comparison": f"HeteroCell takes 3.1 times as long for a step: the forward pass{name}.",
        "recovered": {
            "sentence": f"15 of the 20 untested triples are planted; chance gives 0.9{name}.",
            **{"found": 15, "of": 20, "chance": 0.93, "sets": 812_345, "planted": 37_774},
        },
        "ranking": [
            {
                "genes": [f"G{draw.randrange(300):03}{name}" for _ in range(3)],
                "names": [f"g{draw.randrange(300):03}{name}" for _ in range(3)],
                "score": -0.9 + 0.02 * i,
                "spread": 0.05,
                "low": None,
                "high": None,
                "planted": i % 4 != 3,
            }
            for i in range(sets)
        ],
        "links": [
            {"file": "ranking.html", "title": f"The ranking{name}", "words": "All of it."},
            {"file": f"a folder/explain{name}.html", "title": "Why slower", "words": "Time."},
        ],
        "steps": [{"title": f"Train{name}", "words": "Both.", "command": "deltacell train"}],
        "next": [{"words": f"Import{name}", "command": "deltacell data import FOLDER --out DIR"}],
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a file, as gzip if its name says so."""

    def write(text: str | bytes, name: str = "file.txt") -> Path:
        data = text.encode() if isinstance(text, str) else text
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


@pytest.fixture(scope="session")
def genes() -> Genes:
    """Six genes for readers; the alias SHARED belongs to two of them."""
    return Genes(
        ["YAL001C", "YAL002W", "YAL003W", "YDL227C", "YBR001C-A", "YAL004W"],
        ["TFC3", "VPS8", "EFB1", "HO", None, None],
        [["OLD1"], ["SHARED"], ["SHARED"], [], [], []],
    )


@pytest.fixture(scope="session")
def reader_of() -> Callable[..., str | None]:
    """Return a function that names the reader that an import would take for a file."""
    from deltacell.data.import_folder import READERS
    from deltacell.storage.tables import File

    def found(path: Path, columns: Sequence[Any] = ()) -> str | None:
        file = File(path, columns)
        return next((reader.name for reader in READERS if reader.find(file)), None)

    return found


@pytest.fixture(scope="session")
def refused() -> Callable[..., InputError]:
    """Return a function that checks the code of the error that a call raises, and returns it.

    Of several codes any will do.
    """

    def check(code: Any, call: Callable[..., Any], *arguments: Any, **options: Any) -> InputError:
        with pytest.raises(InputError) as caught:
            call(*arguments, **options)
        assert caught.value.code in ((code,) if isinstance(code, str) else code)
        return caught.value

    return check
