"""A ranking is what scoring every set and sorting gives, however it was come by."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell, Genes, Relation
from deltacell.models import Dango, HeteroCell
from deltacell.predict import search
from deltacell.predict.ensemble import scorer_of_predictors
from deltacell.predict.gene_sets import Combinations, Listed, Scored
from deltacell.predict.kept import Ranks, read_scored_about
from deltacell.predict.ranking_file import SCHEMA
from deltacell.predict.request import FILE, PAIRS, TRIPLES, WITH, Request, Subject
from deltacell.predict.search import rank_sets
from deltacell.predict.status import STATUSES, Linkage, Statuses
from deltacell.screen import Genotypes, Screen
from deltacell.screen.coverage import Coverage
from deltacell.train.data import Standard
from deltacell.train.predictor import Predictor

LAW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(autouse=True, scope="module")
def as_if_there_were_many():
    """Let sets be drawn and blocks be tried beforehand, however few there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "SHARE_DRAWN", 2)
        patch.setattr(search, "SHARE_VARIED", 4)
        patch.setattr(search, "SHARE_TRIED", 4)
        yield


class Additive:
    """Scores a set by the rounded sum of its genes' values: equal scores are the rule."""

    def __init__(self, values, spread, prunes=True):
        self.values, self.spread = np.array(values, dtype=np.float32), np.float32(spread)
        self.asked, self.prunes = 0, prunes

    def score(self, sets):
        self.asked += 1
        ascending = np.sort(sets, axis=1)
        score = np.round(self.values[ascending].sum(axis=1), 1)
        return Scored(sets, score, self.spread * (ascending[:, 0] % 3).astype(np.float32))

    def candidates(self, block, above, below):
        found = self.score(block.sets())
        wanted = (found.score >= above) | (found.score <= below)
        return Scored(*(column[wanted] for column in found))


class Backwards(Combinations):
    """The same sets, the last block first."""

    def pieces(self, first, step):
        yield from reversed(list(super().pieces(0, 1)))


class Killed(Exception):
    pass


class Mortal(Additive):
    """Dies at the nth block."""

    def __init__(self, scorer, at):
        super().__init__(scorer.values, scorer.spread, scorer.prunes)
        self.left = at

    def score(self, sets):
        self.left -= 1
        if self.left < 0:
            raise Killed
        return super().score(sets)


def subject_of(request, cell, genes, sets, screen, **options):
    return Subject(
        request,
        cell,
        np.array(genes),
        sets,
        Linkage(cell.genes, request.distance),
        Statuses([screen], ["interaction"]),
        [{"name": "r", "seed": 0, "finished": True, "validation_pearson": 0.5}],
        request.to_json(),
        0,
        frozenset({2, 3}),
        **options,
    )


@st.composite
def cells(draw):
    n = draw(st.integers(5, 9))
    chromosome = draw(st.lists(st.sampled_from(["", "I", "I", "II"]), min_size=n, max_size=n))
    start = [draw(st.sampled_from([-1, 0, 100, 250, 900])) for _ in range(n)]
    end = [-1 if at < 0 else at + draw(st.sampled_from([10, 200])) for at in start]
    genes = Genes(
        [f"Y{i:02d}" for i in range(n)],
        [None if i % 2 else f"ABC{i}" for i in range(n)],
        chromosome=chromosome,
        start=start,
        end=end,
    )
    edges = np.array([[i, (i + 1) % n] for i in range(n)]).T
    return Cell(genes, [Relation.from_edges("ring", edges[0], edges[1], n_genes=n, directed=False)])


