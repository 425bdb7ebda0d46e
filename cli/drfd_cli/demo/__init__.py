"""`drf demo fig8` and `fig9`, and what all demos use: a private daemon, and a process as a job."""
