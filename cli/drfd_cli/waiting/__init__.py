"""What is shown to a person who waits for jobs: their progress, their ends, their last output."""
