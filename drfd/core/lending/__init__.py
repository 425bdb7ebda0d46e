"""Lending: which running jobs may use more than their floor for now, and how much.

Weights in the kernel stand for the floors and never move; the judgement here moves ceilings.
"""
