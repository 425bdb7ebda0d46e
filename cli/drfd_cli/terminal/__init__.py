"""The terminal of a job that is attached to that of drf: its pty, and who keeps and shows it."""
