"""A screen of another organism is context through a table of orthologues."""

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell, Genes
from deltacell.data.orthologues import (
    MANY_ORTHOLOGUES,
    MOST_ORTHOLOGUES,
    NO_ORTHOLOGUE,
    SAME_ORTHOLOGUE,
    Orthologues,
    on_orthologues,
    read_orthologues,
)
from deltacell.models.interface import Study
from deltacell.models.pairs import PairTrees
from deltacell.screen import Genotypes, Screen
from deltacell.train.config.compose import compose
from deltacell.train.data import load_data

N = 24
HERE = Genes([f"YAL{i:03}W" for i in range(N)])
THERE = Genes([f"SPAC{i}.01c" for i in range(N)])
EVERY = [[a, b] for a in range(N) for b in range(a + 1, N)]
OPTIONS = {"rounds": 12, "leaves": 4, "folds": 3, "gene_folds": 3}
seeds = st.integers(0, 2**31)


def table_of(pairs, *, turned=False):
    """Return the names of pairs of genes, here and there, below a header."""
    columns = [["yeast", *(HERE[a] for a, _ in pairs)], ["pombe", *(THERE[b] for _, b in pairs)]]
    noise = ["note", *("1:1" for _ in pairs)]
    ordered = [columns[1], noise, columns[0]] if turned else [*columns, noise]
    return pl.DataFrame({f"column {i}": values for i, values in enumerate(ordered)})


def species(seed):
    """Return pairs measured in two organisms of one truth, and who is whose orthologue."""
    rng = np.random.default_rng(seed)
    gene = rng.normal(size=(N, 2))
    truth = np.array([gene[a] @ gene[b] for a, b in EVERY])
    orthologue = rng.permutation(N)
    own = rng.permutation(len(EVERY))[:90]
    others = rng.permutation(len(EVERY))[:180]
    here = [EVERY[i] for i in own], (truth + 0.1 * rng.normal(size=len(truth)))[own]
    there = [[int(orthologue[gene]) for gene in EVERY[i]] for i in others]
    scores = (4 - 3 * truth + 0.3 * rng.normal(size=len(truth)))[others]
    return rng, truth, orthologue, here, (there, scores)


def screen_of(genes, rows, scores):
    return Screen.build(genes, Genotypes.of(rows), score=scores)


def contents(screen):
    """Return the scores by set, in an order that does not depend on that of rows."""
    bounds = zip(screen.offsets[:-1], screen.offsets[1:], strict=True)
    sets = [sorted(screen.genotypes.genes[a:b].tolist()) for a, b in bounds]
    return sorted(zip(sets, screen.column("score").tolist(), strict=True))


@given(seed=seeds)
@settings(deadline=None)
def test_one_to_one_orthologues_are_another_name_for_the_genes(seed):
    rng, _, orthologue, _, (rows, scores) = species(seed)
    back = np.argsort(orthologue)
    pairs = [(int(back[b]), b) for b in range(N)]
    other = screen_of(THERE, rows, scores)
    expected = screen_of(HERE, [[int(back[gene]) for gene in row] for row in rows], scores)
    for turned in (False, True):
        shuffled = [pairs[i] for i in rng.permutation(N)]
        again = [*shuffled, *shuffled[:5]]
        orthologues = Orthologues.of_names(THERE, HERE, table_of(again, turned=turned))
        assert len(orthologues) == N
        assert contents(on_orthologues(other, HERE, orthologues)) == contents(expected)


@given(data=st.data(), seed=seeds)
@settings(deadline=None)
def test_every_choice_of_orthologues_has_the_score_and_every_row_is_counted(data, seed):
    rng = np.random.default_rng(seed)
    n_pairs = data.draw(st.integers(1, 3 * N))
    pairs = sorted(
        {(int(a), int(b)) for a, b in rng.integers(0, N, (n_pairs, 2))} | {(0, 0), (1, 1)}
    )
    rows = [sorted(rng.choice(N, size, replace=False).tolist()) for size in (2, 2, 2, 3, 3)]
    rows.append([0, 1])
    scores = np.arange(len(rows), dtype=float)
    orthologues = Orthologues.of_names(THERE, HERE, table_of(pairs))
    of_gene = [[a for a, b in pairs if b == gene] for gene in range(N)]
    expected = []
    dropped = {NO_ORTHOLOGUE: 0, MANY_ORTHOLOGUES: 0, SAME_ORTHOLOGUE: 0}
    for row, score in zip(rows, scores, strict=True):
        choices = [[]]
        for gene in row:
            choices = [[*chosen, a] for chosen in choices for a in of_gene[gene]]
        sizes = [len(of_gene[gene]) for gene in row]
        distinct = [sorted(chosen) for chosen in choices if len(set(chosen)) == len(row)]
        if min(sizes) == 0:
            dropped[NO_ORTHOLOGUE] += 1
        elif max(sizes) > MOST_ORTHOLOGUES:
            dropped[MANY_ORTHOLOGUES] += 1
        elif not distinct:
            dropped[SAME_ORTHOLOGUE] += 1
        else:
            expected += [(chosen, score) for chosen in distinct]
    if not expected:
        return
    screen = on_orthologues(screen_of(THERE, rows, scores), HERE, orthologues)
    assert contents(screen) == sorted(expected)
    counts = screen.sources[-1].counts
    assert counts.dropped == {reason: n for reason, n in dropped.items() if n}
    assert counts.read == len(rows)


