"""What clients and the daemon say to each other; no sockets."""
