"""The tables of an import: ten questions against brute force, missing values, and their files."""

import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from deltacell.base.errors import InputError
from deltacell.cell import Annotation, Cell
from deltacell.data.imported import Imported
from deltacell.data.knowledge import (
    SCHEMAS,
    Knowledge,
    knowledge_of,
    query,
    with_flat_columns,
    write_knowledge,
    write_result,
)
from deltacell.screen import Genotypes, Screen

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "questions.md"
QUESTIONS = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
N_TERMS = 12


@pytest.fixture(scope="module")
def imported():
    """The demo cell with two screens and an annotation, of which some genes have no term."""
    cell = Cell.synthetic("demo")
    rng = np.random.default_rng(0)
    gene = rng.integers(0, cell.n_genes - 50, 200)
    term = rng.integers(0, N_TERMS, 200)
    terms = [f"complex {number}" for number in range(N_TERMS)]
    annotation = Annotation.from_pairs("complexes", gene, term, terms, n_genes=cell.n_genes)
    with_terms = Cell(
        cell.genes,
        cell.relations,
        cell.metabolism,
        cell.features,
        [annotation],
        synthetic=cell.synthetic_recipe,
    )
    first = Screen.synthetic(with_terms, n=2_000)
    shuffled = np.random.default_rng(1).permutation(first.column("score"))
    second = first.with_scores(shuffled.astype(np.float32))
    return Imported(
        with_terms, {"first": first, "second": second, "pairs": _pairs_of_triples(first)}
    )


def _pairs_of_triples(screen):
    """Return a screen of all pairs of the first ten triples, without scores."""
    triples = [genes for genes in screen.genotypes if len(genes) == 3][:10]
    pairs = {pair for genes in triples for pair in combinations(sorted(genes.tolist()), 2)}
    return Screen.build(screen.genes, Genotypes.of(sorted(pairs)), study="pairs")


@pytest.fixture(scope="module")
def knowledge(imported):
    return knowledge_of(imported)


class Facts:
    """The same import as Python sets and lists, for answers by brute force."""

    def __init__(self, imported):
        cell = imported.cell
        names = cell.genes.systematic
        self.terms = {name: set() for name in names}
        [annotation] = cell.annotations.values()
        matrix = annotation.matrix.toarray()
        for gene, term in zip(*np.nonzero(matrix), strict=True):
            self.terms[names[gene]].add(annotation.terms[term])
        self.edges = {}
        for relation in cell.relations.values():
            source, target, _ = relation.edges()
            ends = zip(source.tolist(), target.tolist(), strict=True)
            self.edges[relation.name] = {(names[a], names[b]) for a, b in ends}
        metabolism = cell.metabolism
        self.clauses = {}
        for clause, reaction in enumerate(metabolism.clause_reaction.tolist()):
            start, end = metabolism.clause_offsets[clause : clause + 2]
            members = {names[gene] for gene in metabolism.clause_genes[start:end]}
            self.clauses.setdefault(reaction, []).append(members)
        self.pathways = metabolism.pathways
        self.rows = []
        for name, screen in imported.screens.items():
            scores = screen.column("score").tolist()
            p_values = screen.column("p_value").tolist()
            for genes, score, p_value in zip(screen.genotypes, scores, p_values, strict=True):
                deleted = tuple(sorted(names[gene] for gene in genes.tolist()))
                self.rows.append((name, deleted, score, p_value))
        self.pairs = [row for row in self.rows if len(row[1]) == 2]
        self.measured = {row[1] for row in self.pairs}

    def hits(self, low=-0.08, high=0.08):
        return [row for row in self.pairs if (row[2] < low or row[2] > high) and row[3] < 0.05]


def shared_terms(facts):
    counts = Counter()
    for _, (first, second), *_ in facts.hits():
        counts.update(("complexes", term) for term in facts.terms[first] & facts.terms[second])
    return {(*term, n) for term, n in counts.items()}


def opposite_signs(facts):
    positive = {(name, genes) for name, genes, score, _ in facts.hits() if score > 0}
    negative = {(name, genes) for name, genes, score, _ in facts.hits() if score < 0}
    return {g for name, g in positive for other, h in negative if g == h and name != other}


def two_hops(facts):
    links = {name: set() for name in facts.terms}
    for first, second in facts.edges["physical"]:
        links[first].add(second)
        links[second].add(first)
    negative = facts.hits(high=np.inf)
    return {(a, c, b) for _, (a, b), *_ in negative for c in links[a] & links[b]}


def isozymes(facts):
    alternatives = set()
    for clauses in facts.clauses.values():
        for first, second in combinations(clauses, 2):
            alternatives.update(tuple(sorted((a, b))) for a in first for b in second if a != b)
    rows = enumerate(facts.rows)
    return {(*g, i, score) for i, (_, g, score, _) in rows if len(g) == 2 and g in alternatives}


def never_measured(facts):
    sizes = Counter(term for terms in facts.terms.values() for term in terms)
    small = {term for term, size in sizes.items() if size <= 20}
    pairs = combinations(sorted(facts.terms), 2)
    return {p for p in pairs if facts.terms[p[0]] & facts.terms[p[1]] & small} - facts.measured


