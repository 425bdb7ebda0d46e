"""The protocol between clients and the daemon: requests, replies, framing and version.

Nothing here opens a socket or imports the daemon: both ends need this package.
"""
