"""One scheduling pass, and all that is kept from one pass to the next.

Nothing here grants what people ask for: that is in `drfd.core.decisions`.
"""
