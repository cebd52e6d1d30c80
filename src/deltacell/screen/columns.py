"""The columns of a screen and the few values that some of them take."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

from deltacell.arrays import AnyArray, Bools

PERTURBATIONS = ("deletion", "ts", "damp", "allele")
KINDS = {1: "single", 2: "digenic", 3: "trigenic", 4: "tetragenic", 5: "pentagenic"}

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


def in_memory(table: pa.Table) -> pl.DataFrame:
    """Return a stored table with its dictionaries written out."""
    return pl.DataFrame(table).with_columns(pl.col(pl.Categorical).cast(pl.String))


#: The same columns in memory.
ROWS, DELETED = (in_memory(schema.empty_table()).schema for schema in (ROW_SCHEMA, GENE_SCHEMA))

_LARGEST = float(np.finfo(np.float32).max)
#: The least and the largest number that a measurement can be, by column.
RANGES = {
    "score": (-_LARGEST, _LARGEST),
    "standard_deviation": (0.0, _LARGEST),
    "p_value": (0.0, 1.0),
    "query_fitness": (-_LARGEST, _LARGEST),
    "array_fitness": (-_LARGEST, _LARGEST),
}


def is_impossible(column: str, values: AnyArray) -> tuple[Bools, str]:
    """Return which values no measurement has, and why; NaN, a missing one, is possible."""
    low, high = RANGES[column]
    return (values < low) | (values > high), f"not between {low:g} and {high:g}"
