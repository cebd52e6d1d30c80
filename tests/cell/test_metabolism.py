from dataclasses import replace

import numpy as np
import pytest

from deltacell.cell import Genes, Metabolism
from deltacell.cell.metabolism import MOST_CLAUSES, clauses_of
from deltacell.screen import Genotypes

GENES = Genes(["A", "B", "C", "D"], ["alpha", None, None, None])
PATHWAYS = (("sugar",), (), ("sugar", "lipid"), ("lipid",), ())


@pytest.fixture
def metabolism():
    return Metabolism.build(
        GENES,
        ["free", "single", "complex", "isozymes", "nested"],
        ["glc", "atp", "adp"],
        [(1, 0, -1), (1, 1, 2.0), (2, 2, 1), (2, 1, -1), (0, 0, 1), (3, 0, -1), (4, 2, 0.5)],
        ["", "alpha", "A and B", "C or D", "A and (C or D)"],
        [0, 0, -1000, 0, -10],
        [1000, 1000, 1000, 1000, 0],
    )


def build(rules, genes=GENES, **options):
    n = len(rules)
    names = [f"r{i}" for i in range(n)]
    return Metabolism.build(genes, names, ["m"], [], rules, [0] * n, [1] * n, **options)


def test_lost_together_are_reactions_that_no_smaller_set_loses(metabolism):
    sets = [["A"], ["A", "B"], ["C", "D"], ["A", "C", "D"]]
    lost = metabolism.lost_together(Genotypes.of([list(map(GENES.index, s)) for s in sets]))
    found = [[metabolism.reactions[r] for r in lost.of(i)] for i in range(len(sets))]
    assert found == [["single", "complex", "nested"], [], ["isozymes", "nested"], []]
    assert len(metabolism.lost_together(Genotypes.of([])).reactions) == 0


def test_a_gene_that_the_cell_lacks_is_refused_or_always_lives(refused):
    ambiguous = Genes(["A", "B"], aliases=[["x"], ["x"]])
    for rules, genes in ((["A and X", "Y"], GENES), (["x"], ambiguous)):
        refused("unknown-gene", build, rules, genes)
    metabolism = build(["A and X", "Y", "Y or A"], on_unknown="drop")
    lost = metabolism.lost_reactions(Genotypes.of([[0], [0, 1, 2, 3]]))
    assert [lost.of(b).tolist() for b in range(2)] == [[0], [0]]


def test_pathways_stay_with_their_reactions(metabolism):
    known = replace(metabolism, pathways=PATHWAYS)
    back = Metabolism.from_arrow(known.to_arrow(), known.n_genes)
    assert back.to_arrow() == known.to_arrow() != metabolism.to_arrow()
    assert known.take(np.array([3, 0])).pathways == PATHWAYS
    split = known.split()
    of = dict(zip(split.reactions, split.pathways, strict=True))
    assert list(of) == [
        *("free", "single", "complex", "complex_rev", "isozymes_iso1", "isozymes_iso2"),
        *("nested_iso1_rev", "nested_iso2_rev"),
    ]
    assert of["complex_rev"] == of["complex"] == ("sugar", "lipid")
    assert of["isozymes_iso1"] == of["isozymes_iso2"] == ("lipid",)
    assert "pathways" not in metabolism.to_arrow()
    assert build(["A", "B"], pathways=[[], []]).pathways == ()
    assert build(["A", "B"], pathways=[["p", "q", "p"], []]).pathways == (("p", "q"), ())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("clause_genes", 4), ("clause_reaction", 5), ("reaction", -1), ("metabolite", 3)),
        *(("clause_offsets", 99), ("pathways", PATHWAYS[1:])),
    ],
)
def test_indices_from_disk_are_not_trusted(metabolism, field, value, refused):
    forged = value
    if field != "pathways":
        forged = getattr(metabolism, field).copy()
        forged[-1] = value
    tables = replace(metabolism, **{field: forged}).to_arrow()
    refused("damaged", Metabolism.from_arrow, tables, 4)


@pytest.mark.parametrize(
    "changed",
    [*({"rules": ["A"]}, {"upper": []}, {"pathways": [["p"]]}), {"stoichiometry": [(2, 0, 1)]}],
)
def test_columns_that_do_not_fit_are_refused(changed, refused):
    columns = {"reactions": ["r", "s"], "metabolites": ["m"], "stoichiometry": []}
    columns |= {"rules": ["A", ""], "lower": [0, 0], "upper": [1, 1]}
    refused("bad-shape", lambda: Metabolism.build(GENES, **(columns | changed)))


@pytest.mark.parametrize(
    ("rule", "clauses"),
    [
        ("", ()),
        ("A or B and C", (("A",), ("B", "C"))),
        ("A AND (B Or C)", (("A", "B"), ("A", "C"))),
        ("A&B|C", (("A", "B"), ("C",))),
        ("B and A or A and B", (("A", "B"),)),
        ("A or (A and B)", (("A",), ("A", "B"))),
        ("(A or B) and (C or D)", (("A", "C"), ("A", "D"), ("B", "C"), ("B", "D"))),
        ("YAL001C-A and Q0045", (("Q0045", "YAL001C-A"),)),
    ],
)
def test_a_rule_is_its_alternatives(rule, clauses):
    assert clauses_of(rule) == clauses


@pytest.mark.parametrize(
    "rule",
    [
        *("A and", "and A", "A or or B", "(A", "A)", "()", "A B", "not A", "A and not B"),
        "(" * 20_000 + "A" + ")" * 20_000,
        " and ".join(f"(A{i} or B{i})" for i in range(40)),
    ],
    ids=lambda rule: rule[:12],
)
def test_a_rule_that_cannot_be_read_is_refused_in_few_words(rule, refused):
    error = refused("bad-rule", lambda: clauses_of(rule))
    assert len(str(error)) < 300
    assert len(clauses_of(" and ".join(f"(A{i} or B{i})" for i in range(12)))) == MOST_CLAUSES
