"""`python -m joma` is the `joma` command."""

from joma.cli import main

main()
