"""What a config trains on: the cell, the screen and its split."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from deltacell.arrays import Ints
from deltacell.cell import Cell
from deltacell.errors import InputError, StoreError, did_you_mean
from deltacell.models.pairs.trees import Zeros
from deltacell.profile.record import RunRecord
from deltacell.screen import Genotypes, Grid, Screen, Split
from deltacell.screen.import_folder import read_parts
from deltacell.train.config import Config, DataConfig, SplitConfig
from deltacell.train.standard import Standard


@dataclass(frozen=True, eq=False)
class TrainingData:
    """A cell, a screen of it, and which rows of that are for what.

    Parameters
    ----------
    cell
        The wild type.
    screen
        What was measured.
    split
        Of the screen.
    standard
        The scale of the targets.
    notes
        What a person should know of it, in sentences.
    repeats
        The screen before its repeated genotypes became one; None where they did not.
    whole
        The screen before any genotype was left out or merged, over the genes of the whole cell;
        None where there is no other than ``screen``.
    grid
        Which pairs a list of hits implies were tested; None for any other screen.
    config
        What names it; None where it was put together by hand.
    """

    cell: Cell
    screen: Screen
    split: Split
    standard: Standard
    notes: tuple[str, ...] = ()
    repeats: Screen | None = None
    whole: Screen | None = None
    grid: Grid | None = None
    config: DataConfig | None = None

    @property
    def largest(self) -> int:
        """Genes of the largest genotype."""
        return int(np.diff(self.screen.offsets).max())

    @property
    def targets(self) -> np.ndarray:
        """Every row's target on the common scale, float32."""
        return self.standard.apply(self.screen.column("score")).astype(np.float32)

    def part(self, rows: Ints) -> tuple[Genotypes, npt.NDArray[np.float64]]:
        """Return the genotypes of some rows with their scores in the unit of the screen."""
        score = self.screen.column("score")[rows].astype(np.float64)
        return self.screen.genotypes.take(torch.from_numpy(np.array(rows))), score


def draw_zeros(data: TrainingData, ratio: float, seed: int) -> Zeros | None:
    """Draw tested pairs that are not hits; None where the screen has no grid.

    Parameters
    ----------
    data
        What is trained on.
    ratio
        How many to draw for each row of the training part, and of the validation part.
    seed
        Random seed of the draw.
    """
    if data.grid is None or not ratio:
        return None
    split, grid = data.split, data.grid
    training = grid.draw(round(ratio * len(split.train)), part="train", split=split, seed=seed)
    validation = grid.draw(
        round(ratio * len(split.validation)), part="validation", split=split, seed=seed
    )
    if not len(training):
        return None
    return Zeros(
        training,
        validation,
        grid.count("train", split) / len(training),
        grid.count("validation", split) / max(1, len(validation)),
    )


def load_data(config: Config, split: Split | str | os.PathLike[str] | None = None) -> TrainingData:
    """Return what a config names.

    Parameters
    ----------
    config
        Of a run.
    split
        The split that a run keeps, or its directory; drawn as the config says where not given.
    """
    cell, screen = sources(config.data)
    whole = screen = screen.on(cell)
    notes = []
    if config.data.relations is not None:
        cell = cell.with_relations(config.data.relations)
    if config.data.merge_relations:
        cell = cell.merge_relations(config.data.merge_relations)
    if config.data.where:
        screen = screen.where(**config.data.where)
    finite = np.isfinite(screen.column("score"))
    if not finite.all():
        notes.append(f"{int((~finite).sum()):,} genotypes have no score and are left out.")
        screen = screen.take(np.flatnonzero(finite))
    repeats = None
    if config.data.merge is not None:
        repeats = screen
        screen = screen.merge(config.data.merge)  # type: ignore[arg-type]
    if config.data.subset is not None:
        screen = screen.subset(config.data.subset, seed=config.split.seed)
    if config.data.screen_genes_only:
        cell = cell.subset(np.unique(screen.genotypes.genes.numpy()))
        screen = screen.on(cell)
        repeats = None if repeats is None else repeats.on(cell, on_unknown="drop")
    if split is None:
        split = make_split(screen, config.split, _imported_split(config.data))
    elif isinstance(split, Split):
        split.check(screen)
    else:
        split = _kept_split(Path(split), screen)
    if not len(split.train):
        raise InputError("the split leaves no genotype for training")
    if not len(split.test):
        raise InputError(
            f"the split '{config.split.method}' has no test part: {split!r}",
            fix="Set split.test (or split.held_out, split.studies) so that there is one.",
        )
    standard = (
        Standard.of(screen.column("score")[split.train]) if config.data.standardise else Standard()
    )
    grid = Grid.of(screen, whole=whole, assume_crossed=config.data.grid)
    notes_ = tuple(notes)
    return TrainingData(cell, screen, split, standard, notes_, repeats, whole, grid, config.data)


