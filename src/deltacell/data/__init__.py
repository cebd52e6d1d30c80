"""Cells and screens from files: the import of a folder, and downloads."""
