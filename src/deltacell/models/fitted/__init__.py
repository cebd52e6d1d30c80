"""Predictors that are fitted in one call: their base class, and gene sets as arrays."""
