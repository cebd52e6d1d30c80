"""What a config trains on: the cell, the screen, its split and the scale of its targets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deltacell.arrays import Ints
from deltacell.cell import Cell
from deltacell.errors import InputError, StoreError, did_you_mean
from deltacell.models.pairs.trees import Zeros
from deltacell.profile.record import CellFacts, RunRecord, Samples, ScreenFacts
from deltacell.screen import Genotypes, Grid, Screen, Split
from deltacell.screen.import_folder import read_parts
from deltacell.train.config import Config, DataConfig, SplitConfig


@dataclass(frozen=True)
class Standard:
    """``(target - mean) / std``, with the mean and deviation of the training part alone."""

    mean: float = 0.0
    std: float = 1.0

    @classmethod
    def of(cls, targets: npt.NDArray[np.floating]) -> Standard:
        """Return the scale of some targets."""
        mean = float(np.mean(targets, dtype=np.float64))
        std = float(np.std(targets, dtype=np.float64))
        if not np.isfinite(mean) or not std > 0:
            raise InputError(
                f"the {len(targets):,} training targets have mean {mean:g} and deviation {std:g}, "
                "so they cannot be standardised",
                code="constant-targets",
                fix="Look at the screen's scores, or set data.standardise=false.",
            )
        return cls(mean, std)

    def apply(self, targets: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """Return standardised targets."""
        return (targets - self.mean) / self.std

    def undo(self, scores: torch.Tensor) -> torch.Tensor:
        """Return scores in the unit of the screen."""
        return scores * self.std + self.mean


@dataclass(frozen=True, eq=False)
class TrainingData:
    """A cell, a screen of it, and which rows of the screen are for what.

    Parameters
    ----------
    notes
        What a user should know about the data, in sentences.
    repeats
        The screen before its repeated genotypes were merged; None if they were not.
    whole
        The screen before any genotype was left out or merged, over the genes of the whole cell.
    grid
        Which pairs a list of hits implies were tested; None for any other screen.
    config
        None if the data were put together by hand.
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
        """Number of genes of the largest genotype."""
        return int(np.diff(self.screen.offsets).max())

    @property
    def targets(self) -> np.ndarray:
        """The standardised target of every row, float32."""
        return self.standard.apply(self.screen.column("score")).astype(np.float32)

    def part(self, rows: Ints) -> tuple[Genotypes, npt.NDArray[np.float64]]:
        """Return the genotypes of some rows with their scores in the unit of the screen."""
        score = self.screen.column("score")[rows].astype(np.float64)
        return self.screen.genotypes.take(torch.from_numpy(np.array(rows))), score

    def facts(self) -> dict[str, Any]:
        """Return the fields of a run's record that say what was trained on."""
        cell, screen, split = self.cell, self.screen, self.split
        studies = screen.rows["study"].unique().cast("string").to_pylist()
        return {
            "cell": CellFacts(
                checksum=cell.checksum, n_genes=cell.n_genes, relations=tuple(cell.relations)
            ),
            "screen": ScreenFacts(
                checksum=screen.checksum, genotypes=len(screen), studies=tuple(sorted(studies))
            ),
            "split": split.to_json() | {"leakage": split.leakage(screen).sentence},
            "samples": Samples(
                train=len(split.train), validation=len(split.validation), test=len(split.test)
            ),
        }

    def check_same(self, record: RunRecord) -> None:
        """Raise if these are not the data that a run was begun with."""
        for what, was, found in (
            ("cell", record.cell, self.cell.checksum),
            ("screen", record.screen, self.screen.checksum),
        ):
            if was is not None and was.checksum != found:
                raise InputError(
                    f"the {what} has the checksum {found[:12]}, but the run was begun with "
                    f"{was.checksum[:12]}",
                    code=f"other-{what}",
                    where=record.path,
                    fix="Restore the data, or start a new run.",
                )


def draw_zeros(data: TrainingData, ratio: float, seed: int) -> Zeros | None:
    """Draw tested pairs without a hit, `ratio` per row of a part; None without a grid."""
    if data.grid is None or not ratio:
        return None
    split, grid = data.split, data.grid
    n_train, n_validation = round(ratio * len(split.train)), round(ratio * len(split.validation))
    training = grid.draw(n_train, part="train", split=split, seed=seed)
    validation = grid.draw(n_validation, part="validation", split=split, seed=seed)
    if not len(training):
        return None
    return Zeros(
        training,
        validation,
        grid.count("train", split) / len(training),
        grid.count("validation", split) / max(1, len(validation)),
    )


