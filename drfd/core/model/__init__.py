"""Resources, machines, jobs, arrays, events with their transitions, and effects, as values.

Nothing here decides anything, or knows the ledger or the scheduler.
"""
