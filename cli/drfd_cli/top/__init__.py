"""The live view: `drf top`."""
