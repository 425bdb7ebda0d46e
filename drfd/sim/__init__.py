"""The same core under a virtual clock: small problems, and traces."""
