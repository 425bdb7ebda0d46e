"""Who is promised what, holds what, and comes next: the tree of pools and users.

Nothing here plans reservations, chooses a job or reads the ledger.
"""
