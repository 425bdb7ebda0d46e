"""Jobs and arrays as clients see them: found by id or selection, and shown by who may see what.

Nothing here changes anything.
"""
