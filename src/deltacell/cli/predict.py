"""`deltacell predict`: which gene sets to test next."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deltacell.cli.json_file import write_json

if TYPE_CHECKING:
    from deltacell.predict.request import Request


def predict(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN", help="Directories of runs: several give a mean and a spread."
        ),
    ],
    sets: Annotated[
        str | None,
        typer.Option(help="pairs, triples, with GENE..., or a file with a gene set a line."),
    ] = None,
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
    explain: Annotated[
        str | None, typer.Option(help='Deprecated, use deltacell why: explain one set, "A B C".')
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
    from deltacell.errors import InputError
    from deltacell.predict.request import WITH, Request, read_sets_option, read_status_option

    if (sets is None) == (explain is None):
        raise InputError(
            "say what to rank with --sets, or which set to explain with --explain; one of both",
            fix="Such as: deltacell predict RUN --sets pairs",
        )
    _use_threads(threads)
    with_genes = sets is not None and sets.split()[:1] == [WITH]
    paths = [word for word in runs if _is_run(word, genes_too=with_genes)]
    more = [word for word in runs if word not in paths]
    if explain is not None:
        for option, path in (
            *(("--out", out), ("--csv", csv)),
            *(("--xlsx", xlsx), ("--cytoscape", cytoscape)),
        ):
            if path is not None:
                raise InputError(
                    f"{option} is for a ranking; --explain writes none",
                    fix="Leave it out; --json FILE writes the explanation to a file.",
                )
        genes_named = explain.replace(",", " ").split()
        _explain([Path(word) for word in runs], weights, genes_named, html, json)
        typer.secho(
            f'--explain will be removed in 0.3: deltacell why {" ".join(runs)} "{explain}"',
            err=True,
        )
        return
    assert sets is not None
    if best and paths:
        from deltacell.train.loaded_run import best_by_validation

        paths = [str(best_by_validation(paths))]
    asked = read_sets_option(sets, more)
    # No gene's name has a folder before it.
    absent = next((word for word in more if Path(word).name != word), None)
    if absent is not None:
        raise InputError(
            f"'{absent}' is not a run directory",
            fix="Give directories that `deltacell train` has made.",
        )
    if not paths:
        words = " ".join((sets, *more))
        raise InputError(
            "no run directory is given", fix=f"Such as: deltacell predict RUN --sets {words}"
        )
    request = Request(
        **asked,
        size=size,
        genes=_genes_option(genes),
        top=top,
        above=above,
        below=below,
        status=None if status is None else read_status_option(status),
        linked=linked,
        cautious=cautious,
        distance=distance,
    )
    out = Path(f"predicted-{_name(request)}.parquet") if out is None else out
    if xlsx is not None and xlsx.suffix.lower() != ".xlsx":
        xlsx = xlsx.with_name(f"{xlsx.name}.xlsx")
    places = {"--out": out, "--html": html, "--csv": csv, "--xlsx": xlsx, "--json": json}
    _check_places(out, places)
    tables = [table for table in (csv, xlsx) if table is not None]
    options = {"request": request, "weights": weights, "overwrite": overwrite}
    _rank([Path(path) for path in paths], options, out, html, tables, cytoscape, json, link)


def _rank(
    paths: list[Path],
    asked: dict[str, Any],
    out: Path,
    html: Path | None,
    tables: list[Path],
    cytoscape: Path | None,
    json: Path | None,
    link: str | None,
) -> None:
    from deltacell.cli.text_file import write_text
    from deltacell.predict.ranking import write_network, write_table
    from deltacell.predict.verbs import Stopped, rank
    from deltacell.report.predict import print_ranking
    from deltacell.report.progress import progress_bar
    from deltacell.report.ranking_page import ranking_page
    from deltacell.report.terminal import printable
    from deltacell.train.processes import exit_code

    try:
        ranking = rank(
            paths,
            out=out,
            tell=lambda sentence: typer.secho(printable(sentence), err=True),
            **asked,
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
    for path in tables:
        write_table(ranking.path, path)
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
    from deltacell.errors import InputError

    paths = [word for word in runs if _is_run(word, genes_too=True)]
    genes = [gene for word in runs if word not in paths for gene in word.replace(",", " ").split()]
    if not paths:
        raise InputError(
            "no run directory is given", fix=f'Such as: deltacell why RUN "{" ".join(genes)}"'
        )
    _explain([Path(path) for path in paths], weights, genes, html, json)


def _explain(
    paths: list[Path], weights: str, genes: list[str], html: Path | None, json: Path | None
) -> None:
    from deltacell.predict.verbs import why as verb
    from deltacell.report.predict import print_explained_set

    found = verb(paths, *genes, weights=weights)
    write_json(json, found.result)
    if html is not None:
        found.page(html)
    print_explained_set(found.result)


def _check_places(out: Path, places: Mapping[str, Path | None]) -> None:
    """Raise where something cannot be written for sure, before hours of work."""
    from deltacell.errors import InputError

    for option, path in places.items():
        if path is not None and path.is_dir():
            raise InputError(
                f"{option} is '{path}', which is a directory; expected a file",
                fix=f"Such as: {option} {path / 'ranking'}.{_ENDINGS[option]}",
            )
    meant = {f".{ending}": option for option, ending in _ENDINGS.items()} | {".tsv": "--csv"}
    option = meant.get(out.suffix.lower(), "--out")
    if option != "--out":
        raise InputError(
            f"--out is '{out}', and the file of a ranking is Parquet",
            fix=f"Such as: --out {out.with_suffix('.parquet')} {option} {out}",
        )


_ENDINGS = {
    "--out": "parquet",
    "--html": "html",
    "--csv": "csv",
    "--xlsx": "xlsx",
    "--json": "json",
}


def _use_threads(threads: int | None) -> None:
    from deltacell.errors import InputError

    if threads is None:
        return
    if threads < 1:
        raise InputError(f"--threads is {threads}; expected 1 or more")
    import torch

    torch.set_num_threads(threads)


def _is_run(word: str, *, genes_too: bool) -> bool:
    """Return whether a word names a run; where genes stand too, only what surely is one."""
    path = Path(word)
    return (path / "run.json").is_file() or (path.exists() and not genes_too)


def _genes_option(words: str) -> str | Path:
    from deltacell.errors import InputError

    if words in ("screen", "all"):
        return words
    if not Path(words).is_file():
        raise InputError(
            f"--genes is '{words}', and there is no file of that name; expected screen, all, or a "
            "file of gene names"
        )
    return Path(words)


def _name(request: Request) -> str:
    """Return what a ranking is called where no name was given."""
    if request.file is not None:
        return request.file.stem
    words = "-".join((request.sets, *request.given))
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in words)
