"""Amounts of resources: as declared, as vectors, and where on the machine, or on which of several,
they are free or held.
"""
