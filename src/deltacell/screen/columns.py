"""The columns of a screen and the few values that some of them take."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

ROLES = ("query", "array", "unknown")
PERTURBATIONS = ("deletion", "ts", "damp", "allele")
PHENOTYPES = ("interaction", "fitness")

#: The control locus whose deletion does nothing; in a query slot it stands for "no second gene".
HO = "YDL227C"

#: Why rows are dropped: a gene twice as written, or by two of its names; a score of one gene.
SAME_GENE_TWICE = "same gene twice"
ONE_GENE_TWICE = "same gene twice after aliases"
NO_INTERACTION = "one gene has no interaction"

#: One row per genotype. A missing number is NaN; a sign is -1, 1, or 0 where none is known.
ROW_SCHEMA = pa.schema(
    [
        ("score", pa.float32()),
        ("sign", pa.int8()),
        ("standard_deviation", pa.float32()),
        ("p_value", pa.float64()),
        ("query_fitness", pa.float32()),
        ("array_fitness", pa.float32()),
        ("phenotype", pa.dictionary(pa.int8(), pa.string())),
        ("study", pa.dictionary(pa.int16(), pa.string())),
        ("source_row", pa.int64()),
        ("replicates", pa.int32()),
        ("end", pa.int64()),
    ]
)

#: One row per deleted gene of a genotype.
GENE_SCHEMA = pa.schema(
    [
        ("gene", pa.int32()),
        ("role", pa.dictionary(pa.int8(), pa.string())),
        ("perturbation", pa.dictionary(pa.int8(), pa.string())),
        ("allele", pa.dictionary(pa.int32(), pa.string())),
    ]
)

KINDS = {1: "single", 2: "digenic", 3: "trigenic", 4: "tetragenic", 5: "pentagenic"}

#: What is wrong with a value that `is_impossible`, by column.
IMPOSSIBLE = {
    "score": "too large",
    "standard_deviation": "negative or too large",
    "p_value": "not between 0 and 1",
    "query_fitness": "too large",
    "array_fitness": "too large",
}


def is_impossible(column: str, values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return which values no measurement has, or float32 cannot hold; NaN, missing, is possible."""
    with np.errstate(over="ignore"):
        wrong: npt.NDArray[np.bool_] = np.isinf(values.astype(np.float32))
    if column in ("standard_deviation", "p_value"):
        wrong |= values < 0
    if column == "p_value":
        wrong |= values > 1
    return wrong
