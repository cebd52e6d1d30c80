"""The settings of the baselines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from deltacell.models.config import (
    AtLeast1,
    AtLeast2,
    BelowOne,
    ModelConfig,
    Positive,
    ToOne,
    Weight,
)


@dataclass
class GlobalMeanConfig(ModelConfig):
    """The mean of the training scores."""

    trained_by: ClassVar[Literal["loop", "fit"]] = "fit"
    predictor: ClassVar[str] = "deltacell.models.baselines.additive:GlobalMean"

    name: str = "global_mean"


@dataclass
class AdditiveConfig(ModelConfig):
    """The sum of one effect per gene; every model should beat it."""

    trained_by: ClassVar[Literal["loop", "fit"]] = "fit"
    predictor: ClassVar[str] = "deltacell.models.baselines.additive:Additive"

    name: str = "additive"
    penalty: Positive = 3.0


@dataclass
class QueryPairMeanConfig(ModelConfig):
    """The mean of the training scores of a genotype's gene pairs, shrunk."""

    trained_by: ClassVar[Literal["loop", "fit"]] = "fit"
    predictor: ClassVar[str] = "deltacell.models.baselines.query_pairs:QueryPairMean"

    name: str = "query_pair_mean"
    shrinkage: Positive = 3.0
    penalty: Positive = 3.0


@dataclass
class QueryPairConfig(ModelConfig):
    """The mean of the training scores with the same query pair, and nothing of the genes."""

    trained_by: ClassVar[Literal["loop", "fit"]] = "fit"
    predictor: ClassVar[str] = "deltacell.models.baselines.query_pairs:QueryPair"

    name: str = "query_pair"
    shrinkage: Positive = 3.0


@dataclass
class AdditivePairConfig(ModelConfig):
    """One effect per gene and one per pair of genes, for screens of triples."""

    trained_by: ClassVar[Literal["loop", "fit"]] = "fit"
    predictor: ClassVar[str] = "deltacell.models.baselines.query_pairs:AdditivePair"

    name: str = "additive_pair"
    penalty: Positive = 3.0
    pair_penalty: Positive = 10.0


@dataclass
class NearestProfilesConfig(ModelConfig):
    """The scores of the genes with the most similar interactions, on top of additive effects."""

    trained_by: ClassVar[Literal["loop", "fit"]] = "fit"
    predictor: ClassVar[str] = "deltacell.models.baselines.nearest_profiles:NearestProfiles"

    name: str = "nearest_profiles"
    shrinkage: Positive = 0.05
    penalty: Positive = 3.0


@dataclass
class MatrixFactorisationConfig(ModelConfig):
    """Biased matrix factorisation: additive effects, and factors of genes for what they leave."""

    trained_by: ClassVar[Literal["loop", "fit"]] = "fit"
    predictor: ClassVar[str] = "deltacell.models.baselines.factorisation:MatrixFactorisation"

    name: str = "matrix_factorisation"
    rank: AtLeast1 = 64
    sweeps: AtLeast1 = 8
    factor_penalty: Positive = 1.0
    factor_penalty_per_score: Weight = 0.1
    penalty: Positive = 3.0


@dataclass
class LowRankConfig(ModelConfig):
    """Additive effects, and a low-rank completion of the matrix of pairs (soft-impute)."""

    trained_by: ClassVar[Literal["loop", "fit"]] = "fit"
    predictor: ClassVar[str] = "deltacell.models.baselines.low_rank:LowRank"

    name: str = "low_rank"
    rank: AtLeast1 = 96
    threshold: BelowOne = 0.3
    steps: AtLeast1 = 12
    penalty: Positive = 3.0


@dataclass
class BoostedTreesConfig(ModelConfig):
    """Gradient-boosted trees on networks, gene features and additive effects."""

    trained_by: ClassVar[Literal["loop", "fit"]] = "fit"
    predictor: ClassVar[str] = "deltacell.models.baselines.boosted_trees:BoostedTrees"

    name: str = "boosted_trees"
    rounds: AtLeast1 = 300
    leaves: AtLeast2 = 63
    learning_rate: ToOne = 0.1
    dimensions: AtLeast1 = 8
    feature_dimensions: AtLeast1 = 16
    penalty: Positive = 3.0
    folds: AtLeast2 = 5
    forget: BelowOne = 0.1
    features: list[str] | None = None

    def rounds_of_fit(self, *, has_zeros: bool) -> int:
        """Return the number of trees."""
        return self.rounds

    def with_rounds(self, rounds: int) -> BoostedTreesConfig:
        """Return a config with fewer trees."""
        return replace(self, rounds=rounds)
