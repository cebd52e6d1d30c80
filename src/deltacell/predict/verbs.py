"""The verbs `rank` and `why`: rankings and explanations of runs, as objects."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltacell.cell.annotation import enrichment
from deltacell.errors import InputError
from deltacell.files import write_text
from deltacell.predict.ensemble import scorer_of
from deltacell.predict.explain_set import against_measured, explain_set, gene_facts, known_of
from deltacell.predict.kept import Ranks
from deltacell.predict.ranking_file import SHOWN, Ranking, read_rows
from deltacell.predict.request import (
    FILE,
    GeneNames,
    Request,
    read_sets_option,
    read_status_option,
    subject_of,
)
from deltacell.predict.search import rank_sets
from deltacell.report.progress import progress_bar
from deltacell.report.terminal import as_html, as_text
from deltacell.screen import Genotypes
from deltacell.screen.convert import need
from deltacell.train.loaded_run import AnyRun, LoadedRun, load_runs
from deltacell.train.processes import StopSignals
from deltacell.words import Progress

if TYPE_CHECKING:
    import pandas as pd

FIRST = 100  # sets of each end whose expected hits and enriched terms are shown
MOST_TERMS, MOST_Q = 20, 0.05  # enriched terms of an end that are shown, and their largest q-value
SETS_AT_ONCE, VOTES = 50, 5  # of which evidence is looked up


@dataclass(frozen=True, eq=False)
class Ranked(Ranking):
    """A ranking with the runs that made it, and the indices of the genes that were ranked."""

    runs: Sequence[LoadedRun] = ()
    genes: Sequence[int] = ()

    def why(self, *genes: str) -> Explanation:
        """Explain the score of one gene set; see `why`."""
        return why(self.runs, *genes)

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows of the ranking as a data frame."""
        need("pandas", "A table of a ranking", "pandas")
        return read_rows(self.path, [(0, self.about["counts"]["rows"])]).to_pandas()

    @cached_property
    def expected_hits(self) -> dict[str, float] | None:
        """How many of the first 100 sets of each end are expected to be hits.

        It is the sum of their probabilities, the mean over the runs that give one; None where none
        does.
        """
        found: dict[str, float] = {}
        for end, sets in self._first.items():
            each = [run.predictor.predict(Genotypes.of(sets)).hit for run in self.runs]
            known = [float(hit.sum()) for hit in each if hit is not None]
            if known:
                found[end] = sum(known) / len(known)
        return found or None

    def enrichment(self) -> list[dict[str, Any]]:
        """Return the annotation terms that genes of the first 100 sets of an end have too often.

        Each with ``end``, ``annotation``, ``term``, ``genes`` (how many have it), ``drawn`` (of how
        many), ``expected``, ``p_value`` and ``q_value``, corrected by Benjamini and Hochberg; the
        background is the genes of all ranked sets.
        """
        cell, found = self.runs[0].data.cell, []
        for end, sets in self._first.items() if cell.annotations else ():
            table = enrichment(cell, sets, self.genes)
            rows = table.filter(table["q_value"] <= MOST_Q).head(MOST_TERMS)
            columns = ["annotation", "term", "genes", "drawn", "expected", "p_value", "q_value"]
            found += [{"end": end, **row} for row in rows.select(columns).to_dicts()]
        return found

    @cached_property
    def _first(self) -> dict[str, list[list[int]]]:
        """The first sets of each end, as gene indices."""
        first: dict[str, list[list[int]]] = {}
        for row in super().to_json(most=FIRST)["rows"] if self.runs else ():
            if row["end"] is not None:
                first.setdefault(row["end"], []).append(self._indices(row))
        return first

    def _indices(self, row: Mapping[str, Any]) -> list[int]:
        genes = self.runs[0].data.cell.genes
        return [genes.index(gene) for gene in row["genes"]]

    def to_json(self, most: int = SHOWN) -> dict[str, Any]:
        """Return it as a JSON-serialisable dict, see `Ranking.to_json`, with the expected hits."""
        result = super().to_json(most)
        parts = [
            f"{hits:.1f} of the first {len(self._first[end]):,} {end}"
            for end, hits in (self.expected_hits or {}).items()
        ]
        if parts:
            result["sentences"].insert(1, f"Expected to be hits: {' and '.join(parts)}.")
        return result

    def page_data(
        self, link: str | None = None, progress: Progress = lambda what, done, total: None
    ) -> dict[str, Any]:
        """Return what its page shows, as a JSON-serialisable dict.

        Beside what `to_json` has, each row has ``votes`` (the measured sets next to it, with their
        scores and the relation they come through), ``lost`` (reactions that only the whole set
        loses) and ``terms``; ``gene_facts`` has the description and the link of each gene, by the
        template ``link``; ``enrichment`` is that of the first sets; ``measured`` has up to 2,000
        measured sets of the sizes that were ranked, and ``agreement`` how near their predictions
        are, see `against_measured`.
        """
        result = self.to_json()
        rows = result["rows"]
        sets = [self._indices(row) for row in rows]
        for start in range(0, len(sets), SETS_AT_ONCE):
            progress("evidence", start, len(sets))
            some = slice(start, start + SETS_AT_ONCE)
            for row, known in zip(rows[some], known_of(self.runs, sets[some], VOTES), strict=True):
                row.update(known)
        used = sorted({gene for one in sets for gene in one})
        result["gene_facts"] = gene_facts(self.runs[0].data.cell.genes, used, link)
        result["enrichment"] = self.enrichment()
        progress("predicting what was measured", 0, 0)
        sizes = sorted({len(one) for one in sets})
        return {**result, **against_measured(self.runs, scorer_of(self.runs), sizes)}

    def page(self, path: str | os.PathLike[str], link: str | None = None) -> Path:
        """Write the ranking as a self-contained HTML page, and return where.

        ``link`` is the address of a gene's page, with ``{gene}`` or ``{name}``; by default SGD's
        for yeast.
        """
        from deltacell.report.ranking_page import ranking_page

        with progress_bar() as bar:
            return _write_page(path, ranking_page(self.page_data(link, bar)))

    def _print(self) -> None:
        from deltacell.report.predict import print_ranking

        print_ranking(self.to_json())

    def __str__(self) -> str:
        return as_text(self._print)

    def _repr_html_(self) -> str:
        return as_html(self._print)


