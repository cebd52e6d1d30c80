"""`deltacell evaluate`, `predict` and `why`: test predictors, rank gene sets, explain a score."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from deltacell.base.errors import InputError
from deltacell.cli.program import (
    Device,
    Html,
    Json,
    Markdown,
    Overwrite,
    Weights,
    option,
    split_names,
    tell,
    write_json,
    write_rendered,
)

BASELINES = "global_mean,additive,boosted_trees"


def evaluate(
    runs: Annotated[list[Path], typer.Argument(help="Run directories; seeds are grouped.")],
    baselines: Annotated[str, option("Baselines to compare with, comma-separated.")] = BASELINES,
    weights: Weights = "best",
    device: Device = "auto",
    samples: Annotated[int | None, option("Number of test rows; all by default.")] = None,
    threshold: Annotated[
        float | None,
        option("Maximum score of a hit, for AUROC; by default that of the screen."),
    ] = None,
    on: Annotated[Path | None, option("Test on another screen, without training rows.")] = None,
    beyond: Annotated[
        float | None,
        option("With --on: also test rows this far from 0; by default its hits."),
    ] = None,
    zeros: Annotated[int, option("Number of non-hits to draw for a list of hits.")] = 100_000,
    predictions: Annotated[
        list[Path] | None,
        option("Table of gene1, gene2, ..., score from any predictor; may be repeated."),
    ] = None,
    covers: Annotated[float, option("Share of test rows that --predictions must cover.")] = 1.0,
    json: Json = None,
    markdown: Markdown = None,
    figures: Annotated[Path | None, option("Also write figures to this directory.")] = None,
) -> None:
    """Test runs and baselines on the same rows: metrics with intervals, and the best predictor.

    Baselines are fitted on the same training part. For a list of hits, non-hits are drawn on the
    assumption that every query gene was crossed with every array gene.

    Example: deltacell evaluate runs/demo-seed0 runs/demo-seed1 --figures figures
    """
    from deltacell.api.evaluate import evaluate as evaluate_predictors
    from deltacell.report.evaluate import markdown_evaluation, print_evaluation
    from deltacell.report.evaluation_figures import draw_evaluation

    for table in predictions or ():
        if not table.is_file():
            raise InputError("no such file", code="no-such-file", where=table)
    evaluated = evaluate_predictors(
        [*runs, *(predictions or ())],
        baselines=split_names(baselines) or [],
        weights=weights,
        device=device,
        on=on,
        samples=samples,
        beyond=beyond,
        zeros=zeros,
        threshold=threshold,
        covers=covers,
    )
    result = evaluated.to_json()
    # Files first, in case the reader of the output, such as `head`, closes the pipe.
    write_json(json, result)
    write_rendered(markdown, markdown_evaluation, result)
    if figures is not None:
        draw_evaluation(evaluated.figure_values(), figures, evaluated.weights)
    print_evaluation(result)


def predict(
    runs: Annotated[list[str], typer.Argument(help="Run directories; several give a spread.")],
    sets: Annotated[str, option("pairs, triples, with GENE..., or a file with one set per line.")],
    genes: Annotated[str, option("Genes to combine: screen, all, or a file.")] = "screen",
    top: Annotated[int | None, option("Sets to keep at each end.", show_default="1000")] = None,
    above: Annotated[float | None, option("Keep all sets with at least this score.")] = None,
    below: Annotated[float | None, option("Keep all sets with at most this score.")] = None,
    status: Annotated[str | None, option("Some of untested,tested,measured; or any.")] = None,
    linked: Annotated[bool, option("Also keep sets of linked genes.", "--linked")] = False,
    distance: Annotated[int, option("Base pairs within which genes are linked.")] = 200_000,
    size: Annotated[int | None, option("Genes per set, for --sets with.")] = None,
    weights: Weights = "best",
    device: Device = "auto",
    out: Annotated[Path | None, option("Parquet file; named after --sets by default.")] = None,
    html: Html = None,
    csv: Annotated[Path | None, option("Also write all rows as .csv or .tsv.")] = None,
    xlsx: Annotated[Path | None, option("Also write all rows as .xlsx.")] = None,
    cytoscape: Annotated[Path | None, option("Also write PREFIX.*.tsv for Cytoscape.")] = None,
    json: Json = None,
    link: Annotated[str | None, option("URL template of a gene, with {gene} or {name}.")] = None,
    part: Annotated[str | None, option("Score only this part, such as 17/64.")] = None,
    merge: Annotated[bool, option("Merge parts; score missing ones.", "--merge")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Rank gene sets by their predicted score, with the evidence for each.

    Ranks untested sets of the screen's genes by default, and keeps both ends of the ranking.

    Rerun the command to resume after a stop. Under torchrun, the processes share the work.

    Example: deltacell predict runs/demo --sets pairs --html pairs.html
    """
    from deltacell.api.rank import Stopped, rank
    from deltacell.ranking.exports import write_network, write_table
    from deltacell.report.predict import print_ranking, ranking_page
    from deltacell.report.progress import progress_bar

    runs, given = runs_and_sets(runs, sets)
    name = re.sub(r"[^\w.]+", "-", Path(sets).stem if Path(sets).is_file() else given)
    out = out or Path(f"predicted-{name}.parquet")
    # Detect paths that cannot be written before hours of work.
    if any(place is not None and place.is_dir() for place in (out, html, csv, xlsx, json)):
        raise InputError("the output is a directory; expected a file", code="is-a-directory")
    suffix = out.suffix.lower(), ".xlsx" if xlsx is None else xlsx.suffix.lower()
    if suffix[0] in (".html", ".csv", ".tsv", ".xlsx", ".json") or suffix[1] != ".xlsx":
        raise InputError("--out must be a .parquet and --xlsx an .xlsx file", code="wrong-suffix")
    if part is not None and any((html, csv, xlsx, cytoscape, json)):
        what = "a part has no ranking to write yet; use --html, --csv and others with --merge"
        raise InputError(what, code="conflicting-settings")
    options: dict[str, Any] = {"top": top, "above": above, "below": below, "status": status}
    options |= {"genes": genes, "size": size, "distance": distance, "linked": linked}
    options |= {"out": out, "overwrite": overwrite, "weights": weights, "device": device}
    options |= {"part": part, "merge": merge}
    try:
        ranking = rank(runs, given, tell=tell, **options)
    except Stopped as stopped:
        raise typer.Exit(128 + stopped.args[0]) from None
    if ranking is None:
        return
    with progress_bar() as bar:
        result = ranking.page_data(link, bar) if html or json else ranking.to_json()
    # Files first, in case the reader of the output, such as `head`, closes the pipe.
    write_json(json, result)
    write_rendered(html, ranking_page, result)
    for table in (csv, xlsx):
        if table is not None:
            write_table(ranking.path, table)
    if cytoscape is not None:
        edges, nodes = (Path(f"{cytoscape}.{kind}.tsv") for kind in ("edges", "nodes"))
        write_network(ranking.path, edges, nodes)
    print_ranking(result)
    typer.echo(f"All {result['counts']['rows']:,} rows: {out}")


