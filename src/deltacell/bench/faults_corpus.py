"""What `deltacell bench faults` damages: a small file of every kind, and what reads it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from deltacell.errors import InputError

SAMPLES: dict[str, str] = {
    "string_adjacency": "1\t2\t0.5\n2\t1\t0.5\n",
    "string_detailed": "protein1 protein2 neighborhood fusion cooccurence coexpression "
    "experimental database textmining combined_score\n"
    "4932.YAL001C 4932.YAL002W 0 0 0 120 0 900 300 910\n"
    "4932.YAL002W 4932.YAL003W 10 0 0 0 250 0 0 251\n",
    "string_physical": "protein1 protein2 combined_score\n4932.YAL001C 4932.YAL002W 292\n",
    "string_actions": "item_id_a\titem_id_b\tmode\taction\tis_directional\ta_is_acting\tscore\n"
    "4932.YAL001C\t4932.YAL002W\tbinding\t\tf\tf\t900\n",
    "biogrid": "orf1\torf2\nYAL001C\tYAL002W\nYAL003W\tYAL002W\n",
    "yeastract": "tf_orf\ttarget_orf\tdna_binding\texpr_activator\texpr_inhibitor\n"
    "YAL001C\tYAL002W\t1\t0\t1\n",
    "tflink": "UniprotID.TF\tUniprotID.Target\tNCBI.GeneID.TF\tNCBI.GeneID.Target\tName.TF\t"
    "Name.Target\tDetection.method\tPubmedID\tOrganism\tSource.database\tSmall-scale.evidence\t"
    "TF.TFLink.ortho\tTF.nonTFLink.ortho\tTarget.TFLink.ortho\tTarget.nonTFLink.ortho\n"
    "P1\tP2\t1\t2\tTFC3\tVPS8\tchip\t1\tS. cerevisiae\tX\tNo\t-\t-\t-\t-\n",
    "edge_list": "YAL001C\tYAL002W\t0.5\nYAL002W\tYAL003W\t1\n",
    "string_genes": "YAL001C\nYAL002W\nQ0010\n",
    "string_info": "#string_protein_id\tpreferred_name\tprotein_size\tannotation\n"
    "4932.YAL001C\tTFC3\t1160\tLargest of six subunits\n",
    "gene_table": "systematic name,symbol,aliases,chromosome,start,end\n"
    "YAL001C,TFC3,TSV115;FUN24,1,147594,151166\nYAL002W,VPS8,,1,143707,147531\n",
    "go_slim": "YAL001C\tTFC3\tS000000001\tP\ttranscription\tGO:0006351\tORF|Verified\n"
    "YAL002W\tVPS8\tS000000002\tC\tendosome\tGO:0005768\tORF|Verified\n",
    "term_table": "gene\tterm\nYAL001C\tTFIIIC\nYAL002W\tCORVET\n",
    "sgd_features": "S000000001\tORF\tVerified\tYAL001C\tTFC3\tTSV115|FUN24\tchromosome 1\tL1\t1\t"
    "151166\t147594\tC\t\t1996\t1996\tSubunit\n",
    "kuzmin": "Query strain ID\tQuery allele name\tArray strain ID\tArray allele name\t"
    "Combined mutant type\tRaw genetic interaction score (epsilon)\t"
    "Adjusted genetic interaction score (epsilon or tau)\tP-value\t"
    "Query single/double mutant fitness\tArray single mutant fitness\tCombined mutant fitness\t"
    "Combined mutant fitness standard deviation\n"
    "YAL001C+YAL002W_tm1\ta-1+bΔ\tYAL003W_dma1\tefb1Δ\ttrigenic\t-0.2\t-0.1\t1e-30\t0.9\t0.8\t0.6\t"
    "0.05\nYDL227C+YAL002W_tm2\thoΔ+vps8Δ\tYAL004W_tsa2\tc-2\tdigenic\t0.3\t0.3\t0.5\t\t0.7\t1.0\t"
    "0.02\n",
    "costanzo2016": "Query Strain ID\tQuery allele name\tArray Strain ID\tArray allele name\t"
    "Arraytype/Temp\tGenetic interaction score (ε)\tP-value\tQuery single mutant fitness (SMF)\t"
    "Array SMF\tDouble mutant fitness\tDouble mutant fitness standard deviation\n"
    "YAL001C_tsq1\ta-1\tYAL003W_dma1\tefb1\tDMA26\t-0.1\t0.01\t\t0.9\t0.8\t0.05\n"
    "YAL002W_S3\tb-supp1\tYAL004W_dma2\td\tDMA30\t0.2\t0.02\t0.7\t0.9\t0.9\t0.02\n",
    "costanzo2010": "YAL001C_tsq5\ttfc3-1\tYAL003W\tEFB1\t-0.25\t0.01\t1e-05\n"
    "YAL002W_damp\tVPS8_damp\tYAL004W\tYAL004W\t0.125\t0.02\t0.04\n",
    "hits": "orf1\torf2\torf3\tallele1\tallele2\tallele3\tn_rows\n"
    "YAL001C\tYAL002W\tYAL003W\ttfc3Δ\tb-ph\tefb1-ts\t1\n",
    "table": "gene1,gene2,gene3,score,p_value,sd\nYAL001C,VPS8,,-0.25,0.01,0.1\n"
    "TFC3,yal002w,EFB1,0.5,,\n",
    "features": "Strain ID\tGene\tfitness (26)\tfitness (30)\nYAL001C\tTFC3\t0.5\t0.6\n"
    "YAL002W\tVPS8\t0.9\tNA\nYAL003W\tEFB1\t1.5\t1\n",
    "sets": "# pairs\nYAL001C YAL002W\nTFC3, EFB1; HO\n",
    "config": "model:\n  name: dango\n  hidden: 8\nloss:\n  name: dango\nseed: 1\ndata:\n"
    "  synthetic: demo\n  where: {study: [a]}\ntrainer:\n  epochs: 2\n",
}
"""A file of each format by the name of its reader."""

NASTY: tuple[bytes, ...] = (
    *(b"", b" ", b"NA", b"nan", b"inf", b"-inf", b"1e39", b"-1e39", b"1e400", b"-1e-400", b"0x1p3"),
    *(b"-0.0", b"1,5", b"1_000", b"9" * 400, b"-1", b"2", b"18446744073709551616", b"1e", b"--"),
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", "Δ".encode(), "ε\u202e".encode()),
    *(b'"', b"'", b'"a\tb"', b"\\", b"#", b"\r", b"\x1f", b"\x0b", b"\t\t\t", b",,,", b";"),
    *(b"YAL001C", b"yal001c", b"TFC3", b"YAL001C+YAL001C", b"HO", b"YDL227C", b"x" * 5000),
    *(b"=1+1", b"${oc.env:HOME}", b"&a [*a]", b"*a", b"!!python/object:os.system", b"{", b"[" * 60),
    *(b"null", b"true", b"- x", b"%s%n", b"../../etc/passwd", b"\x1f\x8b\x08", b"PK\x03\x04"),
)
"""What stands in fields of files that somebody made by hand, by accident or on purpose."""


def write_sources(folder: Path) -> None:
    """Write a folder of source files, as `deltacell data import` takes it."""
    folder.mkdir(parents=True)
    gene = SAMPLES["sgd_features"].replace("TSV115|FUN24", "")
    names = {"YAL001C": "TFC3", "YAL002W": "VPS8", "YAL003W": "EFB1"}
    genes = [gene.replace("YAL001C", o).replace("TFC3", n) for o, n in names.items()]
    (folder / "sgd_features.txt").write_text("".join(genes))
    for name in ("biogrid", "string_physical", "table"):
        (folder / f"{name}.txt").write_text(SAMPLES[name])


def write_artefacts(folder: Path) -> None:
    """Write one of everything that the program writes and reads again into a new folder."""
    import numpy as np
    import pyarrow as pa

    from deltacell.cell import Cell
    from deltacell.predict.gene_sets import Scored
    from deltacell.predict.kept import write_scored
    from deltacell.predict.ranking_file import SCHEMA, write_ranking
    from deltacell.screen import Screen, Split
    from deltacell.screen.import_folder import import_folder
    from deltacell.train.compose import compose
    from deltacell.train.run import train

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
    scored = Scored(
        rng.integers(0, 99, (40, 3)),
        rng.normal(size=40).astype(np.float32),
        rng.normal(size=40).astype(np.float32),
    )
    write_scored(folder / "work.arrow", scored, {"done": 3}, rows_per_batch=16)
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
    write_ranking(folder / "ranking.parquet", [pa.Table.from_pylist(rows, SCHEMA)], lambda: about)
    write_sources(folder / "sources")
    (folder / "other").mkdir()
    (folder / "other" / "edges.txt").write_text(SAMPLES["biogrid"])
    import_folder(folder / "other").save(folder / "import")


def text_of_state(state: Any) -> str:
    """Return a checkpoint's state as text, with all digits of its tensors."""
    import torch

    if isinstance(state, torch.Tensor):
        return f"{state.dtype} {state.tolist()}"
    if isinstance(state, dict):
        return repr({key: text_of_state(value) for key, value in state.items()})
    if isinstance(state, list | tuple):
        return repr([text_of_state(value) for value in state])
    return repr(state)


