"""HeteroCell: the score of a genotype from the difference between wild type and mutant."""
