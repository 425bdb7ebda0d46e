"""The controller: queue, fairness, journal; unprivileged."""
