"""The report: everything a person reads, computed from raw samples each time."""
