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

from deltacell.errors import InputError
from deltacell.files import write_text
from deltacell.predict.ensemble import scorer_of
from deltacell.predict.explain_set import explain_set, gene_facts, known_of
from deltacell.predict.measured import against_measured
from deltacell.predict.rank import rank as rank_sets
from deltacell.predict.ranking import SHOWN, Ranking, read_rows
from deltacell.predict.request import FILE, Request, read_sets_option, read_status_option
from deltacell.predict.subject import gene_names, subject_of
from deltacell.predict.work import Ranks
from deltacell.report.progress import progress_bar
from deltacell.report.terminal import as_html, as_text
from deltacell.screen import Genotypes
from deltacell.screen.convert import need
from deltacell.train.loaded_run import AnyRun, LoadedRun, load_runs
from deltacell.train.processes import StopSignals

if TYPE_CHECKING:
    import pandas as pd

FIRST = 100
"""Sets of each end of which a ranking says how many are expected to be hits."""

_AT_ONCE = 50


@dataclass(frozen=True, eq=False)
class Ranked(Ranking):
    """A ranking with the runs that made it.

    Parameters
    ----------
    runs
        What ranks.
    """

    runs: Sequence[LoadedRun] = ()

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
        if not self.runs:
            return None
        genes = self.runs[0].data.cell.genes
        for end, rows in self._first_rows().items():
            sets = Genotypes.of([[genes.index(g) for g in row["genes"]] for row in rows])
            each = [run.predictor.predict(sets).hit for run in self.runs]
            known = [float(hit.sum()) for hit in each if hit is not None]
            if known:
                found[end] = sum(known) / len(known)
        return found or None

    def _first_rows(self) -> dict[str, list[dict[str, Any]]]:
        rows = super().to_json(most=FIRST)["rows"] if self.runs else []
        ends = dict.fromkeys(row["end"] for row in rows)
        return {end: [row for row in rows if row["end"] == end] for end in ends if end is not None}

    def to_json(self, most: int = SHOWN) -> dict[str, Any]:
        """Return it as plain data, see `Ranking.to_json`, with how many hits are expected."""
        result = super().to_json(most)
        sizes = {end: len(rows) for end, rows in self._first_rows().items()}
        parts = [
            f"{hits:.1f} of the first {sizes[end]:,} {end}"
            for end, hits in (self.expected_hits or {}).items()
        ]
        if parts:
            result["sentences"].insert(1, f"Expected to be hits: {' and '.join(parts)}.")
        return result

    def page_data(
        self, link: str | None = None, progress: Callable[[str, int, int], None] | None = None
    ) -> dict[str, Any]:
        """Return it as plain data for its page: with evidence, and with what was measured.

        Beside what `to_json` has, each row has ``votes`` (the measured sets next to it, with their
        scores and the relation they come through), ``lost`` (reactions that only the whole set
        loses) and ``terms``, and ``gene_facts`` has the description and the link of each gene.

        Parameters
        ----------
        link
            The address of a gene's page, see `gene_facts`.
        progress
            Called as ``progress(what, done, total)``.
        """
        result = self.to_json()
        rows, genes = result["rows"], self.runs[0].data.cell.genes
        sets = [[genes.index(gene) for gene in row["genes"]] for row in rows]
        for start in range(0, len(sets), _AT_ONCE):
            if progress is not None:
                progress("evidence", start, len(sets))
            some = slice(start, start + _AT_ONCE)
            for row, known in zip(rows[some], known_of(self.runs, sets[some], 5), strict=True):
                row.update(known)
        used = sorted({gene for one in sets for gene in one})
        result["gene_facts"] = gene_facts(genes, used, link)
        if progress is not None:
            progress("predicting what was measured", 0, 0)
        sizes = sorted({len(one) for one in sets})
        known_sets = against_measured(self.runs, scorer_of(self.runs), sizes)
        return {**result, "measured": known_sets.measured, "agreement": known_sets.agreement}

    def page(self, path: str | os.PathLike[str], link: str | None = None) -> Path:
        """Write the ranking as a self-contained HTML page, and return where.

        Parameters
        ----------
        path
            The file.
        link
            The address of a gene's page, with ``{gene}`` or ``{name}``; SGD's for yeast where not
            given.
        """
        from deltacell.report.ranking_page import ranking_page

        with progress_bar() as bar:
            return _write_page(path, ranking_page(self.page_data(link, bar)))

    def __str__(self) -> str:
        from deltacell.report.predict import print_ranking

        return as_text(lambda: print_ranking(self.to_json()))

    def _repr_html_(self) -> str:
        from deltacell.report.predict import print_ranking

        return as_html(lambda: print_ranking(self.to_json()))


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

    The ranking is a Parquet file. A ranking that was stopped goes on where it was, and one that is
    there already is read from its file.

    Parameters
    ----------
    runs
        One or more; several give a mean and a spread.
    sets
        ``pairs``, ``triples``, ``with GENE ...``, a file with one set per line, or the sets.
    request
        All of what to rank and keep at once, in place of the single options.
    top
        Sets to keep of each end; 1,000 where nothing else is asked for.
    status
        Sets to keep: ``untested``, ``tested``, ``measured``, with commas between, or ``any``.
    genes
        What sets are made of: genes of the ``screen``, ``all``, or a file.
    out
        The file; in the folder ``rankings`` of the first run where not given.
    weights
        The weights of a run that is given by its directory.
    overwrite
        Whether to replace a ranking of another request.
    progress
        Whether to show a bar.
    tell
        Called with sentences: how much there is to do and how long it will take.
    **options
        Other fields of `deltacell.predict.request.Request`: ``above``, ``below``, ``linked``,
        ``cautious``, ``distance``, ``size``.

    Returns
    -------
    Ranked | None
        None where it was stopped, or where another process writes the file.
    """
    ranks = Ranks.of_environment()
    with StopSignals() as signals, progress_bar() as bar:

        def report(label: str, done: int, total: int) -> None:
            if progress and ranks.is_first:
                bar(label, done, total)

        def say(sentence: str) -> None:
            if tell is not None and ranks.is_first:
                tell(sentence)

        report("loading", 0, 0)
        loaded = load_runs(runs, weights)
        home = loaded[0].record.path / "rankings"
        if request is None:
            request = Request(
                **_asked(sets, home),
                top=top,
                status=None if status is None else read_status_option(status),
                genes=str(genes) if genes in ("screen", "all") else Path(genes),
                **options,
            )
        subject = subject_of(loaded, request, weights)
        if out is None:
            text = json.dumps(dict(subject.identity), sort_keys=True)
            digest = hashlib.sha256(text.encode()).hexdigest()[:8]
            home.mkdir(exist_ok=True)
            out = home / f"{request.sets}-{digest}.parquet"
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
    if ranking is None:
        if signals.received is not None:
            say(f"Stopped; the same command goes on from {out}.partial")
            raise Stopped(signals.received)
        return None
    return Ranked(ranking.path, ranking.about, runs=loaded)


class Stopped(KeyboardInterrupt):
    """A signal stopped the work, which is saved.

    Parameters
    ----------
    signal
        Its number.
    """

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


def _asked(sets: Any, home: Path) -> dict[str, Any]:
    """Return the fields of a request that say which sets to rank."""
    if isinstance(sets, str):
        return read_sets_option(sets, [])
    if isinstance(sets, os.PathLike):
        return {"sets": FILE, "file": Path(sets)}
    lines = "".join(f"{' '.join(map(str, one))}\n" for one in sets)
    home.mkdir(exist_ok=True)
    path = home / f"sets-{hashlib.sha256(lines.encode()).hexdigest()[:8]}.txt"
    path.write_text(lines, encoding="utf-8")
    return {"sets": FILE, "file": path}


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why a gene set scores as it does.

    Parameters
    ----------
    result
        As `deltacell.predict.explain_set.explain_set` returns it.
    """

    result: Mapping[str, Any]

    @property
    def score(self) -> float:
        """The predicted score."""
        return float(self.result["score"])

    @property
    def sentences(self) -> list[str]:
        """What carries the prediction, in words."""
        return list(self.result["sentences"])

    def votes(self) -> pd.DataFrame:
        """Return the measured sets that the score rests on, the weightiest first."""
        need("pandas", "A table of votes", "pandas")
        import pandas as pd

        return pd.DataFrame(list(self.result["votes"]))

    def page(self, path: str | os.PathLike[str]) -> Path:
        """Write the explanation as a self-contained HTML page, and return where.

        Parameters
        ----------
        path
            The file.
        """
        from deltacell.report.predict import explained_page

        return _write_page(path, explained_page(self.result))

    def __str__(self) -> str:
        from deltacell.report.predict import print_explained_set

        return as_text(lambda: print_explained_set(self.result))

    def _repr_html_(self) -> str:
        from deltacell.report.predict import print_explained_set

        return as_html(lambda: print_explained_set(self.result))


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
    indices = gene_names(loaded).indices(genes)
    if not len(indices):
        raise InputError("no gene is named", fix='Such as: deltacell why RUN "HO STE2"')
    return Explanation(explain_set(loaded, indices))
