"""Laws of a cell, on random cells: each is compared with something slow and obvious."""

import json
import tempfile
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from laws import edge_lists, features, metabolisms, relation_of, relations, satisfied

from deltacell.cell import Annotation, Cell, Genes, Relation
from deltacell.screen import Genotypes
from deltacell.storage.provenance import Counts, Source

LAW = settings(max_examples=30, deadline=None)


@st.composite
def gene_lists(draw, min_size=0, max_size=7):
    n = draw(st.integers(min_size, max_size))
    some_text = st.text("abcΔ'-", min_size=1, max_size=3)
    placed = [draw(st.booleans()) for _ in range(n)]
    return Genes(
        [f"G{i}" for i in range(n)],
        [draw(st.none() | some_text) for _ in range(n)],
        [draw(st.lists(some_text, max_size=2)) for _ in range(n)],
        ["3" if p else "" for p in placed],
        [10 * i if p else -1 for i, p in enumerate(placed)],
        [10 * i + 5 if p else -1 for i, p in enumerate(placed)],
    )


@st.composite
def annotations(draw, n_genes, name):
    pairs = st.tuples(st.integers(0, n_genes - 1), st.integers(0, 2))
    pairs = draw(st.lists(pairs, max_size=12)) if n_genes else []
    gene, term = zip(*pairs, strict=True) if pairs else ((), ())
    return Annotation.from_pairs(name, gene, term, "pqr", n_genes=n_genes, ids=("GO:1", "", "x"))


@st.composite
def cells(draw, min_genes=0):
    genes = draw(gene_lists(min_size=min_genes))
    names = draw(st.lists(st.text("pq/. é", min_size=1, max_size=4), max_size=3, unique=True))
    return Cell(
        genes,
        [draw(relations(len(genes), name)) for name in names],
        draw(st.none() | metabolisms(genes).map(lambda pair: pair[0])),
        [draw(features(len(genes), f"feature {i}")) for i in range(draw(st.integers(0, 2)))],
        [draw(annotations(len(genes), f"terms {i}")) for i in range(draw(st.integers(0, 2)))],
        sources=draw(
            st.lists(
                st.just(Source("f.txt", "0" * 64, "reader", Counts(3, 2, {"self loop": 1}), "r")),
                max_size=1,
            ),
        ),
        synthetic=draw(st.none() | st.just({"name": "demo", "seed": 3})),
    )


def dense(relation):
    matrix = np.full((relation.n_genes, relation.n_genes), np.nan)
    for target in range(relation.n_genes):
        for at in range(relation.indptr[target], relation.indptr[target + 1]):
            matrix[target, relation.indices[at]] = relation.weights[at]
    return matrix


def same(a, b):
    return np.array_equal(a, b, equal_nan=True)


@LAW
@given(cells())
def test_saving_and_loading_is_identity(cell):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cell"
        cell.save(path)
        loaded = Cell.load(path)
        on_disk = json.loads((path / "manifest.json").read_text())["checksum"]
        assert loaded.equals(cell)
        assert loaded.stats() == cell.stats()
        assert loaded.sources == cell.sources
        assert loaded.synthetic_recipe == cell.synthetic_recipe
        assert cell.checksum == on_disk
        del loaded.__dict__["checksum"]
        assert loaded.checksum == on_disk


@LAW
@given(cells())
def test_hetero_data_and_back_is_identity(cell):
    back = Cell.from_hetero_data(cell.to_hetero_data())
    assert back.equals(cell)
    assert back.checksum == cell.checksum
    assert back.stats() == cell.stats()
    assert back.synthetic_recipe == cell.synthetic_recipe


@LAW
@given(cells())
def test_names_edges_and_features_survive_without_the_cell(cell):
    """A `HeteroData` without what only deltacell writes gives the same graph."""
    data = cell.to_hetero_data()
    del data.cell
    back = Cell.from_hetero_data(data)
    assert back.genes.systematic == cell.genes.systematic
    assert list(back.relations) == list(cell.relations)
    assert all(back.relation(name).equals(r) for name, r in cell.relations.items())
    assert {f.name for f in back.features.values()} == {
        f.name for f in cell.features.values() if f.width
    }
    for feature in back.features.values():
        assert same(feature.values, cell.features[feature.name].values)
        assert feature.columns == cell.features[feature.name].columns


