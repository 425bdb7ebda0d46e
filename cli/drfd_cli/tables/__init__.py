"""Lists of jobs, pools, machines and sums: their columns, and how these are laid out."""
