"""What a paper published beside what was simulated, measured and emulated here."""
