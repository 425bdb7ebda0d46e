"""The commands of the experiments: each module has a click command called `command`."""
