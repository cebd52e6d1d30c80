"""The context of `start` beyond its folder: public studies of which a checked copy is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from deltacell.base.errors import InputError
from deltacell.cell import Cell
from deltacell.data.public_studies import PublicStudy, kept_studies, share_of_genes
from deltacell.models.interface import Study
from deltacell.screen import Screen
from deltacell.storage import MANIFEST
from deltacell.train.context import check_not_repeated

CONTEXT = "context"  # the folder of public studies in the results
SMALLEST_SHARE = 0.2  # of the target's genes that a public study has to have measured


def public_names(given: Sequence[str] | None, folder_screens: Sequence[str]) -> list[str]:
    """Return the public studies to look at: those that are named, or all of which a copy is kept.

    The name of a screen of the folder stands for that screen.
    """
    kept = [study.name for study in kept_studies()]
    others = [name for name in kept if name not in folder_screens]
    return others if given is None else [name for name in given if name in others]


def public_context(
    cell: Cell,
    target: Screen,
    out: Path,
    wanted: Sequence[str],
    tell: Callable[[str], None],
) -> list[str]:
    """Return where the public studies are that help to predict a target, and tell of each.

    They are read from the copies of `data get` and saved in ``out``, where an earlier call may have
    left them. A study is used if it has enough of the target's genes and does not repeat the
    target. Nothing is downloaded.
    """
    places = []
    for study in kept_studies():
        if study.name not in wanted:
            continue
        place = out / CONTEXT / study.name
        if not (place / MANIFEST).is_file():
            screen = _helpful(study, cell, target, tell)
            if screen is None:
                continue
            screen.save(place)
        places.append(str(place))
        tell(
            f"Context: {study.name}, from the copy in {study.path.parent} "
            f"(SHA-256 {study.sha256[:12]}…). --context none does without."
        )
    return places


def saved_context(out: Path, given: Sequence[str] | None) -> list[str]:
    """Return where the public studies are that an earlier call used, all or those that are named.

    Their copies may have been removed since.
    """
    saved = [manifest.parent for manifest in sorted((out / CONTEXT).glob(f"*/{MANIFEST}"))]
    return [str(place) for place in saved if given is None or place.name in given]


def _helpful(
    study: PublicStudy,
    cell: Cell,
    target: Screen,
    tell: Callable[[str], None],
) -> Screen | None:
    """Return the screen of a study on the genes of a cell; None if it is of no use."""
    if not study.may_be_of(cell.genes):
        return None
    screen = study.screen_on(cell.genes)
    if share_of_genes(screen, target) < SMALLEST_SHARE:
        return None
    try:
        check_not_repeated(target, [Study(study.name, screen)])
    except InputError as error:
        tell(f"Not used as context: {error.message}.")
        return None
    return screen
