"""The experiments of the DRF paper (Ghodsi et al., NSDI 2011), repeated in simulation."""
