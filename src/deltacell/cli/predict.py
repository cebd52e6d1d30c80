"""`deltacell evaluate`, `predict` and `why`: test predictors, rank gene sets, explain a score."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from deltacell.cli.program import (
    Html,
    Json,
    Markdown,
    Overwrite,
    Weights,
    option,
    split_names,
    tell,
    write_json,
    write_text,
)
from deltacell.errors import InputError

BASELINES = "global_mean,additive,boosted_trees"


def evaluate(
    runs: Annotated[list[Path], typer.Argument(help="Run directories; seeds of a name join.")],
    baselines: Annotated[str, option("Comma-separated names.")] = BASELINES,
    weights: Weights = "best",
    samples: Annotated[int | None, option("Test rows to draw; all by default.")] = None,
    threshold: Annotated[float, option("Scores at or below it are hits, for AUROC.")] = -0.08,
    on: Annotated[Path | None, option("Test on this screen, less what was trained on.")] = None,
    beyond: Annotated[float, option("With --on: also test rows this far from 0.")] = 0.08,
    zeros: Annotated[int, option("Non-hits to draw beside a list of hits.")] = 100_000,
    json: Json = None,
    markdown: Markdown = None,
    figures: Annotated[Path | None, option("Also draw figures into this directory.")] = None,
) -> None:
    """Test runs and baselines on the same rows: metrics with intervals, and which one is best.

    Baselines are fitted on the same training part. Of a list of hits, pairs without a hit are drawn
    as if every query gene had been crossed with every array gene.

    Example: deltacell evaluate runs/demo-seed0 runs/demo-seed1 --figures figures
    """
    from deltacell import verbs
    from deltacell.evaluate import draw_figures
    from deltacell.report.evaluate import markdown_evaluation, print_evaluation

    options: dict[str, Any] = {"on": on, "beyond": beyond, "samples": samples, "zeros": zeros}
    options |= {"weights": weights, "threshold": threshold}
    found = verbs.evaluate(runs, baselines=split_names(baselines) or [], **options)
    result = found.evaluation.to_json()
    # Files first: a reader of the output that goes away, as `head` does, must not cost them.
    write_json(json, result)
    if markdown is not None:
        write_text(markdown, markdown_evaluation(result), what="the tables")
    if figures is not None:
        data = found.data.cell, found.data.screen, found.split
        draw_figures(*data, found.predictions, figures, weights=found.weights)
    print_evaluation(result)


def predict(
    runs: Annotated[list[str], typer.Argument(help="Run directories; several give a spread.")],
    sets: Annotated[str, option("pairs, triples, with GENE..., or a file with a set per line.")],
    genes: Annotated[str, option("Genes of sets: of the screen, all, or a file.")] = "screen",
    top: Annotated[int | None, option("Sets to keep of each end.", show_default="1000")] = None,
    above: Annotated[float | None, option("Keep all with this score or more.")] = None,
    below: Annotated[float | None, option("Keep all with this score or less.")] = None,
    status: Annotated[str | None, option("Some of untested,tested,measured; or any.")] = None,
    linked: Annotated[bool, option("Keep sets of linked genes too, marked.", "--linked")] = False,
    cautious: Annotated[bool, option("Rank by the score less its spread.", "--cautious")] = False,
    distance: Annotated[int, option("Linked are genes with fewer base pairs between.")] = 200_000,
    size: Annotated[int | None, option("Genes of a set, for --sets with.")] = None,
    best: Annotated[bool, option("Use only the run that validates best.", "--best")] = False,
    weights: Weights = "best",
    out: Annotated[Path | None, option("Parquet file; named after --sets by default.")] = None,
    html: Html = None,
    csv: Annotated[Path | None, option("Also write all rows as .csv or .tsv.")] = None,
    xlsx: Annotated[Path | None, option("Also write all rows as a workbook, .xlsx.")] = None,
    cytoscape: Annotated[Path | None, option("Prefix of two tables for Cytoscape.")] = None,
    json: Json = None,
    link: Annotated[str | None, option("A gene's page, with {gene} or {name} in it.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Rank gene sets by their predicted score, with the evidence for each.

    The lowest and the highest untested sets of the screen's genes, unless asked for others.

    Rerun the command to resume one that was stopped. Under torchrun, processes share the work.

    Example: deltacell predict runs/demo --sets pairs --html pairs.html
    """
    from deltacell import verbs
    from deltacell.predict.ranking_file import write_network, write_table
    from deltacell.report.predict import print_ranking, ranking_page
    from deltacell.report.progress import progress_bar
    from deltacell.train.predictor import best_by_validation

    given = sets
    if sets.split()[:1] == ["with"]:
        runs, more = _runs_and_genes(runs)
        given = " ".join([sets, *more])
    name = re.sub(r"[^\w.]+", "-", Path(sets).stem if Path(sets).is_file() else given)
    out = out or Path(f"predicted-{name}.parquet")
    # What surely cannot be written is an error before hours of work.
    if any(place is not None and place.is_dir() for place in (out, html, csv, xlsx, json)):
        raise InputError("a directory is given; expected a file to write", code="is-a-directory")
    suffix = out.suffix.lower(), ".xlsx" if xlsx is None else xlsx.suffix.lower()
    if suffix[0] in (".html", ".csv", ".tsv", ".xlsx", ".json") or suffix[1] != ".xlsx":
        raise InputError("--out is a .parquet file, and --xlsx a .xlsx", code="wrong-suffix")
    options: dict[str, Any] = {"top": top, "above": above, "below": below, "status": status}
    options |= {"genes": genes, "size": size, "distance": distance, "linked": linked}
    options |= {"cautious": cautious, "out": out, "overwrite": overwrite, "weights": weights}
    try:
        chosen = [best_by_validation(runs)] if best else runs
        ranking = verbs.rank(chosen, given, tell=tell, **options)
    except verbs.Stopped as stopped:
        raise typer.Exit(128 + stopped.args[0]) from None
    if ranking is None:
        return
    with progress_bar() as bar:
        result = ranking.page_data(link, bar) if html or json else ranking.to_json()
    # Files first: a reader of the output that goes away, as `head` does, must not cost them.
    write_json(json, result)
    if html is not None:
        write_text(html, ranking_page(result), what="the page")
    for table in (csv, xlsx):
        if table is not None:
            write_table(ranking.path, table)
    if cytoscape is not None:
        edges, nodes = (Path(f"{cytoscape}.{kind}.tsv") for kind in ("edges", "nodes"))
        write_network(ranking.path, edges, nodes)
    print_ranking(result)
    typer.echo(f"All {result['counts']['rows']:,} rows: {out}")


def why(
    runs: Annotated[list[str], typer.Argument(help='Runs, then the genes: "RAD52 RAD51".')],
    weights: Weights = "best",
    html: Html = None,
    json: Json = None,
) -> None:
    """Explain the score of one gene set: what carries it, and the measured sets next to it.

    Several runs are explained together.

    Example: deltacell why runs/demo "RAD52 RAD51" --html why.html
    """
    from deltacell import verbs
    from deltacell.report.predict import print_explained_set

    paths, genes = _runs_and_genes(runs)
    found = verbs.why(paths, *genes, weights=weights)
    write_json(json, found.result)
    if html is not None:
        found.page(html)
    print_explained_set(found.result)


def _runs_and_genes(words: list[str]) -> tuple[list[str], list[str]]:
    """Return which words are run directories, and the genes of the others."""
    # A gene name has no folder before it.
    runs = [w for w in words if Path(w, "run.json").is_file() or Path(w).name != w]
    genes = " ".join(word for word in words if word not in runs)
    return runs, genes.replace(",", " ").split()
