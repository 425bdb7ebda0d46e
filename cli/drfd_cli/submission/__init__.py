"""A job from the words of a command line to the answer of the daemon."""
