"""drf: the command line."""
