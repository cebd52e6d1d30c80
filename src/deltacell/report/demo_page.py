"""The demonstration as one page: what was learned, what limits it, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from deltacell.report.page import Axis, ScoreScale, page

MOST_SETS = 20  # sets of the head of the ranking that are on the page


def demo_page(result: Mapping[str, Any]) -> str:
    """Return the page of a demonstration, given by `demo.results`, as self-contained HTML."""
    unknown = dict.fromkeys(("parameters", "epochs", "seconds", "colour"))
    predictors = [{**model, "colour": i % 4} for i, model in enumerate(result["models"])]
    predictors += [{**unknown, **one} for one in result["baselines"]]
    # The best first, and those without a correlation last.
    predictors.sort(
        key=lambda one: (one["pearson"]["value"] is None, -(one["pearson"]["value"] or 0))
    )
    ends = [one["pearson"][key] for one in predictors for key in ("value", "low", "high")]
    head = result["ranking"][:MOST_SETS]
    return page(
        "demo",
        result=result,
        head=head,
        scale=ScoreScale.of(head),
        predictors=predictors,
        share=Axis.over([0.0, *(end for end in ends if end is not None)], 0.0, 1.0).share,
        # A scheme such as that of a script is quoted away: a link leads to a file.
        links=[{**link, "href": "./" + quote(link["file"])} for link in result["links"]],
    )
