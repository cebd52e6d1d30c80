"""The demo: from a synthetic cell with planted interactions to a ranked list."""
