"""What is shown to a person who waits for jobs: how they ended, and the last lines of output."""
