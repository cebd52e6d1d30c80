"""What every package uses: errors, array types, text, files and memory."""
