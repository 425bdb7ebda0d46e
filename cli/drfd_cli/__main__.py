"""`python -I -m drfd_cli`: the same as the command drf."""

from drfd_cli.start import main

main()
