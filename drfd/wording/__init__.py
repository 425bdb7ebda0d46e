"""Wording: the sentences that users read about waits, from typed evidence.

Each function turns values of the core into text. Nothing here decides, looks anything up in the
ledger, reads a clock or does I/O; the caller passes the function that shows times.
"""