def _kept_split(path: Path, screen: Screen) -> Split:
    if not path.exists():
        raise StoreError(
            "the run does not keep its split, so that which rows it was trained on is not certain",
            where=path,
            fix="Restore the directory from a copy. A run of a version that kept no split has to "
            "be trained again.",
        )
    return Split.load(path, screen)


def check_same(record: RunRecord, data: TrainingData) -> None:
    """Raise where the data are not those that a run was begun with.

    Parameters
    ----------
    record
        Of the run.
    data
        What its config names now.
    """
    for what, was, found in (
        ("cell", record.cell, data.cell.checksum),
        ("screen", record.screen, data.screen.checksum),
    ):
        if was is not None and was.checksum != found:
            raise InputError(
                f"the {what} is not the one that the run was begun with: its checksum is "
                f"{found[:12]}, and it was {was.checksum[:12]}",
                where=record.path,
                fix="Put back the data as they were, or start a new run.",
            )


def make_split(screen: Screen, config: SplitConfig, imported: Path | None = None) -> Split:
    """Return the split that a config describes.

    Parameters
    ----------
    screen
        What was measured.
    config
        How to split it.
    imported
        The split that came with the screen, if any.
    """
    if config.method == "random":
        return Split.random(screen, config.seed, config.validation, config.test)
    if config.method == "gene":
        return Split.gene(screen, config.seed, config.held_out, config.validation)
    if config.method == "set":
        return Split.sets(screen, config.by, config.seed, config.validation, config.test)  # type: ignore[arg-type]
    if config.method == "source":
        return Split.source(screen, config.studies, config.validation, config.seed)
    if config.method == "named":
        where = imported if config.file is None else Path(config.file)
        if where is None:
            raise InputError(
                "split.method is named, and no split was imported with the screen",
                fix="Set split.file to a table of genes and split, or import one with the screen.",
            )
        sets, parts = read_parts(where)
        return Split.named(screen, sets, parts)
    if config.method == "saved":
        if config.path is None:
            raise InputError("split.method is saved, and split.path is not set")
        return Split.load(config.path, screen)
    raise InputError(
        f"there is no split '{config.method}'; there are random, gene, set, source, named, saved"
    )


def _imported_split(config: DataConfig) -> Path | None:
    if config.folder is None:
        return None
    folder = Path(config.folder)
    path = folder / "splits" / _screen_in(folder, config.screen).name
    return path if path.is_dir() else None


def sources(config: DataConfig) -> tuple[Cell, Screen]:
    """Return the cell and the screen that a config names, as they are on the disk.

    Parameters
    ----------
    config
        The data part of a config.
    """
    if config.synthetic is not None:
        cell = Cell.synthetic(config.synthetic, seed=config.synthetic_seed)
        return cell, Screen.synthetic(
            cell, n=config.synthetic_genotypes, seed=config.synthetic_seed
        )
    if config.cell is not None:
        if config.screen is None:
            raise InputError(
                "data.cell is given and data.screen is not", fix="Set data.screen=DIRECTORY."
            )
        return Cell.load(config.cell), Screen.load(config.screen)
    if config.folder is None:
        raise InputError(
            "the config names no data",
            fix="Set data.folder=DIRECTORY, one that `deltacell data import` made; or try "
            "experiment=demo.",
        )
    folder = Path(config.folder)
    if not (folder / "cell").is_dir():
        raise InputError(
            "this is no directory with a cell and screens",
            where=folder,
            fix=f"Make it: deltacell data import SOURCES --out {folder}; or set data.folder.",
        )
    return Cell.load(folder / "cell"), Screen.load(_screen_in(folder, config.screen))


def _screen_in(folder: Path, name: str | None) -> Path:
    there = sorted(path.name for path in (folder / "screens").glob("*") if path.is_dir())
    if name is None and len(there) == 1:
        name = there[0]
    if name is None or name not in there:
        said = "data.screen is not set"
        if name is not None:
            said = f"there is no screen '{name}'{did_you_mean(name, there)}"
        if not there:
            raise InputError(
                "the import has a cell and no screen",
                where=folder,
                fix=f"Give one that you have saved: data.folder=null data.cell={folder / 'cell'} "
                "data.screen=DIRECTORY; or import again with the table of a screen.",
            )
        raise InputError(
            f"{said}; there are {', '.join(there)}",
            where=folder / "screens",
            fix="Set data.screen to one of them.",
        )
    return folder / "screens" / name
