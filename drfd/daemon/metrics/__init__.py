"""Metrics for Prometheus: what `drf top` shows to all, counts of ends, latencies and health."""
