"""The verb `rank`: gene sets by their predicted score, with the evidence for each."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from deltacell.api.why import ScoreExplanation, why
from deltacell.base.errors import InputError, need
from deltacell.base.files import JsonObject, write_text
from deltacell.base.rendering import Shown, progress_bar, report_function
from deltacell.base.text import Progress
from deltacell.cell.annotation import enrichment
from deltacell.profile.accuracy import sentence_of_residual
from deltacell.ranking.against_additive import against_additive, overlap_of_runs
from deltacell.ranking.ensemble import scorer_of
from deltacell.ranking.evidence import knowledge_of
from deltacell.ranking.gene_names import gene_facts
from deltacell.ranking.given_sets import gene_sets_of, line_of_set
from deltacell.ranking.measured import against_measured
from deltacell.ranking.ranking_file import SHOWN, Ranking, read_rows
from deltacell.ranking.request import Request
from deltacell.ranking.request_on_runs import subject_of
from deltacell.ranking.search import Contact, merge_parts, rank_sets, score_part
from deltacell.ranking.work import Ranks, ranks_of_environment, ranks_of_part
from deltacell.screen import Genotypes
from deltacell.train.accuracy import accuracy_of
from deltacell.train.loaded_runs import AnyRun, LoadedRun, load_runs
from deltacell.train.signals import StopSignals

if TYPE_CHECKING:
    import pandas as pd

FIRST = 100  # sets at each end whose expected hits and enriched terms are shown
MOST_TERMS = 20  # enriched terms of an end that are listed
MOST_Q = 0.05  # the largest q-value of a term that is listed
VOTES = 5  # per set on a page


@dataclass(frozen=True, eq=False)
class Ranked(Ranking, Shown):
    """A ranking with its runs, and the indices of the ranked genes."""

    printed_by: ClassVar[str] = "predict:print_ranking"

    runs: Sequence[LoadedRun] = ()
    genes: Sequence[int] = ()

    def why(self, *genes: str) -> ScoreExplanation:
        """Explain the score of one gene set; see `deltacell.why`."""
        return why(self.runs, *genes)

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows, the lowest scores first."""
        need("pandas", "A table", "pandas")
        return read_rows(self.path).to_pandas()

    @cached_property
    def expected_hits(self) -> dict[str, float]:
        """The expected number of hits among the first 100 sets of each end."""
        expected: dict[str, float] = {}
        for end, sets in self._first.items():
            probabilities = [run.predictor.predict(Genotypes.of(sets)).hit for run in self.runs]
            sums = [float(hit.sum()) for hit in probabilities if hit is not None]
            if sums:
                expected[end] = sum(sums) / len(sums)
        return expected

    def enrichment(self) -> list[dict[str, Any]]:
        """Return the annotation terms that are enriched in the first 100 sets of each end.

        ``genes`` of ``drawn`` have the term; ``q_value`` is the Benjamini-Hochberg correction; the
        background is the genes of all ranked sets.
        """
        cell = self.runs[0].data.cell
        if not cell.annotations:
            return []
        terms: list[dict[str, Any]] = []
        for end, sets in self._first.items():
            table = enrichment(cell, sets, self.genes)
            listed = table.filter(table["q_value"] <= MOST_Q).head(MOST_TERMS)
            terms += [{"end": end, **row} for row in listed.to_dicts()]
        return terms

    @cached_property
    def _first(self) -> dict[str, list[list[int]]]:
        """The genes of the first 100 sets of each end."""
        first: dict[str, list[list[int]]] = {}
        for row in super().to_json(most=FIRST)["rows"]:
            if row["end"] is not None:
                first.setdefault(row["end"], []).append(self._indices(row))
        return first

    def _indices(self, row: Mapping[str, Any]) -> list[int]:
        genes = self.runs[0].data.cell.genes
        return [genes.index(gene) for gene in row["genes"]]

    def to_json(self, most: int = SHOWN) -> JsonObject:
        """Return a JSON-serialisable dict, see `Ranking.to_json`, with hits and what low means."""
        self._check_genes()
        result = super().to_json(most)
        if self.expected_hits:
            result["sentences"].insert(1, self._sentence_of_expected_hits())
        result["sentences"][1:1] = self._sentences_of_refits()
        rule = self.runs[0].data.screen.hit_rule
        result["sentences"].insert(1, rule.sentence)
        result["low_means"] = rule.meaning_of_low
        result["high_means"] = rule.meaning_of_high
        result["hits"] = rule.to_json()
        result["sentences"][1:1] = self._sentences_of_residuals()
        result["sentences"] += self._sentences_on_agreement()
        result["accuracy"] = self._sentences_of_accuracy()
        return result

    def _check_genes(self) -> None:
        """Raise if the ranking was made with another list of genes than that of its runs."""
        sealed = self.about.get("identity", {}).get("genes_of_cell", "")
        genes = self.runs[0].data.cell.genes.checksum
        if sealed and sealed != genes:
            what = f"the ranking was made with the gene list {sealed[:12]}, and not that of the "
            what += f"run, {genes[:12]}"
            raise InputError(what, code="other-genes", where=self.path, fix="Rank again.")

    def _sentences_on_agreement(self) -> list[str]:
        """Return how scores relate to the additive prediction, and runs to each other."""
        scorer = scorer_of(self.runs)
        request = self.about["request"]
        sentences: list[str] = []
        if request["size"]:
            names = self.runs[0].data.cell.genes
            given = [names.index(name) for name in request["given"]]
            run = self.runs[0]
            compared = against_additive(run, scorer, self.genes, request["size"], given)
            sentences += compared.sentences
        if len(self.runs) > 1:
            for end, sets in self._kept_sets.items():
                overlap = overlap_of_runs(scorer, end, np.array(sets), first=FIRST)
                sentences += [] if overlap is None else [overlap.sentence]
        return sentences

    @property
    def _kept_sets(self) -> dict[str, list[list[int]]]:
        """The genes of the sets of each end whose sets are of one size."""
        kept: dict[str, list[list[int]]] = {}
        for row in super().to_json()["rows"]:
            if row["end"] is not None:
                kept.setdefault(row["end"], []).append(self._indices(row))
        sizes = {end: {len(genes) for genes in sets} for end, sets in kept.items()}
        return {end: sets for end, sets in kept.items() if len(sizes[end]) == 1}

    def _sentences_of_refits(self) -> list[str]:
        """Return how predictors were made that were fitted on all measurements."""
        refits = [run.record.refitted for run in self.runs]
        return list(dict.fromkeys(refit.sentence for refit in refits if refit is not None))

    def _sentences_of_accuracy(self) -> list[str]:
        """Return how well the runs were found to predict, beside the best baseline."""
        accuracies = [accuracy_of(run) for run in self.runs]
        known = [accuracy.sentences for accuracy in accuracies if accuracy is not None]
        return list(dict.fromkeys(chain.from_iterable(known)))

    def _sentences_of_residuals(self) -> list[str]:
        """Return what the scores of runs are from which an expectation was subtracted."""
        kinds = dict.fromkeys(run.config.data.residual for run in self.runs)
        return [sentence_of_residual(kind) for kind in kinds if kind is not None]

    def _sentence_of_expected_hits(self) -> str:
        parts = []
        for end, n_hits in self.expected_hits.items():
            parts.append(f"{n_hits:.1f} of the first {len(self._first[end]):,} {end}")
        meaning = "A score is the size of a hit times its probability; evaluate compares sizes."
        return f"Expected to be hits: {' and '.join(parts)}. {meaning}"

    def page_data(
        self,
        link: str | None = None,
        progress: Progress = lambda what, done, total: None,
    ) -> dict[str, Any]:
        """Return the data of the HTML page as a JSON-serialisable dict: `to_json` with evidence.

        Each row has ``votes`` (the measured sets next to it), ``lost`` (reactions that only the
        whole set loses) and ``terms``; ``link`` is the URL template of a gene.
        """
        result = self.to_json()
        sets = [self._indices(row) for row in result["rows"]]
        for number, (row, genes) in enumerate(zip(result["rows"], sets, strict=True)):
            progress("evidence", number, len(sets))
            row.update(asdict(knowledge_of(self.runs, genes, VOTES)))
        genes_of_sets = sorted(set().union(*sets))
        facts = gene_facts(self.runs[0].data.cell.genes, genes_of_sets, link)
        result["gene_facts"] = [asdict(facts_of_gene) for facts_of_gene in facts]
        result["enrichment"] = self.enrichment()
        progress("predicting what was measured", 0, 0)
        sizes = sorted({len(genes) for genes in sets})
        compared = against_measured(self.runs, scorer_of(self.runs), sizes)
        return {**result, **asdict(compared)}

    def page(self, path: str | os.PathLike[str], link: str | None = None) -> Path:
        """Write the ranking as a self-contained HTML page, see `page_data`; return its path."""
        with progress_bar() as bar:
            html = report_function("predict:ranking_page")(self.page_data(link, bar))
        write_text(path, html, what="the page")
        return Path(path)


