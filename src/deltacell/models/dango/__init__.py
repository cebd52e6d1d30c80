"""DANGO: gene vectors that reconstruct the networks and score sets of genes."""
