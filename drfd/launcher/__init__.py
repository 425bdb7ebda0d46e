"""The root part: owns the job cgroups, starts one runner per job."""
