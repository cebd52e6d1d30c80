import logging
import warnings
from subprocess import CompletedProcess

import cobra
import pytest

from deltacell.cell import Genes
from deltacell.cell.readers import sbml

NAMES = ["YAL001C", "YAL002W", "YAL003W", "YBR001C-A"]
read = sbml.reader.read
# Name, lower bound, substrate, product and rule.
REACTIONS = (
    ("one", -1000, "A", "B", "(YAL001C and YAL002W) or YAL003W"),
    ("two", 0, "B", "C", "YBR001C-A"),
    ("three", 0, "C", "A", ""),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a function that gives the SBML of some reactions, with KEGG maps and groups."""

    def text(reactions=REACTIONS, maps=None, groups=None):
        model = cobra.Model("tiny")
        metabolites = {name: cobra.Metabolite(name, compartment="c") for name in "ABC"}
        for name, low, substrate, product, rule in reactions:
            reaction = cobra.Reaction(name, lower_bound=low, upper_bound=1000)
            reaction.add_metabolites({metabolites[substrate]: -2, metabolites[product]: 1})
            reaction.gene_reaction_rule = rule
            if maps and name in maps:
                reaction.annotation["kegg.pathway"] = maps[name]
            model.add_reactions([reaction])
        for name, members in (groups or {}).items():
            model.add_groups(
                [cobra.core.Group(name, name, map(model.reactions.get_by_id, members))],
            )
        path = tmp_path_factory.mktemp("models") / "tiny.xml"
        cobra.io.write_sbml_model(model, str(path))
        return path.read_text()

    return text


@pytest.fixture
def without_trial(monkeypatch):
    """Read without a process that tries first, which sound files do not need."""
    done = CompletedProcess([], 0)
    monkeypatch.setattr(sbml.subprocess, "run", lambda *_, **__: done)


@pytest.mark.usefixtures("without_trial")
@pytest.mark.parametrize("ending", [".xml", ".xml.gz"])
def test_a_model_is_read_as_written(ending, model, write, reader_of):
    path = write(model(), "tiny" + ending)
    assert reader_of(path) == "sbml"
    written = read(path)
    parts = written.parts
    assert (parts["reactions"], sorted(parts["metabolites"])) == (["one", "two", "three"], [*"ABC"])
    names = parts["metabolites"]
    stoichiometry = sorted((r, names[m], c) for r, m, c in parts["stoichiometry"])
    assert stoichiometry == [
        *((0, "A", -2.0), (0, "B", 1.0), (1, "B", -2.0)),
        *((1, "C", 1.0), (2, "A", 1.0), (2, "C", -2.0)),
    ]
    assert parts["rules"] == [rule for *_, rule in REACTIONS]
    assert (parts["lower"], parts["upper"]) == ([-1000, 0, 0], [1000, 1000, 1000])
    metabolism, source = written.on(Genes(reversed(NAMES)))
    pairs = zip(*(column.tolist() for column in metabolism.rule_genes), strict=True)
    assert list(pairs) == [(0, 1), (0, 2), (0, 3), (1, 0)]
    assert (metabolism.pathways, source.into) == ((), "metabolism")
    assert (source.counts.read, source.counts.kept) == (4, 4)
    assert source.notes == {"reactions": 3, "metabolites": 3, "pathways": 0}


@pytest.mark.usefixtures("without_trial")
def test_pathways_from_groups_and_from_maps(model, write):
    maps = {"one": ["sce00620", "sce01110", "sce99999"], "two": ["hsa00010"]}
    written = read(write(model(maps=maps, groups={"Uptake": ["two", "one"]})))
    assert [list(names) for names in written.parts["pathways"]] == [
        ["Pyruvate metabolism", "Uptake", "sce99999"],
        ["Glycolysis / gluconeogenesis", "Uptake"],
        [],
    ]
    metabolism, source = written.on(Genes(NAMES))
    assert metabolism.pathways[1] == ("Glycolysis / gluconeogenesis", "Uptake")
    assert source.notes["pathways"] == 4


@pytest.mark.usefixtures("without_trial")
def test_unknown_and_ambiguous_genes_under_each_policy(model, write, refused):
    refused("empty-file", read, write(model(reactions=())))
    path = write(model())
    written = read(path)
    several = Genes(["G1", "G2", *NAMES[1:]], aliases=[NAMES[:1], NAMES[:1], [], [], []])
    for genes, code, dropped in (
        (Genes(NAMES[:2]), "unknown-gene", {"unknown gene": 2}),
        (several, "ambiguous-gene", {"ambiguous gene name": 1}),
    ):
        assert refused(code, written.on, genes).where == path
        assert written.on(genes, "drop")[1].counts.dropped == dropped
    assert written.on(Genes(NAMES[:2]).extended(written.gene_names))[1].counts.kept == 4


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda text: text[: len(text) // 2], "not-sbml"),
        (lambda text: text.replace('lowerFluxBound="', 'lowerFluxBound="absent'), "not-sbml"),
        (lambda text: text.replace("</fbc:gene", "<listOfReactants/></fbc:gene", 1), "not-sbml"),
        (lambda text: "<sbml/>", "not-sbml"),
        (lambda text: "this is no model\n", "other-format"),
        (lambda text: text.encode("utf-16"), "not-sbml"),
    ],
)
def test_damaged_models_are_refused_with_codes(spoil, code, model, write, refused):
    path = write(spoil(model()), "bad.xml")
    assert refused(code, read, path).where == path


LEGACY = """<?xml version="1.0" encoding="UTF-8"?>
<sbml xmlns="http://www.sbml.org/sbml/level3/version1/core" level="3" version="1">
<model id="old">
<listOfCompartments><compartment id="c" constant="true"/></listOfCompartments>
<listOfSpecies><species id="M_A" compartment="c" hasOnlySubstanceUnits="true"
  boundaryCondition="false" constant="false"/></listOfSpecies>
<listOfReactions><reaction id="R_one" reversible="false" fast="false">
  <notes><body xmlns="http://www.w3.org/1999/xhtml"><p>GENE_ASSOCIATION: RULE</p></body></notes>
  <listOfReactants><speciesReference species="M_A" stoichiometry="1" constant="true"/>
  </listOfReactants></reaction></listOfReactions>
</model>
</sbml>
"""


@pytest.mark.usefixtures("without_trial")
def test_rule_in_the_notes(write, refused):
    written = read(write(LEGACY.replace("RULE", "YAL001C or YAL002W")))
    assert list(written.parts["rules"]) == ["YAL001C or YAL002W"]
    assert sorted(written.gene_names) == ["YAL001C", "YAL002W"]
    refused("not-sbml", lambda: read(write(LEGACY.replace("RULE", "(YAL001C and"))))


def test_cobra_is_quiet_and_nothing_is_left_behind(model, write, caplog, recwarn, refused):
    path, logger = write(model()), logging.getLogger("cobra")
    caplog.clear()
    recwarn.clear()
    before = (list(logger.handlers), logger.propagate, logger.level, list(warnings.filters))
    read(path)
    refused("not-sbml", read, write("<sbml/>"))
    after = (list(logger.handlers), logger.propagate, logger.level, list(warnings.filters))
    assert (after, caplog.records, recwarn.list) == (before, [], [])
