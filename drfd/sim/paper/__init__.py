"""The evaluation of the DRF paper (Ghodsi et al., NSDI 2011), made again."""
