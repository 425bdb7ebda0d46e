"""One verb, one module: each defines a click command called `command`."""
