"""The data of a config: the cell, the screen, its split and the scale of its targets."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deltacell.base.arrays import Ints
from deltacell.base.errors import InputError, StoreError
from deltacell.base.text import count_text
from deltacell.cell import Cell
from deltacell.data.import_folder import open_screen, read_parts
from deltacell.models.fitted.gene_sets import GeneSets
from deltacell.models.fitted.predictor import Zeros
from deltacell.models.interface import LabelledSets, Study, TargetScale
from deltacell.profile.record import CellFacts, ContextFacts, Samples, ScreenFacts
from deltacell.screen import Genotypes, Grid, Screen, Split
from deltacell.screen.outliers import FARTHEST, beyond_any_scale
from deltacell.train.config import Config, DataConfig, SplitConfig
from deltacell.train.leaks import likely_leaks

_NAMED_AT_MOST = 3
_PARTS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class TrainingData:
    """A cell and a screen, with the rows of each part of the split."""

    cell: Cell
    screen: Screen
    split: Split
    standard: TargetScale
    repeats: Screen | None = None  # before repeated genotypes were merged, if they were
    whole: Screen | None = None  # before any genotype was dropped or merged
    grid: Grid | None = None  # the pairs that were tested according to a list of hits
    config: DataConfig | None = None  # None for data that were not loaded by a config
    left_out: str = ""  # what was left out because of scores beyond any scale
    context: tuple[Study, ...] = ()  # what others measured

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What makes results doubtful: rows that were left out, and inputs that look like leaks."""
        genotypes, scores = self.part(self.split.train)
        sets = GeneSets(genotypes.genes.numpy(), genotypes.offsets.numpy())
        leaks = [leak.sentence for leak in likely_leaks(self.cell, sets, scores)]
        return (*([self.left_out] if self.left_out else []), *leaks)

    @property
    def largest(self) -> int:
        return int(np.diff(self.screen.offsets).max())

    @property
    def targets(self) -> np.ndarray:
        """The standardised score of every row, float32."""
        scale = self.standard
        return ((self.screen.column("score") - scale.mean) / scale.std).astype(np.float32)

    def part(self, rows: Ints) -> tuple[Genotypes, npt.NDArray[np.float64]]:
        """Return the genotypes of some rows with their scores in the screen's unit."""
        score = self.screen.column("score")[rows].astype(np.float64)
        return self.screen.genotypes.take(torch.from_numpy(np.array(rows))), score

    def labelled(self, rows: Ints) -> LabelledSets:
        """Return the genotypes of some rows with their standardised scores."""
        genotypes, _ = self.part(rows)
        return LabelledSets(genotypes, torch.from_numpy(self.targets[rows]))

    def facts(self) -> dict[str, Any]:
        cell, screen, split = self.cell, self.screen, self.split
        studies, relations = tuple(sorted(set(screen.rows["study"]))), tuple(cell.relations)
        parts: Any = {part: len(getattr(split, part)) for part in ("train", "validation", "test")}
        return {
            "cell": CellFacts(checksum=cell.checksum, n_genes=cell.n_genes, relations=relations),
            "screen": ScreenFacts(checksum=screen.checksum, genotypes=len(screen), studies=studies),
            "split": split.to_json() | {"leakage": split.leakage(screen).sentence},
            "context": tuple(_facts_of(study) for study in self.context),
            "samples": Samples(**parts),
            "warnings": self.warnings,
        }


def _facts_of(study: Study) -> ContextFacts:
    return ContextFacts(
        name=study.name,
        checksum=study.screen.checksum,
        genotypes=len(study.screen),
        predictor=study.predictor_checksum,
    )


def draw_zeros(data: TrainingData, ratio: float, seed: int) -> Zeros | None:
    """Draw tested pairs that are not hits, `ratio` per row of a part; None without a grid."""
    if data.grid is None or not ratio:
        return None
    drawn, each = [], []
    for part in ("train", "validation"):
        n = round(ratio * len(getattr(data.split, part)))
        drawn.append(data.grid.draw(n, part=part, split=data.split, seed=seed))
        each.append(data.grid.count(part, data.split) / max(1, len(drawn[-1])))
    return Zeros(drawn[0], drawn[1], each[0], each[1]) if len(drawn[0]) else None


