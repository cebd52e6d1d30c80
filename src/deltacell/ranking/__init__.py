"""Ranking of untested gene sets."""
