"""Records: the raw samples of each launch, as files."""
