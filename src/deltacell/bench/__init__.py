"""What `deltacell bench` runs on the machine of a user; it computes and returns values."""
