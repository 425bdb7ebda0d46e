"""Why a job waits or ended, when it would start, and what to ask for instead.

It reads the ledger and the latest pass, and decides nothing. Begin at `reasons.explain_wait`.
"""
