"""`python -I -m drfd.daemon`: the same as the command drfd."""

from drfd.daemon.main import main

main()
