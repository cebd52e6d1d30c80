"""The data of a config: the cell, the screen, its split and the scale of its targets."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from deltacell.base.arrays import Ints
from deltacell.base.errors import InputError, StoreError
from deltacell.base.files import JsonObject
from deltacell.base.text import count_text
from deltacell.cell import Cell
from deltacell.data.import_folder import open_screen, read_parts
from deltacell.models.fitted.gene_sets import GeneOrder, GeneSets
from deltacell.models.fitted.predictor import Part, Zeros
from deltacell.models.fitted.single_effects import expected_scores
from deltacell.models.interface import LabelledSets, Study, TargetScale
from deltacell.profile.record import CellFacts, ContextFacts, Samples, ScreenFacts
from deltacell.screen import Genotypes, Grid, Screen, Split
from deltacell.screen.hit_rule import HitRule
from deltacell.screen.outliers import FARTHEST, beyond_any_scale
from deltacell.screen.screen import lists_only_hits
from deltacell.train.config import Config, DataConfig, SplitConfig
from deltacell.train.leaks import likely_leaks

_NAMED_AT_MOST = 3
_PARTS = ("train", "validation", "test")


#: Returns the cell and the screen of a config, as `sources` does.
ReadSources = Callable[[DataConfig], tuple[Cell, Screen]]


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
    as_measured: Screen | None = None  # with `data.residual`: before expectations were subtracted

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What makes results doubtful: rows that were left out, and inputs that look like leaks."""
        genotypes, scores = self.part(self.split.train)
        sets = GeneSets(genotypes.genes.numpy(), genotypes.offsets.numpy())
        leaks = [leak.sentence for leak in likely_leaks(self.cell, sets, scores)]
        return (*([self.left_out] if self.left_out else []), *leaks)

    @property
    def largest(self) -> int:
        """The number of genes of the largest genotype."""
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

    def facts(self) -> JsonObject:
        """Return what the record of a run says about its data."""
        cell = CellFacts(
            checksum=self.cell.checksum,
            n_genes=self.cell.n_genes,
            relations=tuple(self.cell.relations),
            genes=self.cell.genes.checksum,
        )
        screen = ScreenFacts(
            checksum=self.screen.checksum,
            genotypes=len(self.screen),
            studies=tuple(sorted(set(self.screen.rows["study"]))),
        )
        samples = Samples(
            train=len(self.split.train),
            validation=len(self.split.validation),
            test=len(self.split.test),
        )
        return {
            "cell": cell,
            "screen": screen,
            "split": self.split.to_json() | {"leakage": self.split.leakage(self.screen).sentence},
            "context": tuple(_facts_of_study(study) for study in self.context),
            "samples": samples,
            "warnings": self.warnings,
        }


def _facts_of_study(study: Study) -> ContextFacts:
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
    pairs = []
    weights = []  # how many pairs without a hit each drawn one stands for
    for part in ("train", "validation"):
        n_wanted = round(ratio * len(getattr(data.split, part)))
        drawn = data.grid.draw(n_wanted, part=part, split=data.split, seed=seed)
        pairs.append(drawn)
        weights.append(data.grid.count(part, data.split) / max(1, len(drawn)))
    if not len(pairs[0]):
        return None
    return Zeros(pairs[0], pairs[1], weights[0], weights[1])


def load_data(
    config: Config,
    split: Split | str | os.PathLike[str] | None = None,
    *,
    read: ReadSources | None = None,
) -> TrainingData:
    """Load the data of a config; `split` is the split of a run, or its directory.

    `read` loads the cell and the screen in place of `sources`, if they are loaded already.
    """
    settings = config.data
    cell, loaded = sources(settings) if read is None else read(settings)
    whole = loaded.on(cell)
    context = _context_of(settings, whole)
    if settings.relations is not None:
        cell = cell.with_relations(settings.relations)
    if settings.merge_relations:
        cell = cell.merge_relations(settings.merge_relations)
    screen = whole.where(**settings.where) if settings.where else whole
    screen = _with_scores(screen)
    if settings.hits:
        screen = screen.stating(HitRule.of_values(settings.hits))
    repeats = None
    if settings.merge is not None:
        repeats = screen
        screen = screen.merge(settings.merge)  # type: ignore[arg-type]
    if settings.subset is not None:
        screen = screen.subset(settings.subset, seed=config.split.seed)
    if settings.screen_genes_only:
        genes = [screen.genotypes.genes.numpy(), *(_genes_in(cell, study) for study in context)]
        cell = cell.subset(np.unique(np.concatenate(genes)))
        screen = screen.on(cell)
        repeats = None if repeats is None else repeats.on(cell, on_unknown="drop")
    split = _split_of(screen, config, loaded, split)
    split, left_out = _within_scale(split, screen)
    _check_parts(split, config)
    grid = Grid.of(screen, whole=whole) if settings.grid else None
    as_measured = None
    if settings.residual is not None:
        as_measured = screen
        screen = _residual(screen, split, cell, settings.residual)
    scores = screen.column("score")[split.train]
    standard = TargetScale.of(scores) if settings.standardise else TargetScale()
    return TrainingData(
        cell,
        screen,
        split,
        standard,
        repeats,
        whole,
        grid,
        settings,
        left_out,
        context,
        as_measured,
    )


