"""Renderings of a ranking, of the explanation of one gene set, and of the demo."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from urllib.parse import quote

from deltacell.base.rendering import Values
from deltacell.base.text import count_text
from deltacell.report.page import Axis, ScoreScale, is_known, json_block, page
from deltacell.report.terminal import Piece, few, print_line, print_pieces, print_table, shown

MOST_ROWS = 2000  # rows on the page; the Parquet file has all of them
MOST_SETS = 20  # gene sets on the page of the demo
MOST_VOTES = 20  # votes in the table of an explained set
MOST_VOTE_LINES = 5  # votes that are told as a line
MOST_STUDY_LINES = 3  # measured sets of a study that are listed of one set
MOST_NAMES = 8  # names of complexes, pathways, reactions or terms in a line
SENTENCES = 5  # sentences that are not folded away, unless there are more warnings
COLOURS = 10  # colours of relations; further relations reuse them with dashes
DASHES = 3

_ENDS = (None, "lowest", "highest")
_PARTS = ("training", "validation", "test")
_SIGNED = "{:+.4f}".format
_FORMATS: dict[str, Callable[..., str]] = {
    "names": " ".join,
    "deleted": shown,
    "distance": "{:.2g}".format,
    "weight": "{:.3g}".format,
    "score": _SIGNED,
    "measured": _SIGNED,
    "predicted": _SIGNED,
    "contribution": _SIGNED,
}
_COLUMNS = (
    *("rank", "genes", "score", "spread", "low", "high", "status", "measured", "linked"),
    *("relations", "pathways", "complexes"),
)


def print_ranking(result: Values, most: int = 10) -> None:
    """Print how accurate it is, the first rows of each end, and what is said about the ranking."""
    for sentence in result["accuracy"]:
        print_line(sentence, style="bold")
    for end in _ENDS:
        of_end = [row for row in result["rows"] if row["end"] == end]
        rows = [_printed_row(row) for row in of_end[:most]]
        columns = [key for key in _COLUMNS if any(row[key] for row in rows)]
        if rows:
            n_rows = result["counts"][end or "listed"]
            cells = [[row[key] for key in columns] for row in rows]
            title = f"{_title_of_end(result, end)} ({len(rows):,} of {n_rows:,})"
            print_table(title, columns, cells)
    if not result["rows"]:
        print_line("No gene set matches the request.")
    for sentence in result["sentences"]:
        print_line(sentence)
    for agreement in result["agreement"]:
        if agreement["pearson"] is not None:
            print_line(
                "Pearson correlation of predicted and measured scores: "
                f"{agreement['pearson']:.3f} on {agreement['sets']:,} sets of the "
                f"{agreement['part']} part; `deltacell evaluate` uses all.",
            )


def _title_of_end(result: Values, end: str | None) -> str:
    if end is None:
        return "in order of increasing score"
    meaning = result.get("low_means" if end == "lowest" else "high_means")
    return f"{end} scores" if meaning is None else f"{end} scores: {meaning}"


def _printed_row(row: Values) -> Values:
    """Return a row of a ranking with texts in place of numbers and lists."""
    numbers = {
        key: "" if row[key] is None else f"{row[key]:.4f}"
        for key in ("score", "spread", "low", "high", "measured")
    }
    lists = {key: few(row[key], 3) for key in ("relations", "pathways", "complexes")}
    is_linked = "yes" if row["linked"] else ""
    return {**row, **numbers, **lists, "linked": is_linked, "genes": " ".join(row["names"])}


def print_explained_set(result: Values) -> None:
    """Print why a set scores as it does: the sentences, the evidence and the tables."""
    print_line(result["title"], style="bold")
    lines = [f"{kind}: {text}" for kind, text in evidence_lines({**result, "votes": ()})]
    for sentence in [*result["sentences"], *lines]:
        print_line(sentence)
    genes = list(result["gene_contributions"])
    rest = result["other_genes"]
    if rest["genes"]:
        name = count_text(rest["genes"], "other gene")
        genes.append({**rest, "name": name, "gene": "", "deleted": False})
    title = "What the genes' vectors contribute"
    of_genes = _table(title, "name gene deleted contribution", genes)
    print_pieces([*_tables(result), of_genes])


def explained_page(result: Values) -> str:
    """Render the explanation of one set, from `predict.explain_set`, as self-contained HTML."""
    return page(
        "why",
        result=result,
        runs=count_text(len(result["runs"]), "run"),
        lines=evidence_lines(result),
        tables=[table for table in _tables(result) if table.rows],
        numbers={"measured", "weight", "distance", "predicted", "seed", "score", "contribution"},
    )


def _tables(result: Values) -> list[Piece]:
    votes = [_vote_row(vote) for vote in result["votes"][:MOST_VOTES]]
    runs = [{**run, "run": run["name"]} for run in result["runs"]]
    of_votes = "genes measured in_place_of relation weight run"
    of_nearest = "genes distance measured predicted part"
    return [
        _table("The measured sets it is based on", of_votes, votes),
        _table("The nearest measured sets", of_nearest, result["nearest"]),
        _table("What the relations contribute", "relation links contribution", result["relations"]),
        _table("What each run predicts", "run seed model score", runs),
    ]


def _vote_row(vote: Values) -> Values:
    replacement = f"{vote['by']} for {vote['replaced']}"
    return {**vote, "measured": vote["score"], "in_place_of": replacement}


def _table(title: str, columns: str, rows: Sequence[Values]) -> Piece:
    """Return a table with columns that are separated by spaces; the genes of sets are names."""
    keys = ["names" if key == "genes" else key for key in columns.split()]
    cells = [[_formatted(key, row[key]) for key in keys] for row in rows]
    return Piece(title, [key.replace("_", " ") for key in columns.split()], cells)


def _formatted(key: str, value: object) -> object:
    return _FORMATS[key](value) if key in _FORMATS else value


def evidence_lines(known: Values) -> list[tuple[str, str]]:
    """Return the evidence for a row of a ranking or an explained set: pairs of kind and text."""
    nothing: Values = {"votes": (), "lost": (), "terms": (), "studies": ()}
    known = {**nothing, **known, **known.get("evidence", {})}
    lines = [("measured next to it", _vote_text(vote)) for vote in known["votes"][:MOST_VOTE_LINES]]
    for study in known["studies"]:
        lines += [("other studies", text) for text in _study_texts(study)]
    terms = [f"{term['term']} ({term['annotation']})" for term in known["terms"]]
    names_by_kind = {
        "joined by": ", ".join(known["relations"]),
        "shared complexes": few(known["complexes"], MOST_NAMES),
        "shared pathways": few(known["pathways"], MOST_NAMES),
        "reactions lost together": few(known["lost"], MOST_NAMES),
        "shared terms": few(terms, MOST_NAMES),
    }
    return lines + [(kind, names) for kind, names in names_by_kind.items() if names]


def _vote_text(vote: Values) -> str:
    names = " ".join(vote["names"])
    exchange = f"with {vote['by']} in place of {vote['replaced']} by {vote['relation']}"
    return f"{names} {vote['score']:+.4f}, {exchange}"


def _study_texts(study: Values) -> list[str]:
    """Return what a study of the context says of a set: its score, and what it measured nearby."""
    name = study["study"]
    texts = []
    if study["measured"] is not None:
        texts.append(f"{name}: measured {study['measured']:+.4g}{', a hit' * study['is_hit']}")
    elif study["is_tested"] is False:
        texts.append(f"{name}: tested, and not a hit")
    if study["expected"] is not None:
        texts.append(f"{name}: its predictor expects {study['expected']:+.4g}")
    votes = study["votes"][:MOST_STUDY_LINES]
    return [*texts, *(f"{name}, next to it: {_vote_text(vote)}" for vote in votes)]


class _Evidence(NamedTuple):
    """What connects the genes of a row, as pairs of kind and text."""

    row: Values
    lines: list[tuple[str, str]]


class _Drawing:
    """What the script of a ranking's page draws, with numbers in place of genes and relations."""

    def __init__(self, rows: Sequence[Values], points: Sequence[Values], relations: Sequence[str]):
        self.scale = ScoreScale.of(rows)
        # The number of a relation determines its colour and dashes.
        self.relations = {name: number for number, name in enumerate(relations)}
        self.names: dict[str, str] = {}
        for genes_of_set in (*rows, *points):
            self.names |= zip(genes_of_set["genes"], genes_of_set["names"], strict=True)
        self._places = {gene: place for place, gene in enumerate(self.names)}

    def styles(self) -> dict[str, tuple[int, int]]:
        """Return the number of the colour and of the dashes of each relation."""
        return {
            name: (number % COLOURS, number // COLOURS % DASHES)
            for name, number in self.relations.items()
        }

    def places(self, genes: Iterable[str]) -> list[int]:
        """Return the numbers of genes."""
        return [self._places[gene] for gene in genes]

    def row(self, evidence: _Evidence) -> Values:
        """Return a row of the list."""
        row = evidence.row
        spread = row["spread"]
        spread_text = "" if spread is None else f" ± {self.scale.text(spread, False)}"
        measured = row["measured"]
        same = ("end", "rank", "status", "linked", "pathways", "complexes")
        return {
            **{key: row[key] for key in same},
            "genes": self.places(row["genes"]),
            "score": self.scale.text(row["score"]) + spread_text,
            "measured": None if measured is None else self.scale.text(measured),
            "interval": self._interval(row),
            "low": _value(row["low"]),
            "high": _value(row["high"]),
            "value": _value(row["score"]),
            "measured_value": _value(measured),
            "relations": [self.relations[name] for name in row["relations"]],
            "links": self._links(row),
            "evidence": evidence.lines,
        }

    def _interval(self, row: Values) -> str | None:
        if not is_known(row["low"]):
            return None
        return f"{self.scale.text(row['low'])} to {self.scale.text(row['high'])}"

    def _links(self, row: Values) -> list[list[int]]:
        """Return the links of a row: the places of two genes in the set, and the relation."""
        place_in_set = {gene: place for place, gene in enumerate(row["genes"])}
        links = []
        for link in row["links"]:
            first = place_in_set[link["first"]]
            second = place_in_set[link["second"]]
            links.append([first, second, self.relations[link["relation"]]])
        return links


def ranking_page(result: Values) -> str:
    """Render a ranking, from `Ranked.page_data`, as self-contained HTML."""
    rows = _rows_of_page(result["rows"])
    with_evidence = [_Evidence(row, evidence_lines(row)) for row in rows]
    # Points of the test part are drawn last, on top.
    points = sorted(result["measured"], key=lambda point: _PARTS.index(point["part"]))
    linked_by: set[str] = set()
    for row in rows:
        linked_by.update(row["relations"])
    drawing = _Drawing(rows, points, list(dict.fromkeys([*result["relations"], *linked_by])))
    styles = drawing.styles()
    facts = {fact["gene"]: [fact["description"], fact["link"]] for fact in _gene_facts(result)}
    data = {
        "rows": [drawing.row(evidence) for evidence in with_evidence],
        "points": [drawing.places(point["genes"]) for point in points],
        "genes": list(drawing.names.items()),
        "facts": [facts.get(gene, [None, None]) for gene in drawing.names],
        "file": result["file"].removesuffix(".parquet"),
        "relations": [[*style, name] for name, style in styles.items()],
    }
    return page(
        "ranking",
        scripts=("table.js", "ranking.js"),
        result=result,
        sentences=_folded(result["sentences"]),
        scatter=_scatter(points) if points else None,
        rows=with_evidence,
        scale=drawing.scale,
        value=_value,
        lines=styles,
        seen=[name for name in drawing.relations if name in linked_by],
        data=json_block(data),
    )


def _rows_of_page(rows: Sequence[Values]) -> list[Values]:
    """Return the first rows of each end, ``MOST_ROWS`` in all."""
    n_ends = len({row["end"] for row in rows})
    most = MOST_ROWS // max(1, n_ends)
    return [row for row in rows if row["rank"] <= most]


def _gene_facts(result: Values) -> Sequence[Values]:
    facts: Sequence[Values] = result.get("gene_facts", ())
    return facts


def _folded(sentences: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the sentences to show at once and those to fold away, which no warning is."""
    first, *others = sentences
    others.sort(key=lambda sentence: not sentence.startswith("Beware"))
    n_warnings = sum(sentence.startswith("Beware") for sentence in others)
    at_once = max(SENTENCES, 1 + n_warnings)
    ordered = [first, *others]
    return ordered[:at_once], ordered[at_once:]


def _value(value: float | None) -> str | None:
    return f"{value:.9g}" if is_known(value) else None


class _NetworkPoint(NamedTuple):
    """A measured set in the drawing."""

    x: float
    y: float
    measured_set: Values


def _scatter(points: Sequence[Values]) -> Values:
    """Return the drawing of predicted against measured scores."""
    across = Axis.over([point["measured"] for point in points], 66, 392)
    up = Axis.over([point["predicted"] for point in points], 252, 8)
    low = max(across.low, up.low)
    high = min(across.high, up.high)
    equal = [across.at(low), up.at(low), across.at(high), up.at(high)]
    drawn = [
        _NetworkPoint(across.at(point["measured"]), up.at(point["predicted"]), point)
        for point in points
    ]
    scores: list[float] = []
    for point in points:
        scores += [point["measured"], point["predicted"]]
    return {
        "points": drawn,
        "scale": ScoreScale(scores),
        "parts": list(dict.fromkeys(point["part"] for point in reversed(points))),
        "across": across.ticks(6),
        "up": up.ticks(5),
        "equal": equal if low < high else None,
    }


def demo_page(result: Values) -> str:
    """Render the demo, from `demo.results`, as self-contained HTML."""
    predictors = _predictors_of_demo(result)
    head = result["ranking"][:MOST_SETS]
    return page(
        "demo",
        result=result,
        head=head,
        scale=ScoreScale.of(head),
        predictors=predictors,
        share=_axis_of_correlations(predictors).share,
        # Quoting removes schemes such as javascript:, so a link always leads to a file.
        links=[{**link, "href": "./" + quote(link["file"])} for link in result["links"]],
    )


def _predictors_of_demo(result: Values) -> list[Values]:
    """Return models and baselines, the best first, and those without a correlation last."""
    unknown = dict.fromkeys(("parameters", "epochs", "seconds", "colour"))
    models = enumerate(result["models"])
    predictors: list[Values] = [{**model, "colour": number % 4} for number, model in models]
    predictors += [{**unknown, **baseline} for baseline in result["baselines"]]

    def unknown_last_and_best_first(predictor: Values) -> tuple[bool, float]:
        correlation = predictor["pearson"]["value"]
        return correlation is None, -(correlation or 0)

    return sorted(predictors, key=unknown_last_and_best_first)


def _axis_of_correlations(predictors: Sequence[Values]) -> Axis:
    """Return an axis with 0, all correlations and their intervals."""
    values = [0.0]
    for predictor in predictors:
        correlation = predictor["pearson"]
        ends = [correlation[key] for key in ("value", "low", "high")]
        values += [end for end in ends if end is not None]
    return Axis.over(values, 0.0, 1.0)