@st.composite
def subjects(draw):
    cell = draw(cells())
    n = cell.n_genes
    every = [c for s in (2, 3) for c in combinations(range(n), s)]
    rows = draw(st.lists(st.sampled_from(every), min_size=1, max_size=12))
    roles = [role for row in rows for role in ["query"] * (len(row) - 1) + ["array"]]
    score = draw(
        st.lists(
            st.floats(-1, 1, width=16) | st.just(float("nan")),
            min_size=len(rows),
            max_size=len(rows),
        )
    )
    genotypes = Genotypes.of(rows)
    coverage = Coverage.from_rows(
        genotypes.genes.numpy(),
        genotypes.offsets.numpy(),
        pl.Series(roles),
        pl.Series(["s"] * len(rows)),
        complete=True,
        n_genes=n,
    )
    screen = Screen.build(
        cell.genes, genotypes, coverage=coverage, score=score, role=roles, study="s"
    )
    limits = {"above": None, "below": None, "top": draw(st.none() | st.integers(1, 6))}
    if draw(st.booleans()):
        limits["above"] = draw(st.none() | st.sampled_from([-0.5, 0.0, 0.3]))
        limits["below"] = draw(st.none() | st.sampled_from([-0.3, 0.0, 0.2]))
        if None not in (limits["above"], limits["below"]) and limits["above"] <= limits["below"]:
            limits["below"] = None
    kind = draw(st.sampled_from([PAIRS, TRIPLES, WITH, FILE]))
    extra = {}
    if kind == WITH:
        given = draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=2, unique=True))
        extra = {
            "given": tuple(cell.genes[g] for g in given),
            "size": len(given) + draw(st.integers(1, 2)),
        }
    if kind == FILE:
        extra = {"file": Path("mine.txt")}
    spread = draw(st.sampled_from([0.1, float("nan")]))
    request = Request(
        kind,
        **extra,
        **limits,
        status=draw(st.none() | st.sets(st.sampled_from(STATUSES), min_size=1).map(tuple)),
        linked=draw(st.booleans()),
        cautious=not np.isnan(spread) and draw(st.booleans()),
        distance=draw(st.sampled_from([0, 100, 500])),
    )
    genes = np.array(sorted(draw(st.sets(st.integers(0, n - 1), min_size=4))))
    a_piece = draw(st.integers(1, 30))
    if kind == FILE:
        listed = draw(st.lists(st.sampled_from(every), min_size=1, max_size=20, unique=True))
        by_size = [np.array([s for s in listed if len(s) == size]) for size in (2, 3)]
        sets = Listed([s for s in by_size if len(s)], sets_per_piece=a_piece)
        expected = listed
    else:
        given = [cell.genes.index(name) for name in request.given]
        sets = Combinations(genes, request.n_genes, given, sets_per_piece=a_piece)
        others = [g for g in genes.tolist() if g not in given]
        free = request.n_genes - len(given)
        expected = [tuple(sorted((*given, *c))) for c in combinations(others, free)]
    held = draw(st.integers(1, 8))
    subject = subject_of(request, cell, genes, sets, screen, held=held)
    values = draw(st.lists(st.sampled_from([-0.3, -0.1, 0.0, 0.1, 0.2]), min_size=n, max_size=n))
    scorer = Additive(values, spread, prunes=draw(st.booleans()))
    return subject, scorer, screen, expected


def place(genes, g):
    return genes.chromosome[g], genes.start[g], genes.end[g]


def linked_by_hand(genes, chosen, distance):
    """Return True, False, or None where it is not known."""
    answers = []
    for a, b in combinations(chosen, 2):
        (ca, sa, ea), (cb, sb, eb) = place(genes, a), place(genes, b)
        if ca and cb and ca != cb:
            answers.append(False)
        elif not ca or not cb or sa < 0 or sb < 0:
            answers.append(None)
        else:
            answers.append(max(sb - ea, sa - eb, 0) < distance)
    return True if True in answers else None if None in answers else False


