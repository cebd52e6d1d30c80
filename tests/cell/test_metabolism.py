from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Genes, Metabolism
from deltacell.errors import GeneNameError, InputError, StoreError
from deltacell.screen import Genotypes

GENES = Genes(["A", "B", "C", "D"], ["alpha", None, None, None])


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


def names(metabolism, sets):
    lost = metabolism.lost_reactions(Genotypes.from_names(GENES, sets))
    return [{metabolism.reactions[r] for r in lost.of(b).tolist()} for b in range(len(sets))]


def test_an_and_needs_all_and_an_or_rescues(metabolism):
    assert names(metabolism, [["A"], ["B"], ["C"], ["C", "D"], ["D", "B"]]) == [
        {"single", "complex", "nested"},
        {"complex"},
        set(),
        {"isozymes", "nested"},
        {"complex"},
    ]


def test_lost_reactions_ascend_and_belong_to_their_genotype(metabolism):
    lost = metabolism.lost_reactions(Genotypes.of([[0, 1], [], [2, 3]]))
    assert lost.offsets.tolist() == [0, 3, 3, 5]
    assert lost.reactions.tolist() == [1, 2, 4, 3, 4]
    assert lost.reactions.dtype == lost.offsets.dtype == torch.int64
    nothing = metabolism.lost_reactions(Genotypes.of([]))
    assert (len(nothing.reactions), nothing.offsets.tolist()) == (0, [0])


def test_what_only_all_of_them_lose_together(metabolism):
    sets = [["A"], ["A", "B"], ["C", "D"], ["A", "C", "D"], ["B", "C"]]
    found = metabolism.names_lost_together(Genotypes.from_names(GENES, sets))
    assert [set(of_set) for of_set in found] == [
        {"single", "complex", "nested"},
        set(),
        {"isozymes", "nested"},
        set(),
        set(),
    ]
    assert metabolism.names_lost_together(Genotypes.of([])) == []
    pairs, times = metabolism.pairs_lost_together()
    assert (pairs.tolist(), times.tolist()) == ([[2, 3]], [2])


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_lost_together_is_lost_by_no_smaller_set(data):
    gene = st.sampled_from("ABCDE")
    rule = st.lists(st.lists(gene, min_size=1, max_size=3), min_size=0, max_size=3)
    rules = [
        " or ".join(f"({' and '.join(clause)})" for clause in clauses)
        for clauses in data.draw(st.lists(rule, min_size=1, max_size=5))
    ]
    n = len(rules)
    made = Metabolism.build(
        Genes("ABCDE"), [f"q{i}" for i in range(n)], ["m"], [], rules, [0.0] * n, [1.0] * n
    )
    every = [c for k in range(1, 6) for c in combinations(range(5), k)]
    lost = made.lost_reactions(Genotypes.of(every))
    loses = {c: set(lost.of(i).tolist()) for i, c in enumerate(every)}
    together = made.lost_together(Genotypes.of(every))
    for i, c in enumerate(every):
        smaller = [s for k in range(1, len(c)) for s in combinations(c, k)]
        expected = loses[c].difference(*(loses[s] for s in smaller))
        assert set(together.of(i).tolist()) == expected
    pairs, times = made.pairs_lost_together()
    found = {tuple(p): t for p, t in zip(pairs.tolist(), times.tolist(), strict=True)}
    assert found == {
        c: len(together.of(i)) for i, c in enumerate(every) if len(c) == 2 and len(together.of(i))
    }


def test_the_genes_of_a_rule_are_each_given_once(metabolism):
    reaction, gene = metabolism.rule_genes
    pairs = list(zip(reaction.tolist(), gene.tolist(), strict=True))
    assert pairs == [(1, 0), (2, 0), (2, 1), (3, 2), (3, 3), (4, 0), (4, 2), (4, 3)]


def test_splitting_gives_each_direction_and_each_isozyme_a_reaction(metabolism):
    parts = metabolism.split()
    assert parts.reactions == (
        "free",
        "single",
        "complex",
        "complex_rev",
        "isozymes_iso1",
        "isozymes_iso2",
        "nested_iso1_rev",
        "nested_iso2_rev",
    )
    turned = parts.reaction == parts.reactions.index("complex_rev")
    assert parts.coefficient[turned].tolist() == [1, -1]
    assert parts.metabolite[turned].tolist() == [1, 2]
    nested = parts.reactions.index("nested_iso1_rev")
    assert (parts.lower[nested], parts.upper[nested]) == (0, 10)
    assert parts.coefficient[parts.reaction == nested].tolist() == [-0.5]


def test_a_gene_that_the_cell_lacks_always_lives():
    with pytest.raises(GeneNameError, match=r"2 genes of the reactions' rules .* first 'X'"):
        build(["A and X", "Y"])
    metabolism = build(["A and X", "Y", "Y or A"], on_unknown="drop")
    lost = metabolism.lost_reactions(Genotypes.of([[0], [0, 1, 2, 3]]))
    assert [lost.of(b).tolist() for b in range(2)] == [[0], [0]]


