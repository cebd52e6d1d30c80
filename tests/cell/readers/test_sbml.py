from __future__ import annotations

import logging
import sys
import warnings

import pytest

from deltacell.cell import Genes
from deltacell.cell.readers import recognise, sbml
from deltacell.errors import GeneNameError, InputError, MissingExtraError


def gene(name: str) -> str:
    return f'<fbc:geneProductRef fbc:geneProduct="{name}"/>'


def association(inner: str) -> str:
    return f"<fbc:geneProductAssociation>{inner}</fbc:geneProductAssociation>" if inner else ""


def reaction(
    name: str,
    low: str,
    rule: str = "",
    substrate: str = "A",
    product: str = "B",
    maps: tuple[str, ...] = (),
) -> str:
    return f"""
<reaction id="R_{name}" metaid="meta_{name}" reversible="true" fast="false"
          fbc:lowerFluxBound="{low}" fbc:upperFluxBound="high">
  {annotation(name, maps)}
  <listOfReactants><speciesReference species="M_{substrate}" stoichiometry="2" constant="true"/>
  </listOfReactants>
  <listOfProducts><speciesReference species="M_{product}" stoichiometry="1" constant="true"/>
  </listOfProducts>
  {association(rule)}
</reaction>"""


def annotation(name: str, maps: tuple[str, ...]) -> str:
    if not maps:
        return ""
    listed = "".join(
        f'<rdf:li rdf:resource="https://identifiers.org/kegg.pathway/{one}"/>' for one in maps
    )
    return f"""<annotation>
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"
         xmlns:bqbiol="http://biomodels.net/biology-qualifiers/">
<rdf:Description rdf:about="#meta_{name}"><bqbiol:is><rdf:Bag>{listed}</rdf:Bag></bqbiol:is>
</rdf:Description></rdf:RDF></annotation>"""


def group(name: str, *members: str) -> str:
    listed = "".join(f'<groups:member groups:idRef="R_{member}"/>' for member in members)
    return f"""<groups:group groups:id="g_{name}" groups:name="{name}" groups:kind="partonomy">
<groups:listOfMembers>{listed}</groups:listOfMembers></groups:group>"""


def model(*reactions: str, groups: tuple[str, ...] = ()) -> str:
    species = "".join(
        f'<species id="M_{name}" compartment="c" hasOnlySubstanceUnits="true" '
        'boundaryCondition="false" constant="false"/>'
        for name in "ABC"
    )
    products = "".join(
        f'<fbc:geneProduct fbc:id="{name}" fbc:label="{name}"/>'
        for name in ("YAL001C", "YAL002W", "YAL003W", "YBR001C__45__A", "TFC3")
    )
    bounds = "".join(
        f'<parameter id="{name}" value="{value}" constant="true"/>'
        for name, value in (("low", -1000), ("zero", 0), ("high", 1000))
    )
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<sbml xmlns="http://www.sbml.org/sbml/level3/version1/core" level="3" version="1"
      xmlns:fbc="http://www.sbml.org/sbml/level3/version1/fbc/version2" fbc:required="false"
      xmlns:groups="http://www.sbml.org/sbml/level3/version1/groups/version1"
      groups:required="false">
