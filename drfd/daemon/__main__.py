"""`python -I -m drfd.daemon`: the command drfd."""

from drfd.daemon.main import main

main()