def by_hand(subject, scorer, screen, expected):
    """Score every set, one at a time, and sort."""
    rows = [tuple(sorted(r.tolist())) for r in screen.genotypes]
    scores = screen.column("score")
    study = screen.coverage.studies[0] if screen.coverage.studies else None
    crossed = set()
    if study is not None:
        o = study.query_offsets
        for a, b in pairwise(o):
            query = study.query_genes[a:b].tolist()
            crossed |= {frozenset([*query, g]) for g in study.array_genes if g not in query}
    found = []
    for chosen in expected:
        mine = [s for r, s in zip(rows, scores, strict=True) if r == chosen]
        status = "measured" if mine else "tested" if frozenset(chosen) in crossed else "untested"
        known = [s for s in mine if not np.isnan(s)]
        linked = linked_by_hand(subject.cell.genes, chosen, subject.request.distance)
        _, (score,), (spread,) = scorer.score(np.array([chosen]))
        careful = spread if subject.request.cautious else np.float32(0)
        found.append(
            {
                "set": chosen,
                "low": score + careful,
                "high": score - careful,
                "spread": None if np.isnan(spread) else spread,
                "genes": [subject.cell.genes[g] for g in chosen],
                "score": score,
                "status": status,
                "measured": None if not known else pytest.approx(np.mean(known), abs=1e-6),
                "linked": linked,
            }
        )
    request = subject.request
    kept = [
        row
        for row in found
        if row["status"] in request.statuses and (request.keeps_linked or not row["linked"])
    ]
    # Sets of one list that are of several sizes: the smaller come first among equals.
    ascending = sorted(kept, key=lambda r: (r["low"], len(r["set"]), r["set"]))
    descending = sorted(kept, key=lambda r: (-r["high"], len(r["set"]), r["set"]))
    places = {}
    for end in request.ends:
        mine = descending if end == "highest" else ascending
        limit = request.limit(end)
        if limit is not None:
            mine = [
                r for r in mine if (r["high"] >= limit if end == "highest" else r["low"] <= limit)
            ]
        places[end] = {row["set"]: i for i, row in enumerate(mine[: request.most])}
    of = {row["set"]: row for row in found}
    listed = []
    for end, mine in places.items():
        other = next((places[one] for one in places if one != end), {})
        # A set that both ends hold is where it comes sooner, and with the lowest where level.
        kept = [
            one
            for one, i in mine.items()
            if one not in other or i < other[one] or (i == other[one] and end == "lowest")
        ]
        listed += [{"end": end, "rank": rank_, **of[one]} for rank_, one in enumerate(kept, 1)]
    return listed


@contextmanager
def folder():
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def bytes_of(subject, scorer, **options):
    with folder() as at:
        ranking = rank_sets(subject, scorer, at / "out.parquet", **options)
        assert ranking is not None
        assert sorted(p.name for p in at.iterdir()) == ["out.parquet"]
        return (at / "out.parquet").read_bytes()


@settings(LAW, max_examples=60)
@given(subjects())
def test_it_is_what_scoring_every_set_and_sorting_gives(case):
    subject, scorer, screen, expected = case
    with folder() as at:
        ranking = rank_sets(subject, scorer, at / "out.parquet")
        rows = ranking.to_json()["rows"]
        assert pl.read_parquet(at / "out.parquet").columns == SCHEMA.names
    truth = by_hand(subject, scorer, screen, expected)
    names = ("end", "rank", "genes", "score", "spread", "status", "measured", "linked")
    assert [{n: row[n] for n in names} for row in rows] == [
        {n: row[n] for n in names} for row in truth
    ]
    assert len({tuple(row["genes"]) for row in rows}) == len(rows)
    assert ranking.about["counts"]["rows"] == len(truth)
    assert ranking.about["counts"]["sets"] == len(expected)


LIVES = st.tuples(st.booleans(), st.integers(0, 12), st.sampled_from([0.0, 1e9]))


@settings(LAW, max_examples=30)
@given(subjects(), st.lists(LIVES, max_size=6))
def test_stopped_or_killed_at_any_block_and_resumed_it_is_the_same_file(case, lives):
    subject, scorer, _, _ = case
    whole = bytes_of(subject, scorer)
    with folder() as at:
        out = at / "out.parquet"
        for is_killed, blocks, every in lives:
            left = iter([False] * blocks)
            options = {} if is_killed else {"stop": lambda left=left: next(left, True)}
            mortal = Mortal(scorer, blocks if is_killed else 10**9)
            with suppress(Killed):
                if rank_sets(subject, mortal, out, save_every=every, **options) is None:
                    assert not out.exists()
        rank_sets(subject, scorer, out)
        assert out.read_bytes() == whole
        assert [p.name for p in at.iterdir()] == ["out.parquet"]