def rank(
    runs: AnyRun | Sequence[AnyRun],
    sets: str | os.PathLike[str] | Iterable[Sequence[str]] = "pairs",
    *,
    out: str | os.PathLike[str] | None = None,
    weights: str = "best",
    device: str = "auto",
    part: str | None = None,
    merge: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    tell: Callable[[str], None] = lambda sentence: None,
    **options: Any,
) -> Ranked | None:
    """Rank gene sets by their predicted score, with the evidence for each.

    Several ``runs`` give a mean and a spread. ``sets`` is ``pairs``, ``triples``, ``with GENE
    ...``, a file with one set per line, or the sets themselves. The ``options`` are those of
    `deltacell predict`: ``genes``, ``top``, ``above``, ``below``, ``status``, ``linked``,
    ``distance`` and ``size``. Networks compute on the ``device``, as in `Run`. ``tell`` is called
    with messages about the expected time.

    The ranking is a Parquet file, by default in the folder ``rankings`` of the first run. Repeat
    the call to resume a ranking that was stopped; one that is complete is read from its file.
    Under torchrun only the first process returns it.

    On a cluster, calls with ``part="1/64"`` to ``"64/64"`` score a part each and return None, and
    one with ``merge`` returns the ranking, after scoring the parts that are missing or damaged.
    """
    ranks = _ranks(part, merge=merge)
    is_first = ranks[0] == 0 or part is not None
    tell = tell if is_first else lambda sentence: None
    with progress_bar() as bar:
        report: Progress = bar if progress and is_first else lambda label, done, total: None
        report("loading", 0, 0)
        loaded = load_runs(runs, weights, device)
        scorer = scorer_of(loaded)
        home = loaded[0].record.path / "rankings"
        if not isinstance(sets, str | os.PathLike):
            sets = _written_sets(sets, home)
        request = Request.of_words(str(sets), **options)
        subject = subject_of(loaded, request, weights)
        identity = json.dumps(dict(subject.identity), sort_keys=True)
        default = home / f"{request.sets}-{_digest(identity)}.parquet"
        path = default if out is None else Path(out)
        # Until here nothing is to be saved, and a signal ends the process even inside a library.
        with StopSignals() as signals:
            contact = Contact(lambda: signals.received is not None, report, tell)
            ranking = None
            if part is not None:
                if score_part(subject, scorer, path, ranks, overwrite=overwrite, contact=contact):
                    tell(f"Part {part} is finished; merge all parts with --merge.")
                    return None
            elif merge:
                ranking = merge_parts(subject, scorer, path, overwrite=overwrite, contact=contact)
            else:
                ranking = rank_sets(
                    subject,
                    scorer,
                    path,
                    ranks=ranks,
                    overwrite=overwrite,
                    contact=contact,
                )
    if ranking is not None:
        return Ranked(ranking.path, ranking.about, loaded, subject.genes.tolist())
    if signals.received is not None:
        tell(f"Stopped; rerun the command to resume from {path}.partial")
        raise Stopped(signals.received)
    return None


def _ranks(part: str | None, *, merge: bool) -> Ranks:
    """Return the rank and the world size of this process; those of a part, such as 17/64."""
    ranks = ranks_of_environment()
    if merge and part is not None:
        raise InputError("--part and --merge exclude each other", code="conflicting-settings")
    if (merge or part is not None) and ranks[1] > 1:
        what = "--part and --merge are for one process; run the command without torchrun"
        raise InputError(what, code="conflicting-settings")
    return ranks if part is None else ranks_of_part(part)


class Stopped(KeyboardInterrupt):
    """A signal, its argument, stopped a ranking, which can be resumed."""


def _written_sets(sets: Iterable[Sequence[str]], home: Path) -> Path:
    """Write gene sets to a file, which is named after its contents, and return its path."""
    lines = "".join(f"{line_of_set(names)}\n" for names in gene_sets_of(sets))
    path = home / f"sets-{_digest(lines)}.txt"
    write_text(path, lines, what="the sets")
    return path


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
