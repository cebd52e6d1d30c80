"""`start` in Python: what it loads, tells and returns."""

import json

import pytest

import deltacell as dc
from deltacell.api.start import StartObserver
from deltacell.api.start_record import check_sources
from deltacell.data.import_folder import Imported
from deltacell.models import registry
from deltacell.profile.record import read_run
from deltacell.train.config.choose_settings import suited_config
from deltacell.train.config.compose import compose


class Recorder(StartObserver):
    """Keeps what it is told, and stops before a stage."""

    def __init__(self, stop_before=None):
        self.stages, self.sentences, self.results = [], [], []
        self.stop_before = stop_before

    def begin(self, stage):
        self.stages.append(stage)
        if stage.number == self.stop_before:
            raise KeyboardInterrupt

    def tell(self, sentence):
        self.sentences.append(sentence)

    def imported(self, imported):
        self.results.append("imported")

    def trained(self, outcome, config):
        self.results.append("trained")

    def evaluated(self, evaluated):
        self.results.append("evaluated")

    def refitted(self, refitted):
        self.results.append("refitted")

    def ranked(self, page_data, path):
        self.results.append("ranked")


@pytest.fixture
def tables(tmp_path):
    """A table of 30 pairs that share genes."""
    genes = [f"YAL{i:03}W" for i in range(1, 13)]
    rows = [
        f"{genes[i % 12]}\t{genes[(i + 1 + i // 12) % 12]}\t{0.1 * (i % 7) - 0.3}"
        for i in range(30)
    ]
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "screen.tsv").write_text("gene1\tgene2\tscore\n" + "\n".join(rows) + "\n")
    return folder


@pytest.fixture
def loads(monkeypatch):
    """How often a cell and a screen were loaded from disk."""
    counts = {"Cell": 0, "Screen": 0}

    def counting(kind):
        load = kind.load.__func__

        def counted(cls, *args, **options):
            counts[kind.__name__] += 1
            return load(cls, *args, **options)

        return classmethod(counted)

    for kind in (dc.Cell, dc.Screen):
        monkeypatch.setattr(kind, "load", counting(kind))
    return counts


def start(tables, out, observer, *settings):
    words = settings or ("model.rounds=5",)
    return dc.start(tables, out, top=5, settings=words, progress=False, observer=observer)


def test_the_cell_and_the_screen_are_loaded_once_and_no_stage_is_repeated(tables, tmp_path, loads):
    first, second = Recorder(), Recorder()
    started = start(tables, tmp_path / "out", first)
    assert loads == {"Cell": 1, "Screen": 1}
    assert first.results == ["imported", "trained", "evaluated", "refitted", "ranked"]
    assert [stage.exists for stage in first.stages] == [False] * 5
    assert [(stage.number, stage.of) for stage in first.stages] == [(n, 5) for n in range(1, 6)]
    commands = ["data", "train", "evaluate", "refit", "predict"]
    assert [stage.command[0] for stage in first.stages] == commands
    assert "model=pair_trees" in first.sentences[0]
    assert "By a trial on" in first.sentences[1]
    assert "fitting on all measurements" in first.sentences[1]
    saved = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert json.loads(json.dumps(started.evaluation)) == saved
    assert set(saved["predictors"]) >= {"additive", "boosted_trees"}
    assert started.ranking.to_pandas()["end"].value_counts().to_dict() == {
        "lowest": 5,
        "highest": 5,
    }
    assert started.run.loaded.record.path == tmp_path / "out" / "run"
    assert started.refitted.record.refitted.measurements == 30
    assert started.ranking.runs[0].record.path == tmp_path / "out" / "refitted"
    page = started.page.read_text()
    assert "<table" in page
    assert "then fitted on all 30 measurements" in page
    assert loads == {"Cell": 1, "Screen": 1}
    again = start(tables, tmp_path / "out", second)
    assert loads == {"Cell": 2, "Screen": 2}
    assert second.results == ["refitted", "ranked"]
    assert [stage.exists for stage in second.stages] == [True, True, True, True, False]
    assert again.evaluation == saved


def test_a_start_stopped_before_a_stage_resumes_at_that_stage(tables, tmp_path, loads):
    with pytest.raises(KeyboardInterrupt):
        start(tables, tmp_path / "out", Recorder(stop_before=3))
    assert str(read_run(tmp_path / "out" / "run").status) == "finished"
    resumed = Recorder()
    start(tables, tmp_path / "out", resumed)
    assert [stage.exists for stage in resumed.stages] == [True, True, False, False, False]