@LAW
@given(st.data(), cells(min_genes=2))
def test_cells_that_differ_have_different_checksums(data, cell):
    assume(cell.relations)
    name = data.draw(st.sampled_from(list(cell.relations)))
    old = cell.relation(name)
    source, target, weight = old.edges()
    if data.draw(st.booleans(), label="rename"):
        new = replace(old, name=name + "x")
    elif old.n_edges and data.draw(st.booleans(), label="reweigh"):
        new = relation_of(
            name,
            [*zip(source, target, weight + 1, strict=True)],
            cell.n_genes,
            old.directed,
        )
    else:
        new = Relation(name, old.indptr, old.indices, old.weights, directed=not old.directed)
    relations = [new if r.name == name else r for r in cell.relations.values()]
    other = Cell(cell.genes, relations, cell.metabolism, cell.features)
    assert not other.equals(cell)
    assert other.checksum != cell.checksum


@LAW
@given(st.integers(0, 8).flatmap(relations))
def test_the_transpose_is_the_transpose(relation):
    turned = relation.transpose
    assert same(dense(turned), dense(relation).T)
    assert turned.transpose is relation
    assert np.array_equal(relation.in_degree, (~np.isnan(dense(relation))).sum(1))
    assert np.array_equal(relation.out_degree, (~np.isnan(dense(relation))).sum(0))
    assert np.array_equal(turned.in_degree, relation.out_degree)
    for row in range(relation.n_genes):
        assert (np.diff(turned.indices[turned.indptr[row] : turned.indptr[row + 1]]) > 0).all()


@LAW
@given(st.data(), st.integers(1, 6), st.booleans())
def test_an_edge_keeps_its_largest_weight_and_every_row_is_counted(data, n_genes, directed):
    edges = data.draw(edge_lists(n_genes, 40))
    relation = relation_of("r", edges, n_genes, directed)
    best, seen = {}, set()
    loops = duplicates = other_way = 0
    for source, target, weight in edges:
        if source == target:
            loops += 1
            continue
        key = (source, target) if directed else tuple(sorted((source, target)))
        if (source, target) in seen:
            duplicates += 1
        elif key in best:
            other_way += 1
        seen.add((source, target))
        best[key] = max(weight, best.get(key, weight))
    got = {(int(s), int(t)): float(w) for s, t, w in zip(*relation.edges(), strict=True)}
    assert got == best
    assert relation.n_edges == len(best)
    dropped = {"self loop": loops, "duplicate": duplicates, "other direction of an edge": other_way}
    assert relation.counts == Counts(len(edges), len(best), dropped)
    assert directed or same(dense(relation), dense(relation).T)
    touched = {gene for pair in best for gene in pair}
    assert relation.n_connected == len(touched)


@LAW
@given(st.data(), cells())
def test_a_subset_is_the_cell_of_those_genes(data, cell):
    order = data.draw(st.permutations(range(cell.n_genes)))
    chosen = order[: data.draw(st.integers(0, cell.n_genes))]
    part = cell.subset(chosen)
    assert list(part.genes) == [cell.genes[i] for i in chosen]
    assert part.genes.standard == tuple(cell.genes.standard[i] for i in chosen)
    for name, relation in cell.relations.items():
        assert same(dense(part.relation(name)), dense(relation)[np.ix_(chosen, chosen)])
        assert part.relation(name).counts.read == relation.counts.read
    for name, feature in cell.features.items():
        assert np.array_equal(
            part.features[name].values,
            feature.values[list(chosen)],
            equal_nan=True,
        )
        assert np.array_equal(part.features[name].known, feature.known[list(chosen)])
    for name, annotation in cell.annotations.items():
        terms = annotation.matrix.toarray()[list(chosen)]
        assert np.array_equal(part.annotations[name].matrix.toarray(), terms)
    if cell.metabolism is not None and chosen:
        deleted = data.draw(st.sets(st.sampled_from(range(len(chosen))), min_size=1))
        of_part = part.metabolism.lost_reactions(Genotypes.of([sorted(deleted)])).reactions
        whole = [chosen[i] for i in deleted]
        of_cell = cell.metabolism.lost_reactions(Genotypes.of([whole])).reactions
        assert of_part.tolist() == of_cell.tolist()
    assert part.subset(range(len(chosen))).equals(part)