def _write_page(path: str | os.PathLike[str], text: str) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text, what="the page")
    return path


def rank(
    runs: AnyRun | Sequence[AnyRun],
    sets: str | os.PathLike[str] | Iterable[Sequence[str]] = "pairs",
    *,
    request: Request | None = None,
    top: int | None = None,
    status: str | None = None,
    genes: str | os.PathLike[str] = "screen",
    out: str | os.PathLike[str] | None = None,
    weights: str = "best",
    overwrite: bool = False,
    progress: bool = True,
    tell: Callable[[str], None] | None = None,
    **options: Any,
) -> Ranked | None:
    """Rank gene sets by their predicted score, with the evidence for each.

    The ranking is a Parquet file. Call it again to resume a ranking that was stopped; one that
    exists already is read from its file.

    Parameters
    ----------
    runs
        One or more; several give a mean and a spread.
    sets
        ``pairs``, ``triples``, ``with GENE ...``, a file with one set per line, or the sets.
    request
        All of what to rank and keep, in place of the single options.
    top
        Sets to keep of each end; by default 1,000.
    status
        Sets to keep: ``untested``, ``tested``, ``measured``, with commas between, or ``any``.
    genes
        What sets are made of: genes of the ``screen``, ``all``, or a file.
    out
        The file; by default in the folder ``rankings`` of the first run.
    weights
        The weights of a run that is given by its directory.
    overwrite
        Whether to replace a ranking of another request.
    progress
        Whether to show a progress bar.
    tell
        Called with sentences: how much there is to do and how long it will take.
    **options
        Other fields of `deltacell.predict.request.Request`: ``above``, ``below``, ``linked``,
        ``cautious``, ``distance``, ``size``.

    Returns
    -------
    Ranked | None
        None where another process writes the file.
    """
    ranks = Ranks.of_environment()

    def say(sentence: str) -> None:
        if tell is not None and ranks.is_first:
            tell(sentence)

    with StopSignals() as signals, progress_bar() as bar:

        def report(label: str, done: int, total: int) -> None:
            if progress and ranks.is_first:
                bar(label, done, total)

        report("loading", 0, 0)
        loaded = load_runs(runs, weights)
        home = loaded[0].record.path / "rankings"
        if request is None:
            request = Request(
                **_sets_of(sets, home),
                top=top,
                status=None if status is None else read_status_option(status),
                genes=str(genes) if genes in ("screen", "all") else Path(genes),
                **options,
            )
        subject = subject_of(loaded, request, weights)
        if out is None:
            text = json.dumps(dict(subject.identity), sort_keys=True)
            home.mkdir(exist_ok=True)
            out = home / f"{request.sets}-{_digest(text)}.parquet"
        ranking = rank_sets(
            subject,
            scorer_of(loaded),
            Path(out),
            ranks=ranks,
            overwrite=overwrite,
            stop=lambda: signals.received is not None,
            progress=report,
            tell=say,
        )
    if ranking is not None:
        return Ranked(ranking.path, ranking.about, loaded, subject.genes.tolist())
    if signals.received is not None:
        say(f"Stopped; rerun the command to resume from {out}.partial")
        raise Stopped(signals.received)
    return None


