"""The ledger: every live job, allocation and queue, and how an event changes them.

Only `Ledger.apply` writes it. Nothing here decides: history must replay as it was decided.
"""
