"""The account of promises, kept and checked by processes of their own beside the daemon's."""