def regulators(facts):
    controls = {}
    for source, target in facts.edges["regulatory"]:
        controls.setdefault(target, set()).add(source)
    counts = Counter()
    for first, second in {genes for _, genes, *_ in facts.hits()}:
        counts.update(controls.get(first, set()) & controls.get(second, set()))
    return set(counts.items())


def triples(facts):
    of_three = {row[1] for row in facts.rows if len(row[1]) == 3}
    return {genes for genes in of_three if set(combinations(genes, 2)) <= facts.measured}


def most_hits(facts):
    counts = Counter()
    for genes in {genes for _, genes, *_ in facts.hits()}:
        counts.update(genes)
    return set(counts.items())


def unexplained(facts):
    linked = {tuple(sorted(edge)) for edges in facts.edges.values() for edge in edges}
    return {genes for _, genes, *_ in facts.hits()} - linked


def pathways(facts):
    of_gene = {name: set() for name in facts.terms}
    for reaction, clauses in facts.clauses.items():
        for gene in set().union(*clauses):
            of_gene[gene].update(facts.pathways[reaction])
    counts = Counter()
    for _, (first, second), *_ in facts.hits():
        counts.update((p, q) for p in of_gene[first] for q in of_gene[second])
    return {(*pair, n) for pair, n in counts.items()}


ANSWERS = (
    *(shared_terms, opposite_signs, two_hops, isozymes, never_measured),
    *(regulators, triples, most_hits, unexplained, pathways),
)


@pytest.mark.parametrize(
    ("sql", "answer"),
    [pytest.param(*q, id=q[1].__name__) for q in zip(QUESTIONS, ANSWERS, strict=True)],
)
def test_the_answer_to_a_question_is_that_of_brute_force(sql, answer, knowledge, imported):
    rows = knowledge.query(sql).rows()
    expected = answer(Facts(imported))
    assert len(rows) == len(set(rows))
    assert set(rows) == expected
    assert len(expected) > 0


def test_a_missing_number_is_null(imported):
    scores = imported.screens["first"].column("score").copy()
    scores[3] = np.nan
    screen = imported.screens["first"].with_scores(scores)
    tables = knowledge_of(Imported(imported.cell, {"first": screen})).tables
    assert tables["measurements"]["score"].null_count() == 1
    assert not any(
        table[name].is_nan().any()
        for table in tables.values()
        for name in table.select(pl.col(pl.Float32, pl.Float64)).columns
    )


def test_tables_are_read_back_and_damage_is_found(knowledge, tmp_path, refused):
    write_knowledge(knowledge, tmp_path / "tables")
    again = Knowledge.load(tmp_path / "tables")
    assert list(again.tables) == list(SCHEMAS)
    assert all(again.tables[name].equals(knowledge.tables[name]) for name in SCHEMAS)
    file = tmp_path / "tables" / "pairs.parquet"
    file.write_bytes(file.read_bytes()[:-1])
    refused("damaged", Knowledge.load, tmp_path / "tables")


@pytest.mark.parametrize("with_cell", [True, False])
def test_a_result_with_scores_is_a_screen(knowledge, imported, with_cell):
    sql = "select gene1, gene2, score from pairs where screen = 'first'"
    screen = Screen.from_query(knowledge, sql, imported.cell if with_cell else None)
    of_two = np.diff(imported.screens["first"].offsets) == 2
    expected = imported.screens["first"].take(of_two)
    assert np.array_equal(screen.keys, expected.keys)
    assert np.array_equal(screen.column("score"), expected.column("score"))


def test_the_tables_have_the_genes_of_the_cell(knowledge, imported):
    assert knowledge.genes == imported.cell.genes


def test_a_result_is_written_as_what_its_suffix_says(knowledge, tmp_path, refused):
    table = knowledge.query(
        "select gene, list(term order by term) as t from annotations group by 1"
    )
    for suffix, read in ((".parquet", pl.read_parquet), (".json", pl.read_json)):
        write_result(table, tmp_path / f"rows{suffix}")
        assert read(tmp_path / f"rows{suffix}").equals(table)
    for suffix, separator in ((".csv", ","), (".TSV", "\t")):
        write_result(table, tmp_path / f"rows{suffix}")
        rows = pl.read_csv(tmp_path / f"rows{suffix}", separator=separator)
        assert rows.equals(with_flat_columns(table))
    refused("wrong-suffix", write_result, table, tmp_path / "rows.xlsx")


def test_sql_asks_one_screen_or_all(imported, tmp_path, refused):
    imported.save(tmp_path / "import")
    n_measured = sum(map(len, imported.screens.values()))
    counted = query(tmp_path / "import", "select count(*) from measurements")
    assert counted.item() == n_measured
    one = query(tmp_path / "import", "select count(*) from screen", screen="first")
    assert one.item() == 2_000
    refused("unknown-screen", query, tmp_path / "import", "select * from screen")
    error = refused("sql-error", query, tmp_path / "import", "select * from nothing")
    assert "pairs has measurement" in error.fix
    with pytest.raises(InputError):
        query(tmp_path / "import", "select * from read_csv('/etc/passwd')")
