"""The root part: owns the cgroups of jobs, and gives each attempt to a runner."""