def why(
    runs: Annotated[list[str], typer.Argument(help='Run directories, then genes: "RAD52 RAD51".')],
    weights: Weights = "best",
    device: Device = "auto",
    html: Html = None,
    json: Json = None,
) -> None:
    """Explain the score of one gene set: what contributes to it, and the closest measured sets.

    Several runs are explained together.

    Example: deltacell why runs/demo "RAD52 RAD51" --html why.html
    """
    from deltacell.api.why import why as explain_score
    from deltacell.report.predict import print_explained_set

    paths, genes = _runs_and_genes(runs)
    explanation = explain_score(paths, *genes, weights=weights, device=device)
    write_json(json, explanation.to_json())
    if html is not None:
        explanation.page(html)
    print_explained_set(explanation.to_json())


def runs_and_sets(words: list[str], sets: str) -> tuple[list[str], str]:
    """Return run directories and what to rank; words that are no runs are genes for --sets with."""
    from deltacell.ranking.given_sets import line_of_set

    if sets.split()[:1] != ["with"]:
        return words, sets
    runs, genes = _runs_and_genes(words)
    return runs, f"{sets} {line_of_set(genes)}"


def _runs_and_genes(words: list[str]) -> tuple[list[str], list[str]]:
    """Split words into run directories and genes."""
    from deltacell.ranking.given_sets import words_of_line

    # A gene name contains no slash.
    runs = [w for w in words if Path(w, "run.json").is_file() or Path(w).name != w]
    genes = " ".join(word for word in words if word not in runs)
    return runs, words_of_line(genes)
