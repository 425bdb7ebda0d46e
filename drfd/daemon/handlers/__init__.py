"""The action of each verb: a checked request and its sender in, a reply out.

Sockets do not belong here; `drfd.daemon.server` has them.
"""
