"""Experiments: those of the DRF paper (Ghodsi et al., NSDI 2011), simulated and with real
processes; and small problems solved exactly. A checkout of the source
has them, an installed drfd has not."""