def _read(kind: str, artefacts: Path) -> Any:
    """Return what the program reads from a file of a kind, in a form that can be compared."""
    from deltacell import store
    from deltacell.cell import Cell
    from deltacell.predict.kept import read_scored
    from deltacell.predict.ranking_file import Ranking
    from deltacell.profile.record import read_run
    from deltacell.train.checkpoints import Checkpoints
    from deltacell.train.run_directory import MetricsFile, read_config

    run = artefacts / "run"
    if kind == "cell":
        cell = Cell.load(artefacts / kind)
        return cell.checksum, cell.n_genes, sorted(cell.relations)
    if kind in ("screen", "split"):
        found = store.read(artefacts / kind, kind)
        return found.checksum, found.meta, {n: t.to_pydict() for n, t in found.parts.items()}
    if kind == "run.json":
        return repr(read_run(run))
    if kind == "config.yaml":
        return repr(read_config(run))
    if kind == "metrics.csv":
        return repr(MetricsFile(run / kind).rows)
    if kind == "index of checkpoints":
        checkpoints = Checkpoints(run / "checkpoints")
        return repr((checkpoints.kept, checkpoints.best, checkpoints.last))
    if kind.startswith("checkpoint"):
        folder = run if kind == "checkpoint" else artefacts / "alone"
        return text_of_state(Checkpoints(folder / "checkpoints").load())
    if kind == "ranking":
        return Ranking.read(artefacts / "ranking.parquet").to_json()
    scored, about = read_scored(artefacts / "work.arrow")
    return scored.sets.tolist(), scored.score.tolist(), scored.spread.tolist(), about


