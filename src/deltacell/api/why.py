"""The verb `why`: what the score of one gene set is based on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from deltacell.base.errors import InputError
from deltacell.base.files import JsonObject, write_text
from deltacell.base.frames import data_frame
from deltacell.base.rendering import Shown, report_function
from deltacell.ranking.explained_set import ExplainedSet
from deltacell.ranking.gene_names import gene_indices
from deltacell.ranking.why import explain_set
from deltacell.train.loaded_runs import AnyRun, load_runs

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class ScoreExplanation(Shown):
    """Why a gene set has its score; ``result`` is from `explain_set`."""

    printed_by: ClassVar[str] = "predict:print_explained_set"

    result: ExplainedSet

    @property
    def score(self) -> float:
        """The predicted score, in the unit of the screen."""
        return self.result.score

    @property
    def sentences(self) -> list[str]:
        """The main contributions to the score, in words."""
        return list(self.result.sentences)

    def votes(self) -> pd.DataFrame:
        """Return the measured sets that the score is based on, the largest weight first."""
        return data_frame([asdict(vote) for vote in self.result.knowledge.votes])

    def to_json(self) -> JsonObject:
        """Return the explanation as a JSON-serialisable dict."""
        return self.result.to_json()

    def page(self, path: str | os.PathLike[str]) -> Path:
        """Write the explanation as a self-contained HTML page; return its path."""
        html = report_function("predict:explained_page")(self.to_json())
        write_text(path, html, what="the page")
        return Path(path)


def why(
    runs: AnyRun | Sequence[AnyRun],
    *genes: str,
    weights: str = "best",
    device: str = "auto",
) -> ScoreExplanation:
    """Explain the score of one gene set: what contributes to it, and the closest measured sets.

    ``genes`` are names of any kind; ``weights`` and ``device`` are for runs given by their
    directory, as in `Run`.
    """
    loaded = load_runs(runs, weights, device)
    indices = gene_indices(loaded[0].data.cell.genes, genes)
    if not len(indices):
        raise InputError('no genes; expected: deltacell why RUN "HO STE2"', code="no-gene")
    return ScoreExplanation(explain_set(loaded, indices))
