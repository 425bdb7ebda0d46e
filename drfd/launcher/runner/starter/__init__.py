"""The start of a job's process by a small compiled program: its sources, its plan, its reports."""
