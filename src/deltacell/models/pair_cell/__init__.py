"""PairCell: a network whose messages are the scores measured next to a set of genes."""
