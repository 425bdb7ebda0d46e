"""The decisions of drfd as pure functions and values: no clock, no I/O, no randomness."""
