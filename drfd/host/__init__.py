"""What this machine has and does: capacity, disks, measured use."""