def load_data(config: Config, split: Split | str | os.PathLike[str] | None = None) -> TrainingData:
    """Load the data of a config; `split` is the split of a run, or its directory."""
    asked = config.data
    cell, loaded = sources(asked)
    whole = screen = loaded.on(cell)
    context = _context_of(asked, whole)
    if asked.relations is not None:
        cell = cell.with_relations(asked.relations)
    if asked.merge_relations:
        cell = cell.merge_relations(asked.merge_relations)
    if asked.where:
        screen = screen.where(**asked.where)
    finite = np.isfinite(screen.column("score"))
    if not finite.any():
        what = f"none of the {len(screen):,} genotypes has a score"
        if screen.column("sign").any():
            what += ": the screen is a list of hits, which has only the sign of each interaction"
        fix = "Import the study's table of scores, or add a column 'score' to the list."
        raise InputError(what, code="no-scores", fix=fix)
    if not finite.all():
        screen = screen.take(np.flatnonzero(finite))
    repeats = None
    if asked.merge is not None:
        repeats = screen
        screen = screen.merge(asked.merge)  # type: ignore[arg-type]
    if asked.subset is not None:
        screen = screen.subset(asked.subset, seed=config.split.seed)
    if asked.screen_genes_only:
        genes = [screen.genotypes.genes.numpy(), *(_genes_in(cell, study) for study in context)]
        cell = cell.subset(np.unique(np.concatenate(genes)))
        screen = screen.on(cell)
        repeats = None if repeats is None else repeats.on(cell, on_unknown="drop")
    if split is None:
        imported = None
        if asked.folder is not None and loaded.path is not None:
            imported = Path(asked.folder) / "splits" / loaded.path.name
        split = make_split(screen, config.split, imported)
    elif isinstance(split, Split):
        split.check(screen)
    elif Path(split).exists():
        split = Split.load(split, screen)
    else:
        what = "the split of the run is missing, so its training rows are unknown; train it again"
        raise StoreError(what, code="no-split", where=split)
    split, left_out = _within_scale(split, screen)
    for part in ("train", "test"):
        if not len(getattr(split, part)):
            what = f"the split '{config.split.method}' has no {part} part: {split!r}"
            fix = "Change split.validation, split.test, split.held_out or split.studies."
            raise InputError(what, code="empty-part", fix=fix)
    scores = screen.column("score")[split.train]
    standard = TargetScale.of(scores) if asked.standardise else TargetScale()
    grid = Grid.of(screen, whole=whole) if asked.grid else None
    return TrainingData(
        cell,
        screen,
        split,
        standard,
        repeats,
        whole,
        grid,
        asked,
        left_out,
        context,
    )


def _context_of(config: DataConfig, target: Screen) -> tuple[Study, ...]:
    if not config.context:
        return ()
    # Runs are studies too, and loading one needs this module.
    from deltacell.train.context import load_context

    return load_context(config, target)


def _genes_in(cell: Cell, study: Study) -> Ints:
    """Return the genes of a cell that a study measured."""
    measured = np.unique(study.screen.genotypes.genes.numpy())
    genes = cell.genes.resolve(study.screen.genes.systematic)[measured]
    known: Ints = genes[genes >= 0]
    return known


def _within_scale(split: Split, screen: Screen) -> tuple[Split, str]:
    """Return a split without rows whose score is beyond any scale, and a sentence on them.

    They stay in the screen, so that splits which were saved for it fit, but are in no part.
    """
    scores = screen.column("score")
    rows = np.flatnonzero(beyond_any_scale(scores))
    if not len(rows):
        return split, ""
    named = []
    for row in rows[:_NAMED_AT_MOST].tolist():
        genotype = screen.genotypes.take(torch.tensor([row]))
        names = [screen.genes[gene] for gene in genotype.genes.tolist()]
        named.append(f"{scores[row]:g} of {' '.join(names)}")
    more = ", …" if len(rows) > len(named) else ""
    sentence = (
        f"{count_text(len(rows), 'genotype')} of {len(screen):,} are left out of all parts, "
        f"because the score is more than {FARTHEST:,} robust standard deviations from the median: "
        f"{', '.join(named)}{more}. Correct the source, and import it again."
    )
    is_kept = {part: ~np.isin(getattr(split, part), rows) for part in _PARTS}
    parts = {part: getattr(split, part)[kept] for part, kept in is_kept.items()}
    unseen = split.unseen[is_kept["test"]] if len(split.unseen) else split.unseen
    return replace(split, **parts, dropped=np.union1d(split.dropped, rows), unseen=unseen), sentence


def make_split(screen: Screen, config: SplitConfig, imported: Path | None = None) -> Split:
    """Make the split of a config; `imported` is the one that came with the screen."""
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
    there = None if imported is None or not imported.is_dir() else imported
    where = (config.file or there) if named else config.path
    if where is None:
        what = f"split.method={config.method} requires {'split.file' if named else 'split.path'}"
        raise InputError(what, code="no-split")
    if named:
        return Split.named(screen, *read_parts(where, screen.genes))
    return Split.load(where, screen)


def sources(config: DataConfig) -> tuple[Cell, Screen]:
    if config.synthetic is not None:
        cell = Cell.synthetic(config.synthetic, seed=config.synthetic_seed)
        n, seed = config.synthetic_genotypes, config.synthetic_seed
        return cell, Screen.synthetic(cell, n=n, seed=seed)
    if config.cell is not None and config.screen is not None:
        return Cell.load(config.cell), Screen.load(config.screen)
    if config.folder is None or not (Path(config.folder) / "cell").is_dir():
        fix = "Make one with: deltacell data import SOURCES --out FOLDER; then set data.folder."
        what = "not a directory with a cell and screens"
        raise InputError(what, code="no-data", where=config.folder, fix=fix)
    return Cell.load(Path(config.folder) / "cell"), open_screen(config.folder, config.screen)
