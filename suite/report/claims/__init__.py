"""Whether what a paper claims holds by its own numbers and by the records here."""
