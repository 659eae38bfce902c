"""Pipeline schedules as programs: generate, prove, draw, lower, run."""