def test_an_ambiguous_gene_in_a_rule_is_called_so():
    genes = Genes(["A", "B"], aliases=[["x"], ["x"]])
    with pytest.raises(GeneNameError, match="first 'x', which is ambiguous"):
        Metabolism.build(genes, ["r"], ["m"], [], ["x"], [0], [1])


def test_taking_genes_lets_all_others_live(metabolism):
    taken = metabolism.take(np.array([3, 0]))
    lost = taken.lost_reactions(Genotypes.of([[0], [1]]))
    assert taken.n_genes == 2
    assert [[taken.reactions[r] for r in lost.of(b).tolist()] for b in range(2)] == [
        [],
        ["single", "complex", "nested"],
    ]


PATHWAYS = (("sugar",), (), ("sugar", "lipid"), ("lipid",), ())


def test_pathways_stay_with_their_reactions(metabolism):
    known = replace(metabolism, pathways=PATHWAYS)
    back = Metabolism.from_arrow(known.to_arrow(), known.n_genes)
    assert back.pathways == PATHWAYS
    assert back.equals(known)
    assert not known.equals(metabolism)
    assert not metabolism.equals(known)
    assert not known.equals(replace(metabolism, pathways=PATHWAYS[::-1]))
    assert known.take(np.array([3, 0])).pathways == PATHWAYS
    split = known.split()
    of = dict(zip(split.reactions, split.pathways, strict=True))
    assert of["complex_rev"] == of["complex"] == ("sugar", "lipid")
    assert of["isozymes_iso1"] == of["isozymes_iso2"] == ("lipid",)
    assert of["nested_iso1_rev"] == ()


def test_without_pathways_nothing_is_stored(metabolism):
    assert metabolism.pathways == metabolism.split().pathways == ()
    assert "pathways" not in metabolism.to_arrow()
    columns = GENES, ["r", "s"], ["m"], [], ["A", "B"], [0, 0], [1, 1]
    assert Metabolism.build(*columns, pathways=[[], []]).pathways == ()
    assert Metabolism.build(*columns, pathways=[["p", "q", "p"], []]).pathways == (("p", "q"), ())


def test_pathways_of_other_reactions_are_not_trusted(metabolism):
    forged = replace(metabolism, pathways=PATHWAYS[1:])
    with pytest.raises(StoreError, match="pathways of 4 reactions, and there are 5"):
        Metabolism.from_arrow(forged.to_arrow(), 4)


def test_saving_and_loading_is_identity(metabolism):
    back = Metabolism.from_arrow(metabolism.to_arrow(), metabolism.n_genes)
    assert back.equals(metabolism)
    assert not back.equals(metabolism.split())
    assert not back.equals(replace(metabolism, coefficient=-metabolism.coefficient))
    assert not back.equals(replace(metabolism, upper=metabolism.upper + 1))
    assert repr(back) == "Metabolism(5 reactions, 3 metabolites)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clause_genes": 4}, "a gene outside the 4"),
        ({"clause_reaction": 5}, "a reaction outside the 5"),
        ({"reaction": -1}, "a reaction outside the 5"),
        ({"metabolite": 3}, "a metabolite outside the 3"),
        ({"clause_offsets": 99}, "clauses do not fit"),
    ],
)
def test_indices_from_disk_are_not_trusted(metabolism, change, message):
    ((field, value),) = change.items()
    forged = getattr(metabolism, field).copy()
    forged[-1] = value
    with pytest.raises(StoreError, match=message):
        Metabolism.from_arrow(replace(metabolism, **{field: forged}).to_arrow(), 4)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rules": ["A"]}, "rules has 1 entries for 2 reactions"),
        ({"lower": [0, 0, 0]}, "lower has 3 entries"),
        ({"upper": []}, "upper has 0 entries"),
        ({"pathways": [["p"]]}, "pathways has 1 entries for 2 reactions"),
        ({"stoichiometry": [(2, 0, 1)]}, "outside the 2 given"),
        ({"stoichiometry": [(0, -1, 1)]}, "outside the 1 given"),
    ],
)
def test_columns_that_do_not_fit_are_refused(changed, message):
    columns = {
        "reactions": ["r", "s"],
        "metabolites": ["m"],
        "stoichiometry": [],
        "rules": ["A", ""],
        "lower": [0, 0],
        "upper": [1, 1],
    }
    with pytest.raises(InputError, match=message):
        Metabolism.build(GENES, **(columns | changed))


def build(rules, **options):
    n = len(rules)
    names = [f"r{i}" for i in range(n)]
    return Metabolism.build(GENES, names, ["m"], [], rules, [0] * n, [1] * n, **options)
