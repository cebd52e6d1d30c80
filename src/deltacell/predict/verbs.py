"""The verbs `rank` and `why`: rankings and explanations of runs, as objects."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltacell.errors import InputError
from deltacell.files import write_text
from deltacell.predict.ensemble import scorer_of
from deltacell.predict.explain_set import explain_set
from deltacell.predict.measured import against_measured
from deltacell.predict.rank import rank as rank_sets
from deltacell.predict.ranking import Ranking, read_rows
from deltacell.predict.request import FILE, Request, read_sets_option, read_status_option
from deltacell.predict.subject import gene_names, subject_of
from deltacell.predict.work import Ranks
from deltacell.report.progress import progress_bar
from deltacell.report.terminal import as_html, as_text
from deltacell.screen.convert import need
from deltacell.train.loaded_run import AnyRun, LoadedRun, load_runs
from deltacell.train.signals import StopSignals

if TYPE_CHECKING:
    import pandas as pd


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

    def with_measured(self) -> Ranked:
        """Return the ranking with predictions of what was measured, for its page."""
        if self.agreement:
            return self
        sizes = sorted({len(row["genes"]) for row in self.to_json()["rows"]})
        known = against_measured(self.runs, scorer_of(self.runs), sizes)
        return replace(self, measured=known.measured, agreement=known.agreement)

    def page(self, path: str | os.PathLike[str]) -> Path:
        """Write the ranking as a self-contained HTML page, and return where.

        Parameters
        ----------
        path
            The file.
        """
        from deltacell.report.ranking_page import ranking_page

        return _write_page(path, ranking_page(self.with_measured().to_json()))

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
        from deltacell.report.explained_set import explained_page

        return _write_page(path, explained_page(self.result))

    def __str__(self) -> str:
        from deltacell.report.explained_set import print_explained_set

        return as_text(lambda: print_explained_set(self.result))

    def _repr_html_(self) -> str:
        from deltacell.report.explained_set import print_explained_set

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
