"""Why one training takes longer than another, by trying: short trials of both and of variations.

`sides.py` reads the two configs, `differences.py` says in what they differ, `arms.py` lists what is
tried, `trials.py` runs one trial and `table.py` keeps the finished ones, `schedule.py` runs them in
turns, and `result.py` attributes the difference.
"""