def load_data(config: Config, split: Split | str | os.PathLike[str] | None = None) -> TrainingData:
    """Return what a config names; `split` is the one that a run keeps, or its directory."""
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
    elif Path(split).exists():
        split = Split.load(split, screen)
    else:
        raise StoreError(
            "the run does not keep its split, so its training rows are not certain",
            code="no-split",
            where=split,
            fix="Restore the directory from a copy, or train the run again.",
        )
    for part in ("train", "test"):
        if not len(getattr(split, part)):
            raise InputError(
                f"the split '{config.split.method}' has no {part} part: {split!r}",
                code="empty-part",
                fix="Change split.validation, split.test, split.held_out or split.studies.",
            )
    scores = screen.column("score")[split.train]
    standard = Standard.of(scores) if config.data.standardise else Standard()
    grid = Grid.of(screen, whole=whole, assume_crossed=config.data.grid)
    return TrainingData(
        cell, screen, split, standard, tuple(notes), repeats, whole, grid, config.data
    )


def make_split(screen: Screen, config: SplitConfig, imported: Path | None = None) -> Split:
    """Return the split that a config describes; `imported` is the one that came with the screen."""
    match config.method:
        case "random":
            return Split.random(screen, config.seed, config.validation, config.test)
        case "gene":
            return Split.gene(screen, config.seed, config.held_out, config.validation)
        case "set":
            return Split.sets(screen, config.by, config.seed, config.validation, config.test)  # type: ignore[arg-type]
        case "source":
            return Split.source(screen, config.studies, config.validation, config.seed)
    named = config.method == "named"
    where = (config.file or imported) if named else config.path
    if where is None:
        raise InputError(
            f"split.method={config.method} needs {'split.file' if named else 'split.path'}",
            code="no-split",
            fix="Set it, or import a split with the screen." if named else None,
        )
    if not named:
        return Split.load(where, screen)
    sets, parts = read_parts(Path(where))
    return Split.named(screen, sets, parts)


def sources(config: DataConfig) -> tuple[Cell, Screen]:
    """Return the cell and the screen that a config names, as they are on the disk."""
    if config.synthetic is not None:
        cell = Cell.synthetic(config.synthetic, seed=config.synthetic_seed)
        n = config.synthetic_genotypes
        return cell, Screen.synthetic(cell, n=n, seed=config.synthetic_seed)
    if config.cell is not None:
        assert config.screen is not None
        return Cell.load(config.cell), Screen.load(config.screen)
    if config.folder is None or not (Path(config.folder) / "cell").is_dir():
        raise InputError(
            "not a directory with a cell and screens",
            code="no-data",
            where=config.folder,
            fix="Make one with: deltacell data import SOURCES --out FOLDER; then set data.folder.",
        )
    folder = Path(config.folder)
    return Cell.load(folder / "cell"), Screen.load(_screen_in(folder, config.screen))


def _imported_split(config: DataConfig) -> Path | None:
    if config.folder is None:
        return None
    folder = Path(config.folder)
    path = folder / "splits" / _screen_in(folder, config.screen).name
    return path if path.is_dir() else None


def _screen_in(folder: Path, name: str | None) -> Path:
    there = sorted(path.name for path in (folder / "screens").glob("*") if path.is_dir())
    if name is None and len(there) == 1:
        name = there[0]
    if not there:
        raise InputError(
            "the import has a cell but no screen",
            code="no-screen",
            where=folder,
            fix="Import again with the table of a screen, or use a saved one: data.folder=null "
            f"data.cell={folder / 'cell'} data.screen=DIRECTORY",
        )
    if name is None or name not in there:
        unset = "data.screen is not set"
        raise InputError(
            unset if name is None else f"unknown screen '{name}'{did_you_mean(name, there)}",
            code="unknown-screen",
            where=folder / "screens",
            fix=f"Set data.screen to one of {', '.join(there)}.",
        )
    return folder / "screens" / name