<model id="tiny" fbc:strict="true">
<listOfCompartments><compartment id="c" constant="true"/></listOfCompartments>
<listOfSpecies>{species}</listOfSpecies>
<listOfParameters>{bounds}</listOfParameters>
<listOfReactions>{"".join(reactions)}
</listOfReactions>
<fbc:listOfGeneProducts>{products}</fbc:listOfGeneProducts>
{f"<groups:listOfGroups>{''.join(groups)}</groups:listOfGroups>" if groups else ""}
</model>
</sbml>
"""


BOTH = f"<fbc:and>{gene('YAL001C')}{gene('YAL002W')}</fbc:and>"
EITHER = f"<fbc:or>{BOTH}{gene('YAL003W')}</fbc:or>"
TINY = model(
    reaction("one", "low", EITHER),
    reaction("two", "zero", gene("YBR001C__45__A"), "B", "C"),
    reaction("three", "zero", "", "C", "A"),
)
NAMES = ["YAL001C", "YAL002W", "YAL003W", "YBR001C-A"]


@pytest.mark.parametrize("ending", [".xml", ".xml.gz", ".xml.zip"])
def test_model_as_written(ending, write):
    path = write(TINY, "tiny" + ending)
    assert recognise(path) == "sbml"
    written = sbml.read(path)
    assert list(written.reactions) == ["one", "two", "three"]
    assert list(written.metabolites) == ["A", "B", "C"]
    assert sorted(written.stoichiometry) == [
        (0, 0, -2.0),
        (0, 1, 1.0),
        (1, 1, -2.0),
        (1, 2, 1.0),
        (2, 0, 1.0),
        (2, 2, -2.0),
    ]
    assert list(written.rules) == ["(YAL001C and YAL002W) or YAL003W", "YBR001C-A", ""]
    assert (list(written.lower), list(written.upper)) == ([-1000, 0, 0], [1000, 1000, 1000])
    assert sorted(written.gene_names) == sorted([*NAMES, "TFC3"])


def test_on_the_genes_of_a_cell(write):
    written = sbml.read(write(TINY))
    genes = Genes([*reversed(NAMES), "TFC3"])
    metabolism, source = written.on(genes)
    assert (metabolism.n_reactions, metabolism.n_metabolites) == (3, 3)
    pairs = zip(*(column.tolist() for column in metabolism.rule_genes), strict=True)
    assert list(pairs) == [(0, 1), (0, 2), (0, 3), (1, 0)]
    assert (metabolism.pathways, source.notes["pathways"]) == ((), 0)
    assert (source.reader, source.into) == ("sbml", "metabolism")
    assert (source.counts.read, source.counts.kept) == (5, 5)
    assert (source.notes["reactions"], source.notes["metabolites"]) == (3, 3)


def test_pathways_from_groups_and_from_maps(write):
    text = model(
        reaction("one", "low", EITHER, maps=("sce00620", "sce01110", "sce99999")),
        reaction("two", "zero", gene("YAL001C"), "B", "C", maps=("hsa00010",)),
        reaction("three", "zero", "", "C", "A"),
        groups=(group("Uptake", "two", "one"),),
    )
    written = sbml.read(write(text))
    assert [list(names) for names in written.pathways] == [
        ["Pyruvate metabolism", "Uptake", "sce99999"],
        ["Glycolysis / gluconeogenesis", "Uptake"],
        [],
    ]
    metabolism, source = written.on(Genes([*NAMES, "TFC3"]))
    assert metabolism.pathways[1] == ("Glycolysis / gluconeogenesis", "Uptake")
    assert source.notes["pathways"] == 4


def test_unknown_gene_under_each_policy(write):
    path = write(TINY)
    written = sbml.read(path)
    genes = Genes(["YAL001C", "YAL002W", "TFC3"])
    with pytest.raises(GeneNameError, match=r"'YAL003W'.*rule of reaction 'one'") as caught:
        written.on(genes)
    assert caught.value.where == path
    metabolism, source = written.on(genes, "drop")
    assert metabolism.n_genes == 3
    assert source.counts.dropped == {"unknown gene": 2}
    found = genes.resolve(written.gene_names).found
    unknown = [n for n, known in zip(written.gene_names, found, strict=True) if not known]
    assert written.on(genes.extended(unknown))[1].counts.kept == 5


def test_ambiguous_gene(write):
    genes = Genes(["G1", "G2", *NAMES], aliases=[["TFC3"], ["TFC3"], [], [], [], []])
    written = sbml.read(write(TINY))
    with pytest.raises(GeneNameError) as caught:
        written.on(genes)
    assert caught.value.code == "ambiguous-gene"
    assert written.on(genes, "drop")[1].counts.dropped == {"ambiguous gene name": 1}


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (TINY[: len(TINY) // 2], "not-sbml", True),
        (TINY.replace("</listOfReactions>", ""), "not-sbml", True),
        (
            TINY.replace('fbc:lowerFluxBound="low"', 'fbc:lowerFluxBound="absent"'),
            "not-sbml",
            False,
        ),
        ("<sbml/>", "not-sbml", True),
        ("this is no model\n", "not-sbml", False),
        (model(), "empty-file", False),
        (TINY.encode("utf-16"), "not-utf8", False),
    ],
)
def test_what_is_not_a_model(text, code, line, write):
    path = write(text, "bad.xml")
    with pytest.raises(InputError) as caught:
        sbml.read(path)
    assert (caught.value.code, caught.value.where) == (code, path)
    assert (caught.value.line is not None) == line


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


def test_rule_in_the_notes(write):
    written = sbml.read(write(LEGACY.replace("RULE", "YAL001C or YAL002W")))
    assert list(written.rules) == ["YAL001C or YAL002W"]
    assert sorted(written.gene_names) == ["YAL001C", "YAL002W"]
    with pytest.raises(InputError) as caught:
        sbml.read(write(LEGACY.replace("RULE", "(YAL001C and")))
    assert caught.value.code == "bad-rule"


def test_cobra_is_quiet_and_nothing_is_left_behind(write, caplog, recwarn):
    import cobra

    assert cobra.__version__
    logger = logging.getLogger("cobra")
    before = (list(logger.handlers), logger.propagate, logger.level, list(warnings.filters))
    written = sbml.read(write(TINY))
    assert written.notes["warnings of cobra"] > 0
    with pytest.raises(InputError):
        sbml.read(write("<sbml/>"))
    after = (list(logger.handlers), logger.propagate, logger.level, list(warnings.filters))
    assert after == before
    assert not caplog.records
    assert not recwarn.list


def test_without_cobra_the_extra_is_named(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "cobra", None)
    with pytest.raises(MissingExtraError, match=r"deltacell\[metabolism\]"):
        sbml.read(write("<sbml/>"))
