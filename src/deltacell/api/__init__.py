"""The Python API: the verbs `fit`, `evaluate`, `rank`, `why` and `start`, and the noun `Run`."""
