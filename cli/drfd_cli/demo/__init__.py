"""`drf demo fig8`, `fig9` and `cluster`, and what all demos use: a private daemon, and a process as
a job."""
