"""`python -m offbeat`: the command line, where the `offbeat` script is not on the path."""

from offbeat.cli import main

main(prog_name="offbeat")
