"""PairTrees: boosted trees on the scores measured next to a set of genes."""
