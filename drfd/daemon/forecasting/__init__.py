"""Forecasts of start times, made by processes that hold a copy of the ledger.

Nothing here changes the daemon's own ledger.
"""
