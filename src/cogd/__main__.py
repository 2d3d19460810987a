"""`python -m cogd` is the command line."""

from cogd.cli import main

main()
