"""Benchmarks: `python -m tests.bench`, and modules of it. They use what the tests have."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
