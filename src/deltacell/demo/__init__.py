"""The demonstration: a made-up cell whose truth is known, from its making to a ranked list."""