def test_a_start_stopped_before_the_refit_resumes_with_the_refit(tables, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        start(tables, out, Recorder(stop_before=4))
    assert (out / "evaluation.json").exists()
    assert not (out / "refitted").exists()
    resumed = Recorder()
    final = start(tables, out, resumed).refitted
    assert [stage.exists for stage in resumed.stages] == [True, True, True, False, False]
    assert final.record.refitted.chosen == dc.Run(out / "run").loaded.predictor.model.chosen()
    # Results of other settings are replaced as a whole.
    dc.start(tables, out, top=5, settings=["model.rounds=4"], overwrite=True, progress=False)
    assert max(dc.Run(out / "refitted").record.refitted.chosen.rounds) <= 4


def test_without_a_refit_the_tested_predictor_ranks(tables, tmp_path, refused):
    out, recorder = tmp_path / "out", Recorder()
    settings = ["model.rounds=5"]
    started = dc.start(
        tables, out, top=5, settings=settings, refit=False, progress=False, observer=recorder
    )
    assert [(stage.number, stage.of) for stage in recorder.stages] == [(n, 4) for n in range(1, 5)]
    assert started.refitted is None
    assert not (out / "refitted").exists()
    assert not any("all measurements" in sentence for sentence in recorder.sentences)
    assert started.ranking.runs[0].record.path == out / "run"
    # The ranking of another predictor is not taken for that of the refitted one.
    error = refused(
        "other-request", dc.start, tables, out, top=5, settings=settings, progress=False
    )
    assert "--overwrite" in str(error)


@pytest.mark.parametrize("model", ["dango", "boosted_trees"])
def test_the_settings_suit_the_model_that_is_named(tables, tmp_path, model):
    cell = dc.Cell.synthetic("demo")
    relations = ["physical", "regulatory"]
    out, recorder = tmp_path / "out", Recorder(stop_before=2)
    check_sources(tables, out, overwrite=False)
    screen = dc.Screen.synthetic(cell, n=300).take(range(60))
    Imported(cell.with_relations(relations), {"few": screen}).save(out / "data")
    with pytest.raises(KeyboardInterrupt):
        start(tables, out, recorder, f"model={model}")
    words = list(recorder.stages[1].command[1:])
    config = compose(words)
    assert config == suited_config(words)[0]
    if model == "dango":
        assert config.model.relations == relations
        assert config.model.lambdas.items() >= dict.fromkeys(relations, 1.0).items()
        assert config.data.batch_size == 32
    else:
        assert config.model == registry.config_class(model)()
        assert "ranking" in recorder.sentences[0]


@pytest.fixture
def wide(tmp_path):
    """A table of pairs in one column, with the scores of two cell lines."""
    genes = [f"G{i}X" for i in range(12)]
    pairs = [(a, b) for i, a in enumerate(genes) for b in genes[i + 1 :]]
    rows = [f"{a}_{b},{0.1 * (i % 7)},{0.1 * (i % 5)}" for i, (a, b) in enumerate(pairs)]
    folder = tmp_path / "wide"
    folder.mkdir()
    (folder / "paralogs.csv").write_text("\n".join(["names,PC9,HeLa", *rows, ""]))
    return folder


def test_a_start_takes_columns_and_a_condition_and_keeps_to_them(wide, tmp_path, refused):
    out, columns = tmp_path / "out", ["genes=names,score1=PC9,score2=HeLa"]
    recorder = Recorder(stop_before=2)
    options = {"settings": ["model.rounds=3"], "progress": False}
    with pytest.raises(KeyboardInterrupt):
        dc.start(wide, out, columns=columns, condition="hela", observer=recorder, **options)
    assert recorder.stages[0].command[-2:] == ("--columns", columns[0])
    words = recorder.stages[1].command
    assert "data.screen=paralogs_HeLa" in words
    assert "data.context=[paralogs_PC9]" in words
    error = refused("several-screens", dc.start, wide, out, columns=columns, **options)
    assert error.fields["screens"] == ["paralogs_HeLa", "paralogs_PC9"]
    asked = {"columns": columns, "condition": "A549", **options}
    refused("unknown-condition", dc.start, wide, out, **asked)
    refused("other-columns", dc.start, wide, out, condition="hela", **options)
    # Of a complete map every set is measured, and these are ranked.
    started = dc.start(wide, out, columns=columns, condition="hela", top=5, **options)
    assert set(started.ranking.to_pandas()["status"]) == {"measured"}


def test_a_folder_without_scores_is_refused_with_the_reason(tmp_path, refused):
    folder = tmp_path / "hits"
    folder.mkdir()
    (folder / "hits.csv").write_text("gene1,gene2,gene3\nA,B,C\nA,B,D\n")
    (folder / "network.csv").write_text("gene1,gene2,weight\nA,B,1\nC,D,1\n")
    error = refused("no-screen", dc.start, folder, tmp_path / "out", progress=False)
    assert "hits.csv" in error.fix
