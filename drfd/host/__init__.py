"""This machine: its capacity, its disks, and measured usage. The only package with psutil."""
