"""Whether a cell, a screen and a split belong together."""

from __future__ import annotations

from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.screen import Screen, Split


def check_fit(cell: Cell, screen: Screen, split: Split) -> None:
    """Raise where a screen is not over a cell's genes, or a split not of the screen with a test.

    Parameters
    ----------
    cell
        The wild type.
    screen
        What was measured.
    split
        Its parts.
    """
    if cell.genes.systematic != screen.genes.systematic:
        raise InputError(
            f"the screen is over {len(screen.genes):,} genes that are not the {cell.n_genes:,} "
            "of the cell in their order",
            fix="Bring it onto the cell: screen.on(cell)",
        )
    if split.screen_checksum != screen.checksum or len(split) != len(screen):
        raise InputError(
            f"this split is of another screen, of {len(split):,} genotypes with the checksum "
            f"{split.screen_checksum[:12]}…; this one has {len(screen):,} and "
            f"{screen.checksum[:12]}…",
            fix="Use the screen it was made of, or split this one again.",
        )
    if not len(split.test):
        raise InputError(
            "the split has no test part, and nothing else may be evaluated on",
            fix="Split the screen with a test share above 0.",
        )
