"""The commands of `drf simulate`: their options and output. The simulation is `drfd.sim`."""
