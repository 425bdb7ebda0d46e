"""Installation of drfd as a system service: its files, links and units, and how they are made."""
