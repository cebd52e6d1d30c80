"""What happens around the steps of a training: checkpoints, figures, loggers, profilers."""
