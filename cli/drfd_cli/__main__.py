"""`python -I -m drfd_cli` runs the command drf."""

from drfd_cli.start import main

main()