@LAW
@given(subjects(), st.integers(2, 4), st.integers(0, 3))
def test_any_number_of_processes_gives_the_same_file(case, world, dies):
    subject, scorer, _, _ = case
    whole = bytes_of(subject, scorer)
    with folder() as at:
        out = at / "out.parquet"
        # The first puts all together, so it comes last here, where no other runs beside it.
        for number in reversed(range(world)):
            if number == dies:
                with suppress(Killed):
                    rank_sets(
                        subject, Mortal(scorer, 1), out, ranks=Ranks(number, world), save_every=0
                    )
            rank_sets(subject, scorer, out, ranks=Ranks(number, world))
        assert out.read_bytes() == whole
        # Given again, the first one alone has something to show, and nothing is left behind.
        again = [rank_sets(subject, scorer, out, ranks=Ranks(n, world)) for n in range(world)]
        assert [ranking is not None for ranking in again] == [n == 0 for n in range(world)]
        assert [p.name for p in at.iterdir()] == ["out.parquet"]


@LAW
@given(subjects().filter(lambda case: case[0].request.sets != FILE))
def test_the_order_of_blocks_does_not_matter(case):
    subject, scorer, _, _ = case
    sets = subject.sets
    turned = Backwards(sets.genes, sets.sizes[0], sets.given, sets_per_piece=4)
    assert bytes_of(replace(subject, sets=turned), scorer) == bytes_of(subject, scorer)


@LAW
@given(subjects())
def test_what_is_there_already_is_not_scored_again(case):
    subject, scorer, _, _ = case
    with folder() as at:
        first = rank_sets(subject, scorer, at / "out.parquet")
        asked = scorer.asked
        (at / "out.parquet.partial").mkdir()
        again = rank_sets(subject, scorer, at / "out.parquet")
        assert scorer.asked == asked
        assert again.to_json() == first.to_json()
        assert [p.name for p in at.iterdir()] == ["out.parquet"]


@LAW
@given(subjects(), st.integers(2, 4))
def test_a_process_that_comes_after_the_last_leaves_nothing_behind(case, world):
    subject, scorer, _, _ = case
    with folder() as at:
        out = at / "out.parquet"
        for number in reversed(range(world)):
            rank_sets(subject, scorer, out, ranks=Ranks(number, world))
        asked = scorer.asked
        # It looked for the file just before the first process wrote it.
        with pytest.MonkeyPatch.context() as patch:
            looks = iter([lambda *_, **__: None])
            finished = search._finished
            patch.setattr(search, "_finished", lambda *w, **n: next(looks, finished)(*w, **n))
            assert rank_sets(subject, scorer, out, ranks=Ranks(world - 1, world)) is None
        assert scorer.asked == asked
        assert [p.name for p in at.iterdir()] == ["out.parquet"]


def many(top=3, **options):
    """Return all triples of some genes as a subject, many blocks of them, and their scorer."""
    n = 14
    edges = Relation.from_edges("ring", [0, 1], [1, 2], n_genes=n, directed=False)
    cell = Cell(Genes([f"Y{i:02d}" for i in range(n)]), [edges])
    screen = Screen.build(cell.genes, Genotypes.of([[0, 1]]), score=1.0)
    sets = Combinations(np.arange(n), 3, sets_per_piece=8)
    subject = subject_of(Request(TRIPLES, top=top), cell, range(n), sets, screen)
    return subject, Additive(np.linspace(-1, 1, n), float("nan"), **options)


