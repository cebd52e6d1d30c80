"""Training: the task, its loop, the run directory and the config."""
