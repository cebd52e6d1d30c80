"""What only developers of deltacell use: benchmarks of itself, and pages made from the code.

No wheel contains it; an editable install (`make setup`) finds it beside deltacell.
"""
