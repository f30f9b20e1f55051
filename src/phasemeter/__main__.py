"""`python -m phasemeter`."""

from phasemeter.cli.main import main

main()
