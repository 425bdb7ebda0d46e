"""Jobs, arrays, stimuli, events, the state table and the effects, as values.

Nothing here decides anything, or knows the ledger or the scheduler.
"""
