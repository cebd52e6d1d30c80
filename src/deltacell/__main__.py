"""`python -m deltacell`."""

from deltacell.cli import main

main()
