"""Clients that stay connected: they wait for jobs, follow events, or watch snapshots."""
