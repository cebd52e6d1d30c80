"""Runs as predictors: their chosen weights, asked about a test part or about another screen."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from deltacell import store
from deltacell.arrays import Bools, Doubles, Floats, Ints
from deltacell.cell import Cell
from deltacell.counts import UNKNOWN_GENE, Counts
from deltacell.errors import InputError, StoreError
from deltacell.evaluate.bootstrap import Bootstrap
from deltacell.evaluate.diagnostics import RelationWeights, relation_weights
from deltacell.evaluate.evaluation import MAIN, Evaluation
from deltacell.evaluate.figures import plot_metric
from deltacell.evaluate.hits import ZEROS, Threshold, Zeros
from deltacell.evaluate.side_by_side import check_fit, evaluate
from deltacell.models import Dango, Prediction
from deltacell.models.baselines import BASELINES, baseline, check_baseline
from deltacell.profile.record import RUN_FILE, RunRecord, Status, now, read_run
from deltacell.report.evaluate import print_evaluation
from deltacell.report.terminal import as_html, as_text
from deltacell.screen import Genotypes, Grid, Screen, Split
from deltacell.screen.convert import need
from deltacell.screen.genotypes import comparable_keys, repeats_a_gene
from deltacell.train.build import build_fitted
from deltacell.train.config import MODELS, Config, DataConfig, NoLossConfig
from deltacell.train.data import Standard, TrainingData, load_data
from deltacell.train.loaded_run import AnyRun, LoadedRun, labels_of, load_run, load_runs
from deltacell.train.predictor import Predictor
from deltacell.train.run import fit_run
from deltacell.words import Progress

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

#: The folder of a run with the baselines that were fitted to be compared with it.
BASELINES_FOLDER = "baselines"
#: Why rows of another screen are left out.
NO_INTERACTION = "no interaction score"
ONE_GENE_TWICE = "one gene twice"
TOO_LARGE = "more genes than the run takes"
IN_TRAINING = "in training or validation"

_DEFAULT_BASELINES = ("global_mean", "additive", "boosted_trees")


@dataclass(frozen=True, eq=False)
class EvaluatedRuns:
    """Runs and baselines on one test part."""

    evaluation: Evaluation
    data: TrainingData  # what they were tested on
    split: Split  # with the test rows that were looked at
    predictions: dict[str, Floats]  # by predictor, one score per test row, of the first seed
    weights: dict[str, RelationWeights]  # of each relation, by predictor that has such weights

    def to_pandas(self) -> pd.DataFrame:
        """Return the metrics on the test part: a row per predictor and metric."""
        need("pandas", "A table of metrics", "pandas")
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "predictor": name,
                    "metric": m,
                    "value": one.value,
                    "low": one.low,
                    "high": one.high,
                }
                for name, scores in self.evaluation.test.scores.items()
                for m, one in scores.items()
            ]
        )

    def plot(self, metric: str = MAIN, axes: Axes | None = None) -> Axes:
        """Plot a metric of each predictor, such as ``aupr``, with its interval."""
        metrics = self.evaluation.metrics
        if metric not in metrics:
            raise InputError(
                f"unknown metric '{metric}'; there are {', '.join(metrics)}", code="unknown-metric"
            )
        return plot_metric(self.evaluation.to_json(), metric, axes)

    def __str__(self) -> str:
        return as_text(lambda: print_evaluation(self.evaluation.to_json()))

    def _repr_html_(self) -> str:
        return as_html(lambda: print_evaluation(self.evaluation.to_json()))


def evaluate_runs(
    paths: Sequence[AnyRun],
    *,
    baseline_names: Sequence[str] = _DEFAULT_BASELINES,
    which: str = "best",
    samples: int | None = None,
    threshold: Threshold | None = None,
    zeros: int = ZEROS,
    bootstrap: Bootstrap | None = None,
    progress: Progress | None = None,
) -> EvaluatedRuns:
    """Evaluate runs and baselines on the test part that the runs share.

    Runs of one name that differ only in their seeds are one predictor.
    """
    runs = load_runs(paths, which)
    data = compared_data(runs)
    split = data.split if samples is None else fewer(data.split, samples)
    drawn = None
    grid = Grid.of(data.screen, whole=data.whole, assume_crossed=zeros > 0)
    if grid is not None and grid.count("test", data.split):
        drawn = Zeros.draw(grid, data.split, zeros, seed=data.split.seed)
        # Where only some of the hits are looked at, the zeros stand for as many fewer.
        share = len(split.test) / len(data.split.test)
        drawn = dataclasses.replace(drawn, weight=share * drawn.weight)
    test = _taken(data.screen, split.test)
    genotypes = test if drawn is None else Genotypes.concat([test, drawn.genotypes])
    predictions, notes = predict_runs(runs, data, genotypes, baseline_names, progress)
    evaluation = evaluate(
        data.cell,
        data.screen,
        split,
        predictions,
        threshold=threshold,
        repeats=data.repeats,
        zeros=drawn,
        bootstrap=bootstrap,
        progress=progress,
    )
    evaluation = dataclasses.replace(evaluation, notes=(*evaluation.notes, *notes))
    return _evaluated(runs, evaluation, data, split, predictions, test)


def evaluate_on(
    paths: Sequence[AnyRun],
    on: str | os.PathLike[str] | Screen,
    *,
    baseline_names: Sequence[str] = _DEFAULT_BASELINES,
    which: str = "best",
    samples: int | None = None,
    threshold: Threshold | None = None,
    beyond: float = 0.08,
    bootstrap: Bootstrap | None = None,
    progress: Progress | None = None,
) -> EvaluatedRuns:
    """Evaluate runs and baselines on another screen, without the sets that they were trained on."""
    runs = load_runs(paths, which)
    data = compared_data(runs)
    where = None if isinstance(on, Screen) else on
    read = on if isinstance(on, Screen) else Screen.load(screen_directory(on))
    other, split, counts = untrained(read, data, where=where)
    if samples is not None:
        split = fewer(split, samples)
    genotypes = _taken(other, split.test)
    predictions, notes = predict_runs(runs, data, genotypes, baseline_names, progress)
    evaluation = evaluate(
        data.cell,
        other,
        split,
        predictions,
        threshold=threshold,
        beyond=beyond,
        bootstrap=bootstrap,
        progress=progress,
    )
    left_out = ", ".join(f"{n:,} with {why}" for why, n in counts.dropped.items()) or "none"
    evaluation = dataclasses.replace(
        evaluation,
        leakage=f"Tested on another screen: {counts.kept:,} of its {counts.read:,} rows. "
        f"Left out: {left_out.replace('with in', 'in')}.",
        on={"screen": other.checksum, **counts.to_json()},
        notes=(*evaluation.notes, *notes),
    )
    shown = dataclasses.replace(data, screen=other, split=split)
    return _evaluated(runs, evaluation, shown, split, predictions, genotypes)


def _evaluated(
    runs: Sequence[LoadedRun],
    evaluation: Evaluation,
    data: TrainingData,
    split: Split,
    predictions: Mapping[str, Mapping[int, Prediction]],
    test: Genotypes,
) -> EvaluatedRuns:
    first = {
        name: next(iter(seeds.values())).score.float().cpu().numpy()[: len(test)]
        for name, seeds in predictions.items()
    }
    weights: dict[str, RelationWeights] = {}
    for name, run in zip(labels_of(runs), runs, strict=True):
        model = run.predictor.model
        if isinstance(model, Dango) and name not in weights:
            with torch.no_grad():
                attention = model.encode(run.data.cell).attention.cpu().numpy()
            weights[name] = relation_weights(model.relations, attention, test.genes.numpy())
    return EvaluatedRuns(evaluation, data, split, first, weights)


def predict_genotypes(
    run: LoadedRun, genotypes: Genotypes, progress: Progress | None = None
) -> Prediction:
    """Return what a run predicts of genotypes over its cell, in the unit of the screen."""

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(f"{run.record.name}, seed {run.record.seed}", done, total)

    return run.predictor.predict(genotypes, report)


def predict_runs(
    runs: Sequence[LoadedRun],
    data: TrainingData,
    genotypes: Genotypes,
    baseline_names: Sequence[str],
    progress: Progress | None = None,
) -> tuple[dict[str, dict[int, Prediction]], tuple[str, ...]]:
    """Ask runs, and baselines fitted on the same training part, about genotypes.

    Returns the predictions by name and seed, and notes: which relations a run does not see, and
    which runs did not finish.
    """
    by_name: dict[str, dict[int, Prediction]] = {}
    models: dict[str, LoadedRun] = {}
    notes = []
    for name, run in zip(labels_of(runs), runs, strict=True):
        seeds = by_name.setdefault(name, {})
        if run.record.seed in seeds:
            raise InputError(
                f"two runs are called '{name}' and differ in more than the seed",
                code="same-name",
                where=run.record.path,
                fix="Rename the directory of one of them.",
            )
        seeds[run.record.seed] = predict_genotypes(run, genotypes, progress)
        models.setdefault(name, run)
    wanted = [name for name in baseline_names if name not in models]
    for name in set(baseline_names) & models.keys():
        if models[name].config.model.name != name:
            raise InputError(
                f"a run is called '{name}', as a baseline is, and is a "
                f"{models[name].config.model.name}",
                code="same-name",
                fix="Rename its directory, or leave the baseline out of --baselines.",
            )
    for name, one in fitted_baselines(runs, data, wanted, progress=progress).items():
        by_name[name] = {one.record.seed: predict_genotypes(one, genotypes, progress)}
    for name, run in models.items() if wanted else ():
        chosen = getattr(run.predictor.model, "relations", None)
        seen = set(run.data.cell.relations if chosen is None else chosen)
        missing = ", ".join(sorted(set(data.cell.relations) - seen))
        if missing:
            notes.append(f"{name} sees {len(seen)} relations; the baselines also see {missing}.")
    notes += [
        f"The training of {run.record.name}, seed {run.record.seed}, did not finish "
        f"(it is {run.record.status}); its latest weights were used."
        for run in runs
        if not run.is_finished
    ]
    return by_name, tuple(notes)


def baselines(
    cell: Cell,
    screen: Screen,
    split: Split,
    names: Iterable[str] | None = None,
    *,
    seed: int = 0,
    genotypes: Genotypes | None = None,
    progress: Progress | None = None,
) -> dict[str, Floats]:
    """Return the predictions of baselines for the test rows, by name.

    They learn from the training rows that have a score. Those that stop early do so by the
    validation part, as a model does; of the test part they see the genotypes only.
    """
    check_fit(cell, screen, split)
    made = {name: baseline(name) for name in (BASELINES if names is None else names)}
    score = screen.column("score").astype(np.float64)

    def part(rows: Ints) -> tuple[Genotypes, Doubles]:
        known = rows[np.isfinite(score[rows])]
        return _taken(screen, known), score[known]

    validation = part(split.validation)
    asked = _taken(screen, split.test) if genotypes is None else genotypes
    predictions = {}
    for name, untrained_one in made.items():
        fitted = untrained_one.fit(
            cell,
            *part(split.train),
            validation=validation if len(validation[0]) else None,
            seed=seed,
            progress=_named(name, progress),
        )
        predictions[name] = fitted(cell, asked).score.numpy()
    return predictions


def fitted_baselines(
    runs: Sequence[LoadedRun],
    data: TrainingData,
    names: Iterable[str],
    *,
    progress: Progress | None = None,
) -> dict[str, LoadedRun]:
    """Return baselines as runs: loaded where one of the runs has them, fitted and saved otherwise.

    They are saved in the folder ``baselines`` of the first run, by a key of the data, the split and
    the parameters. Where nothing can be written there, they are fitted and not saved.
    """
    chosen = {name: _baseline_config(name, runs[0].config, data) for name in names}
    return {name: _fitted(config, runs, data, progress) for name, config in chosen.items()}


def _baseline_config(name: str, config: Config, data: TrainingData) -> Config:
    check_baseline(name)
    return Config(
        name=name,
        seed=data.split.seed,
        data=data.config or config.data,
        split=config.split,
        model=MODELS[name](),
        loss=NoLossConfig(),
    )


def _fitted(
    config: Config, runs: Sequence[LoadedRun], data: TrainingData, progress: Progress | None
) -> LoadedRun:
    # All that decides what a baseline learns.
    decides = (config.model, config.seed, data.cell.checksum, data.screen.checksum)
    digest = hashlib.sha256(repr((*decides, version("deltacell"))).encode())
    for rows in (data.split.train, data.split.validation):
        digest.update(np.ascontiguousarray(rows).tobytes())
    folder = f"{config.name}-{digest.hexdigest()[:12]}"
    places = [run.record.path / BASELINES_FOLDER / folder for run in runs]
    for place in places:
        if (place / RUN_FILE).is_file() and read_run(place).status is Status.finished:
            return load_run(place, data=data)
    config = dataclasses.replace(config, directory=str(places[0]))
    report = _named(config.name, progress)
    try:
        outcome = fit_run(config, data=data, progress=report)
    except InputError as error:
        # A run may be read where it cannot be written to, or another process is fitting this one.
        if not isinstance(error, StoreError) and not (places[0] / RUN_FILE).exists():
            raise
        return _not_saved(config, data, report)
    if outcome.signal:
        raise KeyboardInterrupt
    return load_run(outcome.path, data=data)


def _not_saved(config: Config, data: TrainingData, progress: Progress | None) -> LoadedRun:
    validation = data.part(data.split.validation)
    fitted = build_fitted(config).fit(
        data.cell,
        *data.part(data.split.train),
        validation=validation if len(validation[0]) else None,
        seed=config.seed,
        progress=progress,
    )
    record = RunRecord(
        status=Status.finished,
        name=config.name,
        mode=str(config.mode),
        seed=config.seed,
        command=(),
        started=now(),
    )
    return LoadedRun(record, config, data, Predictor(fitted, data.cell, Standard()))


def compared_data(runs: Sequence[LoadedRun]) -> TrainingData:
    """Return the data that a comparison of runs is on, whatever the order of the runs.

    It has every relation that the data of some run has. Runs whose test parts differ are an error
    that says which settings do.
    """
    for run in runs:
        _check_split(runs[0], run)
    config = compared_config(runs)
    for run in runs:
        if _relevant(run.config.data) == config.data:
            return run.data
    return load_data(config, runs[0].data.split)


def compared_config(runs: Sequence[LoadedRun]) -> Config:
    """Return a config of the data that `compared_data` is on, with nothing else of the runs."""
    given = sorted((_relevant(run.config.data) for run in runs), key=repr)
    names = [data.relations for data in given]
    relations: list[str] | None = None
    if all(one == names[0] for one in names):
        relations = names[0]
    elif all(one is not None for one in names):
        relations = sorted({name for one in names for name in one or ()})
    merges = [data.merge_relations for data in given]
    data = dataclasses.replace(
        given[0],
        relations=relations,
        # Of runs that differ in this, what was merged for some is there unmerged for all.
        merge_relations=merges[0] if all(one == merges[0] for one in merges) else {},
    )
    return Config(data=data, split=runs[0].config.split)


def _relevant(data: DataConfig) -> DataConfig:
    """Return the settings of data that decide what a fitted predictor sees."""
    plain = DataConfig()
    return dataclasses.replace(
        data,
        batch_size=plain.batch_size,
        samples_per_epoch=plain.samples_per_epoch,
        standardise=plain.standardise,
    )


def _check_split(first: LoadedRun, run: LoadedRun) -> None:
    if run.data.split.equals(first.data.split):
        return

    def said(value: object) -> str:
        return "null" if value is None else str(value)

    differing = [
        f"{part}.{field.name} is {said(mine)} and {said(others)}"
        for part in ("data", "split")
        for field in dataclasses.fields(getattr(run.config, part))
        if (mine := getattr(getattr(run.config, part), field.name))
        != (others := getattr(getattr(first.config, part), field.name))
    ]
    how = "; ".join(differing) or "the data behind the same settings differ"
    raise InputError(
        f"this run was trained on another split or screen than {first.record.path}: {how}",
        code="other-split",
        where=run.record.path,
        fix="Evaluate it by itself, or train it again with the same data.* and split.* settings.",
    )


def fewer(split: Split, samples: int) -> Split:
    """Return a split with so many of its test rows, the others dropped."""
    if samples < 1:
        raise InputError(
            f"{samples} test rows were asked for; expected 1 or more", code="invalid-number"
        )
    if samples >= len(split.test):
        return split
    drawn = np.random.default_rng(split.seed).permutation(len(split.test))[:samples]
    kept = np.zeros(len(split.test), dtype=bool)
    kept[drawn] = True
    note = f"{samples:,} of {len(split.test):,} test rows were drawn, with seed {split.seed}."
    return dataclasses.replace(
        split,
        test=split.test[kept],
        unseen=split.unseen[kept] if len(split.unseen) else split.unseen,
        dropped=np.concatenate([split.dropped, split.test[~kept]]),
        notes=(*split.notes, note),
    )


def screen_directory(path: str | os.PathLike[str]) -> Path:
    """Return where a screen is: the directory itself, or the only screen of an import."""
    folder = Path(path)
    screens = sorted(one for one in (folder / "screens").glob("*") if one.is_dir())
    if not screens:
        # A directory of another kind is refused with what it is.
        store.read_manifest(folder)
        return folder
    if len(screens) > 1:
        raise InputError(
            f"the import has {len(screens)} screens: {', '.join(one.name for one in screens)}",
            code="several-screens",
            where=folder,
            fix=f"Name one: --on {screens[0]}",
        )
    return screens[0]


def untrained(
    screen: Screen, data: TrainingData, *, where: str | os.PathLike[str] | None = None
) -> tuple[Screen, Split, Counts]:
    """Return another screen over the genes of a run, with what can be tested as its test part."""
    known = np.isfinite(screen.column("score")) | (screen.column("sign") != 0)
    usable = known & (screen.column("phenotype") == "interaction")
    if not usable.any():
        there = ", ".join(sorted(set(screen.column("phenotype").astype(str))))
        raise InputError(
            f"no row of the screen has an interaction score, which the run predicts; it has "
            f"{there} only",
            code="no-interactions",
            where=where,
            fix="Import a table with a column of interaction scores (gene1, gene2, score).",
        )
    part = screen.take(usable)
    index = data.cell.genes.resolve(part.genes.systematic).index[part.genotypes.genes.numpy()]
    found = np.ones(len(part), dtype=bool)
    found[part.genotypes.owner.numpy()[index < 0]] = False
    twice = found & repeats_a_gene(index, part.offsets)
    if not (found & ~twice).any():
        raise InputError(
            f"the run's cell has the genes of none of the {len(part):,} rows, which are of genes "
            f"such as {', '.join(part.genes.systematic[:3])}",
            code="other-genes",
            where=where,
            fix="Give a screen of the same organism, with the same kind of gene names.",
        )
    matched = part.on(data.cell, on_unknown="drop")
    fits: Bools = np.diff(matched.offsets) <= data.largest
    # Sets that are in training or validation, in whatever study.
    both = _taken(data.screen, np.concatenate([data.split.train, data.split.validation]))
    keys, of_training = comparable_keys(
        data.cell.n_genes,
        (matched.genotypes.genes.numpy(), matched.offsets),
        (both.genes.numpy(), both.offsets.numpy()),
    )
    trained_on = np.isin(keys, of_training)
    kept = fits & ~trained_on
    dropped = {
        NO_INTERACTION: int((~usable).sum()),
        UNKNOWN_GENE: int((~found).sum()),
        ONE_GENE_TWICE: int(twice.sum()),
        TOO_LARGE: int((~fits).sum()),
        IN_TRAINING: int((fits & trained_on).sum()),
    }
    counts = Counts(len(screen), int(kept.sum()), dropped)
    if not kept.any():
        said = ", ".join(f"{why}: {n:,}" for why, n in counts.dropped.items())
        raise InputError(
            f"nothing is left to test on of {len(screen):,} rows ({said})",
            code="nothing-to-test",
            where=where,
            fix="Give a screen of other gene sets, over the genes of the run's cell.",
        )
    rows = np.arange(len(matched))
    genes, owner = matched.genotypes.genes.numpy(), matched.genotypes.owner.numpy()
    seen = np.isin(genes, _taken(data.screen, data.split.train).genes.numpy())
    split = Split(
        train=rows[:0],
        validation=rows[:0],
        test=rows[kept],
        method="source",
        seed=0,
        screen_checksum=matched.checksum,
        options={"test": sorted(set(matched.column("study").astype(str))), "validation": 0.0},
        dropped=rows[~kept],
        unseen=np.bincount(owner[~seen], minlength=len(matched))[kept],
    )
    return matched, split, counts


def _taken(screen: Screen, rows: Ints) -> Genotypes:
    return screen.genotypes.take(torch.from_numpy(np.array(rows)))


def _named(name: str, progress: Progress | None) -> Progress | None:
    if progress is None:
        return None
    return lambda what, done, total: progress(f"{name}: {what}", done, total)
