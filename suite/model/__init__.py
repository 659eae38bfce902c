"""The GPT, cut into virtual stages."""
