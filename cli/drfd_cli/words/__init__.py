"""What words of a command line mean: jobs by name, and the completion of words in shells."""