@LAW
@given(st.data(), st.integers(1, 6))
def test_merging_relations_takes_the_largest_of_each_entry(data, n_genes):
    parts = [data.draw(relations(n_genes, name)) for name in "abcd"]
    cell = Cell([f"G{i}" for i in range(n_genes)], parts)
    group = data.draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True))
    merged = cell.merge_relations({"new": group})
    matrices = np.stack([dense(cell.relation(name)) for name in group])
    largest = np.where(np.isnan(matrices), -np.inf, matrices).max(axis=0)
    expected = np.where(np.isinf(largest), np.nan, largest)
    assert same(dense(merged.relation("new")), expected)
    assert merged.relation("new").directed == any(cell.relation(n).directed for n in group)
    kept = [n for n in "abcd" if n not in group or n == group[0]]
    assert list(merged.relations) == ["new" if n == group[0] else n for n in kept]


@st.composite
def metabolisms_and_genotypes(draw):
    genes = Genes([f"G{i}" for i in range(draw(st.integers(1, 6)))])
    metabolism, trees = draw(metabolisms(genes))
    gene = st.integers(0, len(genes) - 1)
    sets = draw(st.lists(st.sets(gene, max_size=4), max_size=5))
    return genes, metabolism, trees, [sorted(s) for s in sets]


@settings(max_examples=50, deadline=None)
@given(metabolisms_and_genotypes())
def test_a_reaction_is_lost_exactly_when_its_rule_is_false(drawn):
    genes, metabolism, trees, sets = drawn
    lost = metabolism.lost_reactions(Genotypes.of(sets))
    assert len(lost.offsets) == len(sets) + 1
    for b, deleted in enumerate(sets):
        living = {name for i, name in enumerate(genes) if i not in deleted}
        expected = [
            r for r, tree in enumerate(trees) if tree is not None and not satisfied(tree, living)
        ]
        assert lost.of(b).tolist() == expected


@settings(max_examples=50, deadline=None)
@given(metabolisms_and_genotypes())
def test_lost_together_is_lost_by_no_smaller_set(drawn):
    genes, metabolism, _, _ = drawn
    every = [c for k in range(1, len(genes) + 1) for c in combinations(range(len(genes)), k)]
    lost = metabolism.lost_reactions(Genotypes.of(every))
    together = metabolism.lost_together(Genotypes.of(every))
    loses = {c: set(lost.of(i).tolist()) for i, c in enumerate(every)}
    only = {c: set(together.of(i).tolist()) for i, c in enumerate(every)}
    for c in every:
        smaller = [s for k in range(1, len(c)) for s in combinations(c, k)]
        assert only[c] == loses[c].difference(*(loses[s] for s in smaller))


@LAW
@given(metabolisms_and_genotypes())
def test_splitting_keeps_what_is_lost_and_what_is_converted(drawn):
    _, metabolism, _, sets = drawn
    parts = metabolism.split()
    original = [name.removesuffix("_rev").split("_iso")[0] for name in parts.reactions]
    backwards = [name.endswith("_rev") for name in parts.reactions]
    assert len(set(parts.reactions)) == parts.n_reactions
    assert set(original) == set(metabolism.reactions)
    assert (parts.lower >= 0).all()
    assert not parts.reversible.any()
    whole, lost = (m.lost_reactions(Genotypes.of(sets)) for m in (metabolism, parts))
    for b in range(len(sets)):
        gone = {parts.reactions[r] for r in lost.of(b).tolist()}
        for r, name in enumerate(metabolism.reactions):
            mine = {p for p, o in zip(parts.reactions, original, strict=True) if o == name}
            assert (r in whole.of(b).tolist()) == (mine <= gone)
    turned = split_stoichiometry(metabolism)
    assert split_stoichiometry(parts) == {
        p: {m: -c if back else c for m, c in turned[o].items()}
        for p, o, back in zip(parts.reactions, original, backwards, strict=True)
    }
    for p, o, back in zip(parts.reactions, original, backwards, strict=True):
        i, r = parts.reactions.index(p), metabolism.reactions.index(o)
        low, high = metabolism.lower[r], metabolism.upper[r]
        expected = (max(-high, 0), -low) if back else (max(low, 0), high)
        assert (parts.lower[i], parts.upper[i]) == expected
    assert parts.split().to_arrow() == parts.to_arrow()


def split_stoichiometry(metabolism):
    found = {name: {} for name in metabolism.reactions}
    rows = zip(metabolism.reaction, metabolism.metabolite, metabolism.coefficient, strict=True)
    for r, m, c in rows:
        found[metabolism.reactions[r]][int(m)] = float(c)
    return found