class Stopped(KeyboardInterrupt):
    """A signal stopped the work, which is saved."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


def _sets_of(sets: Any, home: Path) -> dict[str, Any]:
    """Return the fields of a request that say which sets to rank."""
    if isinstance(sets, str):
        return read_sets_option(sets, [])
    if isinstance(sets, os.PathLike):
        return {"sets": FILE, "file": Path(sets)}
    lines = "".join(f"{' '.join(map(str, one))}\n" for one in sets)
    home.mkdir(exist_ok=True)
    path = home / f"sets-{_digest(lines)}.txt"
    path.write_text(lines, encoding="utf-8")
    return {"sets": FILE, "file": path}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why a gene set scores as it does; ``result`` is what `explain_set` returns."""

    result: Mapping[str, Any]

    @property
    def score(self) -> float:
        """The predicted score."""
        return float(self.result["score"])

    @property
    def sentences(self) -> list[str]:
        """What carries the prediction."""
        return list(self.result["sentences"])

    def votes(self) -> pd.DataFrame:
        """Return the measured sets that the score rests on, the largest weight first."""
        need("pandas", "A table of votes", "pandas")
        import pandas as pd

        return pd.DataFrame(list(self.result["votes"]))

    def page(self, path: str | os.PathLike[str]) -> Path:
        """Write the explanation as a self-contained HTML page, and return where."""
        from deltacell.report.predict import explained_page

        return _write_page(path, explained_page(self.result))

    def _print(self) -> None:
        from deltacell.report.predict import print_explained_set

        print_explained_set(self.result)

    def __str__(self) -> str:
        return as_text(self._print)

    def _repr_html_(self) -> str:
        return as_html(self._print)


def why(runs: AnyRun | Sequence[AnyRun], *genes: str, weights: str = "best") -> Explanation:
    """Explain the score of one gene set: what carries it, and the measured sets next to it.

    Parameters
    ----------
    runs
        One or more.
    *genes
        Names of any kind.
    weights
        The weights of a run that is given by its directory.
    """
    loaded = load_runs(runs, weights)
    indices = GeneNames.of_runs(loaded).indices(genes)
    if not len(indices):
        raise InputError(
            "no gene is given", code="no-gene", fix='Such as: deltacell why RUN "HO STE2"'
        )
    return Explanation(explain_set(loaded, indices))
