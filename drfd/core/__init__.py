"""The judgement of drfd, pure: no clock, no I/O, no randomness."""
