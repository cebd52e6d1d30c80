"""Rows as data frames of pandas, which is an optional dependency."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from deltacell.base.errors import need

if TYPE_CHECKING:
    import pandas as pd


def data_frame(rows: Iterable[Any], columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Return rows, which are mappings or sequences, as a data frame."""
    need("pandas", "A table", "pandas")
    import pandas as pd

    return pd.DataFrame(list(rows), columns=columns)
