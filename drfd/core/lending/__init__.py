"""Lending: which running jobs may use more than their floor for now, and how much.

Floors never move; the judgement here moves ceilings, of cores and of disk rates.
"""
