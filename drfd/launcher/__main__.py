"""`python -I -m drfd.launcher`: how `drfd serve` starts its own launcher."""

from drfd.launcher.main import main

main()