def test_what_was_done_is_on_the_disk_before_the_end():
    subject, scorer = many(prunes=False)
    with folder() as at:
        with pytest.raises(Killed):
            rank_sets(subject, Mortal(scorer, 30), at / "out", save_every=0)
        done = read_scored_about(at / "out.partial" / "rank-0-of-1.state")["done"]
        # A few are scored for the trial.
        assert 20 < done <= 30


@pytest.mark.parametrize("world", [1, 3])
def test_the_trial_is_of_what_this_process_has_left_with_the_bounds_that_there_are(
    world, monkeypatch
):
    subject, scorer = many()
    ranks = Ranks(world - 1, world)
    numbers, bounds = [], []

    def tried(sets, left, prunes, score):
        numbers.append(left)
        found = trial_seconds(sets, left, prunes, score)
        bounds.append(scorer.bounds)
        return found

    class Recording(Additive):
        def candidates(self, block, above, below):
            scorer.bounds = above, below
            return super().candidates(block, above, below)

    trial_seconds = search.trial_seconds
    monkeypatch.setattr(search, "trial_seconds", tried)
    recording = Recording(scorer.values, scorer.spread)
    with folder() as at:
        left = iter([False] * 40)
        rank_sets(subject, recording, at / "out", ranks=ranks, stop=lambda: next(left, True))
        done = read_scored_about(at / "out.partial" / f"{ranks.name()}.state")["done"]
        rank_sets(subject, recording, at / "out", ranks=ranks)
    every = range(subject.sets.n_pieces)[world - 1 :: world]
    assert done > 0
    assert numbers == [every, every[done:]]
    assert all(np.isfinite(bound).all() for bound in bounds)


N_TWINS = 6


def twins(model_name, betas):
    """Return a scorer of a real model in which some genes cannot be told apart, and its cell."""
    n = 20
    edges = np.random.default_rng(0).integers(0, n - N_TWINS, (2, 60))
    relation = Relation.from_edges("a", *edges, n_genes=n, directed=False)
    cell = Cell([f"Y{i:02d}" for i in range(n)], [relation])
    torch.manual_seed(1)
    if model_name == "dango":
        model = Dango(cell, ("a",), {"a": 1.0}, hidden=16, heads=2, layers=len(betas))
        with torch.no_grad():
            model.embedding.mul_(30.0)
            # Without an edge, and with the same embedding: the same vector.
            model.embedding[n - N_TWINS :] = model.embedding[-1]
            for layer, beta in zip(model.hyper_sagnn.sets.attention, betas, strict=True):
                layer.beta.fill_(beta)
    else:
        model = HeteroCell(cell, hidden=8, layers=2, local_heads=2).eval()
    return scorer_of_predictors([Predictor(model, cell, Standard(-0.05, 0.15))]), cell


@pytest.mark.parametrize(
    ("model", "betas", "size"),
    [
        ("dango", (0.25, 0.001), 2),
        ("dango", (0.25, 0.001), 3),
        ("dango", (0.25, 0.25), 2),
        ("dango", (0.25, 0.25), 3),
        ("hetero_cell", (), 2),
    ],
)
def test_models_rank_as_scoring_every_set_does(model, betas, size):
    scorer, cell = twins(model, betas)
    request = Request({2: PAIRS, 3: TRIPLES}[size], top=40)
    genes = np.arange(cell.n_genes)
    screen = Screen.build(cell.genes, Genotypes.of([[0, 1]]), score=1.0)
    sets = Combinations(genes, size, sets_per_piece=7**size)
    subject = subject_of(request, cell, genes, sets, screen)
    expected = list(combinations(range(cell.n_genes), size))
    score = scorer.score(np.array(expected)).score
    if model == "dango":
        assert len(np.unique(score)) < 0.6 * len(score)
    names = ("end", "rank", "genes", "score")
    truth = [{n: row[n] for n in names} for row in by_hand(subject, scorer, screen, expected)]
    with folder() as at:
        rows = rank_sets(subject, scorer, at / "out.parquet").to_json()["rows"]
    assert [{n: row[n] for n in names} for row in rows] == truth
