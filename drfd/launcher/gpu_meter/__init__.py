"""How much memory and time of each GPU of NVIDIA is used, and by which processes.

Calls of a GPU's driver may take seconds, or never return. So a separate process without root's
rights makes them, and the launcher passes its lines on (`supervision.py`).
"""

#: Seconds between two lines of the process that measures.
PERIOD_S = 2.0
#: Largest number of bytes of a line. Where it would be longer, it has fewer processes.
MAX_LINE_BYTES = 256 << 10
