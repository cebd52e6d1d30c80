"""Work on a CPU's cores: threads, row-wise functions in chunks, and graphs of their own."""
