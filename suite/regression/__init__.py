"""Whether a change made training slower: paired launches, exact tests, verdicts, baselines, steps in a history."""
