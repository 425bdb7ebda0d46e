"""The account of promises of a journal's events: kept by the hour, chained, and computed again.

It is kept in a file beside the journal, so that nothing of it delays the daemon's turns.
"""
