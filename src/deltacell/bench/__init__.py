"""What `deltacell bench` runs; it computes and returns, and others render."""
