"""A small screen."""

import numpy as np
import pytest

from deltacell.cell import Genes
from deltacell.screen import Coverage, Genotypes, Screen, StudyCoverage


@pytest.fixture
def screen():
    """Six rows: one pair three times, a triple as a hit, a single, and a fitness."""
    return Screen.build(
        Genes([f"g{i}" for i in range(6)], [f"N{i}" for i in range(6)]),
        Genotypes.of([[0, 1], [2, 3, 4], [1, 0], [5], [0, 1], [0, 1]]),
        score=[-0.5, np.nan, 0.25, 0.5, -0.125, 0.75],
        sign=[-1, -1, 1, 1, -1, 0],
        standard_deviation=[0.3, np.nan, 0.4, 0.1, 1.2, 0.2],
        p_value=[0.04, np.nan, 0.01, np.nan, 0.01, 0.001],
        phenotype=[*["interaction"] * 5, "fitness"],
        study=["a", "a", "b", "b", "b", "a"],
        role=["query", "array", "query", "query", "array", *["unknown"] * 7],
        allele=[f"x{i}" for i in range(12)],
        perturbation=["ts", *["deletion"] * 11],
        coverage=Coverage(
            (
                StudyCoverage(
                    "a",
                    np.array([0, 2, 3]),
                    np.array([0, 1, 3]),
                    np.array([1, 4]),
                    True,
                ),
                StudyCoverage("b", np.array([1]), np.array([0, 1]), np.array([0]), False),
            ),
        ),
    )
