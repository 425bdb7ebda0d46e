"""The pty of a job and who keeps it, and what drf reads from the bytes between two terminals: keys
for itself, and modes of the screen."""
