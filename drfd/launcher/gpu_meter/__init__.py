"""How much memory and time of each GPU of NVIDIA is used, and by which processes.

Calls of a GPU's driver may take seconds, or never return. So a separate process without root's
rights makes them, and the launcher passes its lines on (`supervision.py`).
"""
