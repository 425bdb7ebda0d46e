"""Decisions: the events, or the refusal, that follow from a stimulus, given the ledger.

Nothing here applies an event or explains a wait.
"""
