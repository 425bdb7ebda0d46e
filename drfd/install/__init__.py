"""Installing drfd as a service of the system: what is to be where, and the steps to get there."""