def _residual(screen: Screen, split: Split, cell: Cell, kind: str | None) -> Screen:
    """Return a screen with each score less what single effects lead to expect of it.

    The effects are learned from the training part alone, see `expected_scores`.
    """
    if lists_only_hits(screen):
        what = "the screen lists only hits, of which single effects cannot be told"
        fix = "Leave out data.residual, or import the study's table of all scores."
        raise InputError(what, code="residual-of-hits", fix=fix)
    order = GeneOrder(cell.genes)
    sets = order.sets(screen.genotypes)
    scores = screen.column("score").astype(np.float64)
    training = Part(sets.take(split.train), scores[split.train])
    expected = expected_scores(kind, training, len(order), sets)  # type: ignore[arg-type]
    return screen.with_residuals(scores - expected)


def with_everything(data: TrainingData) -> TrainingData:
    """Return the data with all measurements in the training part, see `Split.everything`.

    Scores beyond any scale stay in no part. Expectations from single effects, if they are
    subtracted, are learned again from all measurements.
    """
    measured = data.screen if data.as_measured is None else data.as_measured
    every = Split.everything(measured, data.split.seed)
    split, left_out = _within_scale(every, measured)
    screen = data.screen
    if data.as_measured is not None and data.config is not None:
        screen = _residual(measured, split, data.cell, data.config.residual)
    return replace(data, screen=screen, split=split, left_out=left_out)


def _context_of(config: DataConfig, target: Screen) -> tuple[Study, ...]:
    """Return what others measured, checked against the target."""
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


def _with_scores(screen: Screen) -> Screen:
    """Return the genotypes that have a score, or raise if none has."""
    is_finite = np.isfinite(screen.column("score"))
    if is_finite.all():
        return screen
    if is_finite.any():
        return screen.take(np.flatnonzero(is_finite))
    what = f"none of the {len(screen):,} genotypes has a score"
    if screen.column("sign").any():
        what += ": the screen is a list of hits, which has only the sign of each interaction"
    fix = "Import the study's table of scores, or add a column 'score' to the list."
    raise InputError(what, code="no-scores", fix=fix)


def _split_of(
    screen: Screen,
    config: Config,
    loaded: Screen,
    split: Split | str | os.PathLike[str] | None,
) -> Split:
    """Return a given split, checked, the one in a directory, or a new one of the config."""
    if split is None:
        imported = None
        if config.data.folder is not None and loaded.path is not None:
            imported = Path(config.data.folder) / "splits" / loaded.path.name
        return make_split(screen, config.split, imported)
    if isinstance(split, Split):
        split.check(screen)
        return split
    if Path(split).exists():
        return Split.load(split, screen)
    what = "the split of the run is missing, so its training rows are unknown; train it again"
    raise StoreError(what, code="no-split", where=split)


def _check_parts(split: Split, config: Config) -> None:
    """Raise for a split without training or test rows."""
    needed = ("train",) if split.method == "everything" else ("train", "test")
    for part in needed:
        if not len(getattr(split, part)):
            what = f"the split '{config.split.method}' has no {part} part: {split!r}"
            fix = "Change split.validation, split.test, split.held_out or split.studies."
            raise InputError(what, code="empty-part", fix=fix)


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
    n_rows = count_text(len(rows), "genotype")
    is_or_are = "is" if len(rows) == 1 else "are"
    sentence = (
        f"{n_rows} of {len(screen):,} {is_or_are} left out of all parts, because the score "
        f"is more than {FARTHEST:,} robust standard deviations from the median: "
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
        case "named":
            has_imported = imported is not None and imported.is_dir()
            file = config.file or (imported if has_imported else None)
            if file is None:
                raise InputError("split.method=named requires split.file", code="no-split")
            return Split.named(screen, *read_parts(file, screen.genes))
        case _:
            if config.path is None:
                what = f"split.method={config.method} requires split.path"
                raise InputError(what, code="no-split")
            return Split.load(config.path, screen)


def sources(config: DataConfig) -> tuple[Cell, Screen]:
    """Load or make the cell and the screen that a config names, as they are."""
    if config.synthetic is not None:
        cell = Cell.synthetic(config.synthetic, seed=config.synthetic_seed)
        screen = Screen.synthetic(
            cell,
            n=config.synthetic_genotypes,
            seed=config.synthetic_seed,
        )
        return cell, screen
    if config.cell is not None and config.screen is not None:
        return Cell.load(config.cell), Screen.load(config.screen)
    if config.folder is None or not (Path(config.folder) / "cell").is_dir():
        fix = "Make one with: deltacell data import SOURCES --out FOLDER; then set data.folder."
        what = "not a directory with a cell and screens"
        raise InputError(what, code="no-data", where=config.folder, fix=fix)
    return Cell.load(Path(config.folder) / "cell"), open_screen(config.folder, config.screen)
