"""Names of the pathways that a metabolic model writes as maps of KEGG (``sce00620``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

_MAP = re.compile(r"[a-z]{2,4}(\d{5})")


def pathway_name(written: str) -> str | None:
    """Return what people call a pathway; None where it is no pathway but an overview of many.

    Parameters
    ----------
    written
        A map of KEGG with the letters of any organism, or a name, which stays as it is. So does a
        map whose name is not known here.
    """
    written = written.strip()
    number = _MAP.fullmatch(written)
    if not written or (number and 1100 <= int(number[1]) < 1300):
        return None
    if number and number[1] in NAMES:
        return NAMES[number[1]]
    return written


NAMES: Mapping[str, str] = MappingProxyType(
    {
        "00010": "Glycolysis / gluconeogenesis",
        "00020": "Citrate cycle",
        "00030": "Pentose phosphate pathway",
        "00040": "Pentose and glucuronate interconversions",
        "00051": "Fructose and mannose metabolism",
        "00052": "Galactose metabolism",
        "00053": "Ascorbate and aldarate metabolism",
        "00061": "Fatty acid biosynthesis",
        "00062": "Fatty acid elongation",
        "00071": "Fatty acid degradation",
        "00072": "Ketone bodies",
        "00100": "Steroid biosynthesis",
        "00130": "Ubiquinone biosynthesis",
        "00190": "Oxidative phosphorylation",
        "00220": "Arginine biosynthesis",
        "00230": "Purine metabolism",
        "00240": "Pyrimidine metabolism",
        "00250": "Alanine, aspartate and glutamate metabolism",
        "00260": "Glycine, serine and threonine metabolism",
        "00270": "Cysteine and methionine metabolism",
        "00280": "Valine, leucine and isoleucine degradation",
        "00290": "Valine, leucine and isoleucine biosynthesis",
        "00300": "Lysine biosynthesis",
        "00310": "Lysine degradation",
        "00330": "Arginine and proline metabolism",
        "00340": "Histidine metabolism",
        "00350": "Tyrosine metabolism",
        "00360": "Phenylalanine metabolism",
        "00380": "Tryptophan metabolism",
        "00400": "Phenylalanine, tyrosine and tryptophan biosynthesis",
        "00410": "beta-Alanine metabolism",
        "00430": "Taurine and hypotaurine metabolism",
        "00440": "Phosphonate and phosphinate metabolism",
        "00450": "Selenocompound metabolism",
        "00480": "Glutathione metabolism",
        "00500": "Starch and sucrose metabolism",
        "00510": "N-Glycan biosynthesis",
        "00513": "Various types of N-glycan biosynthesis",
        "00514": "Other types of O-glycan biosynthesis",
        "00515": "Mannose type O-glycan biosynthesis",
        "00520": "Amino sugar and nucleotide sugar metabolism",
        "00561": "Glycerolipid metabolism",
        "00562": "Inositol phosphate metabolism",
        "00563": "GPI-anchor biosynthesis",
        "00564": "Glycerophospholipid metabolism",
        "00565": "Ether lipid metabolism",
        "00590": "Arachidonic acid metabolism",
        "00592": "alpha-Linolenic acid metabolism",
        "00600": "Sphingolipid metabolism",
        "00620": "Pyruvate metabolism",
        "00630": "Glyoxylate and dicarboxylate metabolism",
        "00640": "Propanoate metabolism",
        "00650": "Butanoate metabolism",
        "00660": "C5-Branched dibasic acid metabolism",
        "00670": "One carbon pool by folate",
        "00680": "Methane metabolism",
        "00730": "Thiamine metabolism",
        "00740": "Riboflavin metabolism",
        "00750": "Vitamin B6 metabolism",
        "00760": "Nicotinate and nicotinamide metabolism",
        "00770": "Pantothenate and CoA biosynthesis",
        "00780": "Biotin metabolism",
        "00785": "Lipoic acid metabolism",
        "00790": "Folate biosynthesis",
        "00860": "Porphyrin metabolism",
        "00900": "Terpenoid backbone biosynthesis",
        "00909": "Sesquiterpenoid and triterpenoid biosynthesis",
        "00910": "Nitrogen metabolism",
        "00920": "Sulfur metabolism",
        "00970": "Aminoacyl-tRNA biosynthesis",
        "01040": "Biosynthesis of unsaturated fatty acids",
        "02010": "ABC transporters",
        "03018": "RNA degradation",
        "04011": "MAPK signaling pathway of yeast",
        "04070": "Phosphatidylinositol signaling system",
        "04111": "Cell cycle of yeast",
        "04113": "Meiosis of yeast",
        "04122": "Sulfur relay system",
        "04136": "Autophagy",
        "04138": "Autophagy of yeast",
        "04139": "Mitophagy of yeast",
        "04144": "Endocytosis",
        "04145": "Phagosome",
        "04146": "Peroxisome",
        "04213": "Longevity regulating pathway",
    }
)
"""By the number of the map. Overviews, 01100 to 01299, are not pathways and not here."""
