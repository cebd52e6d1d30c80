"""Traces: read them into columns, and attribute their time."""
