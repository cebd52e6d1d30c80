"""`deltacell predict`: which gene sets to test next, and `deltacell why`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.program import write_json


def predict(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Run directories: several give a mean and a spread."),
    ],
    sets: Annotated[
        str,
        typer.Option(help="pairs, triples, with GENE..., or a file with one gene set per line."),
    ],
    genes: Annotated[
        str, typer.Option(help="What sets are made of: genes of the screen, all, or a file.")
    ] = "screen",
    top: Annotated[
        int | None, typer.Option(help="Sets to keep of each end.", show_default="1000")
    ] = None,
    above: Annotated[
        float | None, typer.Option(help="Keep all with this score or more, at that end.")
    ] = None,
    below: Annotated[
        float | None, typer.Option(help="Keep all with this score or less, at that end.")
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(
            help="Sets to keep: untested, tested, measured, commas between; or any.",
            show_default="untested; of a file any",
        ),
    ] = None,
    linked: Annotated[
        bool, typer.Option("--linked", help="Keep sets of linked genes too; they are marked.")
    ] = False,
    cautious: Annotated[
        bool,
        typer.Option(
            "--cautious",
            help="Of several runs: rank and cut off by the score less extreme by its spread.",
        ),
    ] = False,
    distance: Annotated[
        int, typer.Option(help="Linked are genes with fewer base pairs between them.")
    ] = 200_000,
    size: Annotated[
        int | None,
        typer.Option(help="With 'with': genes of a set.", show_default="one more than given"),
    ] = None,
    best: Annotated[
        bool,
        typer.Option("--best", help="Of several runs: use the one with the best validation score."),
    ] = False,
    weights: Annotated[str, typer.Option(help="best, chosen by validation, or last.")] = "best",
    out: Annotated[
        Path | None,
        typer.Option(help="The Parquet file of all that is kept.", show_default="by --sets"),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Also write a page with the evidence: self-contained HTML.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="Also write all rows as a table; with tabs if FILE.tsv.")
    ] = None,
    xlsx: Annotated[Path | None, typer.Option(help="Also write all rows as a workbook.")] = None,
    cytoscape: Annotated[
        Path | None,
        typer.Option(
            metavar="PREFIX",
            help="Also write the tables PREFIX.edges.tsv and PREFIX.nodes.tsv for Cytoscape.",
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the first rows as JSON.")] = None,
    link: Annotated[
        str | None,
        typer.Option(
            help="Address of a gene's page, with {gene} or {name} in it, for --html.",
            show_default="SGD's, for yeast",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a ranking of another request.")
    ] = False,
    threads: Annotated[int | None, typer.Option(help="Threads; all cores by default.")] = None,
) -> None:
    """Rank gene sets by their predicted score, with the evidence for each.

    The lowest and the highest untested sets of the screen's genes, unless asked for others.

    Rerun the command to resume one that was stopped. Under torchrun, processes share the work.

    Example: deltacell predict runs/demo --sets pairs --html pairs.html
    """
    from deltacell.cli.program import write_text
    from deltacell.errors import InputError
    from deltacell.predict.ranking_file import write_network, write_table
    from deltacell.predict.request import WITH, Request, read_sets_option, read_status_option
    from deltacell.predict.verbs import Stopped, rank
    from deltacell.report.predict import print_ranking
    from deltacell.report.progress import progress_bar
    from deltacell.report.ranking_page import ranking_page
    from deltacell.report.terminal import printable
    from deltacell.train.loaded_run import best_by_validation
    from deltacell.train.processes import exit_code

    if threads is not None:
        import torch

        if threads < 1:
            raise InputError(f"--threads is {threads}; expected 1 or more", code="too-few-threads")
        torch.set_num_threads(threads)
    if genes not in ("screen", "all") and not Path(genes).is_file():
        raise InputError(
            f"--genes is '{genes}'; expected screen, all, or a file of gene names",
            code="no-such-file",
        )
    with_genes = sets.split()[:1] == [WITH]
    paths, more = _runs_and_genes(runs, strict=with_genes)
    request = Request(
        **read_sets_option(sets, more),
        size=size,
        genes=genes if genes in ("screen", "all") else Path(genes),
        top=top,
        above=above,
        below=below,
        status=None if status is None else read_status_option(status),
        linked=linked,
        cautious=cautious,
        distance=distance,
    )
    if not paths:
        raise _no_run()
    if best:
        paths = [best_by_validation(paths)]
    if out is None:
        words = "-".join((request.sets, *request.given))
        name = words if request.file is None else request.file.stem
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        out = Path(f"predicted-{safe}.parquet")
    if xlsx is not None and xlsx.suffix.lower() != ".xlsx":
        xlsx = xlsx.with_name(f"{xlsx.name}.xlsx")
    # What surely cannot be written is an error before hours of work.
    places = {"--out": out, "--html": html, "--csv": csv, "--xlsx": xlsx, "--json": json}
    for option, place in places.items():
        if place is not None and place.is_dir():
            raise InputError(
                f"{option} is '{place}', a directory; expected a file", code="is-a-directory"
            )
    if out.suffix.lower() in (".html", ".csv", ".tsv", ".xlsx", ".json"):
        raise InputError(
            f"--out is '{out}', and a ranking is a Parquet file",
            code="not-parquet",
            fix="Name it FILE.parquet, and give --html, --csv, --xlsx or --json too.",
        )
    try:
        ranking = rank(
            paths,
            request=request,
            weights=weights,
            overwrite=overwrite,
            out=out,
            tell=lambda sentence: typer.secho(printable(sentence), err=True),
        )
    except Stopped as stopped:
        raise typer.Exit(exit_code(stopped.signal)) from None
    if ranking is None:
        return
    if html is None and json is None:
        result = ranking.to_json()
    else:
        with progress_bar() as bar:
            result = ranking.page_data(link, bar)
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
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN... GENES", help='Runs, then the genes: "RAD52 RAD51".'),
    ],
    weights: Annotated[str, typer.Option(help="best, chosen by validation, or last.")] = "best",
    html: Annotated[Path | None, typer.Option(help="Also write a self-contained page.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write it to a file.")] = None,
) -> None:
    """Explain the score of one gene set: what carries it, and the measured sets next to it.

    Several runs are explained together.

    Example: deltacell why runs/demo "RAD52 RAD51" --html why.html
    """
    from deltacell.predict.verbs import why as explain
    from deltacell.report.predict import print_explained_set

    paths, more = _runs_and_genes(runs, strict=True)
    if not paths:
        raise _no_run()
    genes = [gene for word in more for gene in word.replace(",", " ").split()]
    found = explain(paths, *genes, weights=weights)
    write_json(json, found.result)
    if html is not None:
        found.page(html)
    print_explained_set(found.result)


def _runs_and_genes(words: list[str], *, strict: bool) -> tuple[list[Path], list[str]]:
    """Return which words are run directories, ``strict`` where genes may stand beside them."""
    from deltacell.errors import InputError

    is_run = [
        (Path(word) / "run.json").is_file() or (Path(word).exists() and not strict)
        for word in words
    ]
    paths = [Path(word) for word, is_one in zip(words, is_run, strict=True) if is_one]
    more = [word for word, is_one in zip(words, is_run, strict=True) if not is_one]
    # A gene name has no folder before it.
    absent = next((word for word in more if Path(word).name != word), None)
    if absent is not None:
        raise InputError(
            f"'{absent}' is not a run directory",
            code="not-a-run",
            fix="Give directories that `deltacell train` made.",
        )
    return paths, more


def _no_run() -> Exception:
    from deltacell.errors import InputError

    return InputError("no run directory is given", code="no-run", fix="Such as: runs/demo")
