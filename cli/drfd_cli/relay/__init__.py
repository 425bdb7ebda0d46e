"""What drf reads from the bytes between two terminals: keys for itself, and modes of the screen."""
