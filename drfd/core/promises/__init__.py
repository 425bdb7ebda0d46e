"""What each user was promised while it waited, what it held of that, and why it lacked the rest.

The account can be told of a simulated run, or of the events of a journal.
"""