FLIPPED: dict[str, tuple[str, Callable[[Path], Any]]] = {
    kind: (files, partial(_read, kind))
    for kind, files in {
        "cell": "cell/*",
        "screen": "screen/*",
        "split": "split/*",
        "run.json": "run/run.json",
        "config.yaml": "run/config.yaml",
        "metrics.csv": "run/metrics.csv",
        "index of checkpoints": "run/checkpoints/index.json",
        "checkpoint": "run/checkpoints/*.ckpt",
        "checkpoint without index": "alone/checkpoints/*.ckpt",
        "ranking": "ranking.parquet",
        "work on a ranking": "work.arrow",
    }.items()
}
"""Files of `write_artefacts` that are damaged, by kind, and what reads them."""


def readers() -> dict[str, tuple[str, Callable[[Path], Any]]]:
    """Return what reads files of others, each with a sample of what it reads."""
    from deltacell.cell import Genes
    from deltacell.cell import readers as cells
    from deltacell.predict.request import GeneNames, read_sets
    from deltacell.screen import readers as screens
    from deltacell.train.compose import from_yaml

    genes = Genes(
        ["YAL001C", "YAL002W", "YAL003W", "YAL004W", "YDL227C"],
        ["TFC3", "VPS8", "EFB1", None, "HO"],
    )

    def edges(read: Any, file: Path) -> Any:
        return [cells.relation_of(one, genes, "drop") for one in read(file)]

    def screen(read: Any, file: Path) -> Any:
        return read(file).on(genes, "drop")

    def annotations(file: Path) -> Any:
        if cells.terms.recognise(file) is None:
            raise InputError("no annotation", code="not-an-annotation")
        return [written.on(genes, "drop") for written in cells.terms.read(file)]

    def recognised(file: Path) -> Any:
        return screens.recognise(file) or cells.recognise(file)

    networks = [(r.NAME, r.read) for r in cells.EDGE_READERS]
    networks.append((cells.edge_list.NAME, cells.edge_list.read))
    table = next(r for r in cells.FEATURE_READERS if r.NAME == "features_table")
    found: dict[str, tuple[str, Callable[[Path], Any]]] = {
        **{name: (SAMPLES[name], partial(edges, read)) for name, read in networks},
        **{r.NAME: (SAMPLES[r.NAME], r.read) for r in (*cells.GENE_READERS, cells.string_genes)},
        "table": (
            SAMPLES["table"],
            lambda file: [written.on(genes, "drop") for written in screens.tables.read(file)],
        ),
        "go_slim": (SAMPLES["go_slim"], annotations),
        "term_table": (SAMPLES["term_table"], annotations),
        "features": (SAMPLES["features"], lambda file: table.read(file, genes)),
        "gene sets": (SAMPLES["sets"], lambda file: read_sets(file, GeneNames(genes))),
        "config": (
            SAMPLES["config"],
            lambda file: from_yaml(file.read_text(errors="replace"), where=file),
        ),
        "any file": (SAMPLES["table"], recognised),
    }
    for one in screens.SCREEN_READERS:
        found[one.NAME] = (SAMPLES[one.NAME], partial(screen, one.read))
    return found