def test_a_planted_pair_of_species_helps_and_shuffled_scores_do_not():
    gains = []
    for seed in range(3):
        rng, truth, orthologue, (rows, scores), (other_rows, other_scores) = species(seed)
        cell = Cell(list(HERE.systematic), [])
        back = np.argsort(orthologue)
        names = table_of([(int(back[b]), b) for b in range(N)])
        orthologues = Orthologues.of_names(THERE, HERE, names)
        is_new = np.array([pair not in rows for pair in EVERY])

        def correlation(context, is_new=is_new, cell=cell, rows=rows, scores=scores, truth=truth):
            trees = PairTrees(**OPTIONS).fit(cell, Genotypes.of(rows), scores, context=context)
            predicted = trees(cell, Genotypes.of(EVERY)).score.numpy()
            return np.corrcoef(predicted[is_new], truth[is_new])[0, 1]

        contexts = {
            "none": [],
            "species": [other_scores],
            "shuffled": [rng.permutation(other_scores)],
        }
        of_context = {}
        for name, columns in contexts.items():
            screens = [screen_of(THERE, other_rows, column) for column in columns]
            studies = [
                Study("pombe", on_orthologues(screen, HERE, orthologues)) for screen in screens
            ]
            of_context[name] = correlation(studies)
        gains.append([of_context[name] - of_context["none"] for name in ("species", "shuffled")])
    gain, gain_of_noise = np.mean(gains, axis=0)
    assert gain > 0.1
    assert gain_of_noise < 0.1


def test_a_training_reads_a_study_of_another_organism_through_a_table(tmp_path):
    _, _, orthologue, (rows, scores), (other_rows, other_scores) = species(0)
    back = np.argsort(orthologue)
    Cell(list(HERE.systematic), []).save(tmp_path / "cell")
    screen_of(HERE, rows, scores).save(tmp_path / "screen")
    other = screen_of(THERE, other_rows, other_scores)
    other.save(tmp_path / "pombe")
    table = tmp_path / "orthologues.tsv"
    lines = [f"{THERE[b]}\t{HERE[int(back[b])]}" for b in range(N)]
    table.write_text("pombe\tcerevisiae\n" + "\n".join(lines) + "\n")
    words = ["model=pair_trees", "loss=none", f"data.context=[{tmp_path / 'pombe'}]"]
    words += [f"data.cell={tmp_path / 'cell'}", f"data.screen={tmp_path / 'screen'}"]
    [study] = load_data(compose([*words, f"data.orthologues={table}"])).context
    orthologues = read_orthologues(table, THERE, HERE)
    assert contents(study.screen) == contents(on_orthologues(other, HERE, orthologues))
    # Of the same organism, a study stays as it is.
    words[2] = f"data.context=[{tmp_path / 'same'}]"
    screen_of(HERE, rows, -3 * scores + np.arange(len(scores))).save(tmp_path / "same")
    [same] = load_data(compose([*words, f"data.orthologues={table}"])).context
    assert len(same.screen) == len(rows)


def test_a_table_without_genes_of_both_is_refused(tmp_path, refused):
    table = tmp_path / "table.tsv"
    table.write_text("a\tb\nX1\tX2\n")
    refused("no-orthologues", read_orthologues, table, THERE, HERE)
    rows = [[0, 1]]
    orthologues = Orthologues.of_names(THERE, HERE, table_of([(0, 0)]))
    refused("no-orthologues", on_orthologues, screen_of(THERE, rows, [1.0]), HERE, orthologues)
