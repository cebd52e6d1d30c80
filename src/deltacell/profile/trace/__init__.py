"""Traces: reading them into columns, and telling where the time goes."""
