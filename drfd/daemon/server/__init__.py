"""Connections of clients: who is there, one bounded line after the other, what is logged of it."""
