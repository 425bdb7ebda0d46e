"""What all demos use: a private daemon, and a process as a job."""
