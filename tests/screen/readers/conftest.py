"""Small files of every format."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import openpyxl
import pytest

from deltacell.cell import Genes

HEADER_2018 = (
    "Query strain ID",
    "Query allele name",
    "Array strain ID",
    "Array allele name",
    "Combined mutant type",
    "Raw genetic interaction score (epsilon)",
    "Adjusted genetic interaction score (epsilon or tau)",
    "P-value",
    "Query single/double mutant fitness",
    "Array single mutant fitness",
    "Combined mutant fitness",
    "Combined mutant fitness standard deviation",
)
HEADER_2020 = (
    *HEADER_2018[:-2],
    "Double/triple mutant fitness",
    "Double/triple mutant fitness standard deviation",
)
KUZMIN_ROWS = (
    # A trigenic cross, a digenic one, one without a score, and the control alone.
    "YAL001C+YAL002W_tm1|a-1+bΔ|YAL003W_dma1|efb1Δ|trigenic|-0.2|-0.1|1e-30|0.9|0.8|0.6|0.05",
    "YDL227C+YAL002W_tm2|hoΔ+vps8Δ|YAL004W_tsa2|c-2|digenic|0.3|0.3|0.5||0.7|1.0|0.02",
    "YAL001C+YDL227C_tm3|tfc3Δ+hoΔ|YAL003W_dma1|efb1Δ|digenic|||0.2|0.9|0.8|0.7|0.01",
    "YDL227C+YDL227C_tm4|hoΔ+hoΔ|YAL003W_dma1|efb1Δ|digenic|0.01|0.01|0.9|1.0|0.8|0.8|0.03",
)
HEADER_2016 = (
    "Query Strain ID",
    "Query allele name",
    "Array Strain ID",
    "Array allele name",
    "Arraytype/Temp",
    "Genetic interaction score (ε)",
    "P-value",
    "Query single mutant fitness (SMF)",
    "Array SMF",
    "Double mutant fitness",
    "Double mutant fitness standard deviation",
)
COSTANZO2016_ROWS = (
    "YAL001C_tsq1|a-1|YAL003W_dma1|efb1|DMA26|-0.1|0.01||0.9|0.8|0.05",
    "YAL002W_S3|b-supp1|YAL004W_dma2|d|DMA30|0.2|0.02|0.7|0.9|0.9|0.02",
    "YAL002W_sn4|vps8|YAL001C_tsa3|a-2|TSA26||0.5|0.7|0.9|0.6|0.01",
    "YAL003W_sn5|efb1|YAL001C_tsa3|a-2|TSA30|0.05|0.5|0.7|0.9|0.6|0.01",
)
COSTANZO2010_ROWS = (
    "YAL001C_tsq5|tfc3-1|YAL003W|EFB1|-0.25|0.01|1e-05",
    "YAL002W_damp|VPS8_damp|YAL004W|YAL004W|0.125|0.02|0.04",
    "YAL002W|VPS8|YAL001C|TFC3|-0.5|0.03|0.001",
)


@pytest.fixture
def genes() -> Genes:
    return Genes(
        ["YAL001C", "YAL002W", "YAL003W", "YAL004W", "YAL005C"],
        ["TFC3", "VPS8", "EFB1", None, "SSA1"],
        [["OLD1"], ["SHARED"], ["SHARED"], [], []],
    )


def tabs(header: tuple[str, ...] | None, rows: tuple[str, ...]) -> str:
    lines = ([] if header is None else ["\t".join(header)]) + [r.replace("|", "\t") for r in rows]
    return "\n".join(lines) + "\n"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write text to a file, compressed as its name says."""

    def _write(name: str, text: str) -> Path:
        path = tmp_path / name
        if name.endswith(".gz"):
            path.write_bytes(gzip.compress(text.encode()))
        elif name.endswith(".zip"):
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr(name.removesuffix(".zip"), text)
        else:
            path.write_text(text, encoding="utf-8")
        return path

    return _write


@pytest.fixture
def texts() -> dict[str, str]:
    """The contents of a good file of each format."""
    return {
        "kuzmin": tabs(HEADER_2018, KUZMIN_ROWS),
        "costanzo2016": tabs(HEADER_2016, COSTANZO2016_ROWS),
        "costanzo2010": tabs(None, COSTANZO2010_ROWS),
        "trigenic": tabs(
            ("orf1", "orf2", "orf3", "allele1", "allele2", "allele3", "n_rows"),
            ("YAL001C|YAL002W|YAL003W|tfc3Δ|b-ph|efb1-ts|1",),
        ),
        "digenic": tabs(
            ("orf1", "orf2", "allele1", "allele2", "n_negative_rows", "n_positive_rows", "sign"),
            (
                "YAL001C|YAL002W|tfc3Δ|b-1|2|0|negative",
                "YAL001C|YAL003W|tfc3Δ|efb1Δ|0|1|positive",
                "YAL002W|YAL003W|vps8Δ|efb1Δ|1|1|both",
            ),
        ),
    }


@pytest.fixture
def workbook() -> bytes:
    """Table S1 of Kuzmin 2020: a title above the header, numbers as numbers and as texts."""
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(["Table S1. Raw genetic interaction dataset."])
    sheet.append(HEADER_2020)
    for row in KUZMIN_ROWS:
        fields = row.split("|")
        sheet.append([*fields[:5], *(float(f) if f else None for f in fields[5:])])
    sheet.append([*KUZMIN_ROWS[1].split("|")[:5], 0.2, "0.2", "4.50E-01", "NaN", 0.5, 0.25, 0.1])
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()
