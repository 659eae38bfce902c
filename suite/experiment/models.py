"""The model zoo: shapes by name. The paper's models and small ones.

The paper's are named by their parameters in billions, by its equation 2, but for its own "GPT-3 175B" (174.6) and 1T
(1008). Where its text has other names, these leave out the embedding, or digits.
"""

_PAPER = {"vocab_size": 51200, "seq_length": 2048}


def _gpt(layers: int, hidden_size: int, heads: int, **rest: object) -> dict[str, object]:
    return {"layers": layers, "hidden_size": hidden_size, "heads": heads, **rest}


MODELS: dict[str, dict[str, object]] = {
    "gpt-nano": _gpt(4, 64, 4, vocab_size=256, seq_length=64),
    "gpt-tiny": _gpt(8, 128, 4, vocab_size=256, seq_length=128),
    "gpt-mini": _gpt(8, 512, 8, vocab_size=8192, seq_length=256),
    "gpt2": _gpt(12, 768, 12, vocab_size=50257, seq_length=1024),
    "gpt-1b": _gpt(4, 4096, 128, **_PAPER),  # figures 7 and 8
    "gpt-1.7b": _gpt(24, 2304, 24, **_PAPER),
    "gpt-3.6b": _gpt(30, 3072, 32, **_PAPER),
    "gpt-5.9b": _gpt(32, 3840, 32, **_PAPER),  # figures 14 and 15
    "gpt-7.5b": _gpt(36, 4096, 32, **_PAPER),
    "gpt-16.2b": _gpt(3, 20480, 128, **_PAPER),  # figure 11, "15B", and the next three: its weak scaling
    "gpt-31.3b": _gpt(6, 20480, 128, **_PAPER),
    "gpt-61.5b": _gpt(12, 20480, 128, **_PAPER),
    "gpt-121.9b": _gpt(24, 20480, 128, **_PAPER),  # "121B"
    "gpt-18.4b": _gpt(40, 6144, 48, **_PAPER),
    "gpt-39.1b": _gpt(48, 8192, 64, **_PAPER),
    "gpt-76.1b": _gpt(60, 10240, 80, **_PAPER),
    "gpt-91.4b": _gpt(32, 15360, 128, **_PAPER),  # figure 16, "91B"
    "gpt-145.6b": _gpt(80, 12288, 96, **_PAPER),
    "gpt-162.2b": _gpt(32, 20480, 128, **_PAPER),  # figure 13, "161B" in its text
    "gpt-175b": _gpt(96, 12288, 96, **_PAPER),
    "gpt-310.1b": _gpt(96, 16384, 128, **_PAPER),
    "gpt-529.6b": _gpt(105, 20480, 128, **_PAPER),
    "gpt-1t": _gpt(128, 25600, 160, **_PAPER),
}
