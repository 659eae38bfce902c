"""The model zoo: shapes by name. The paper's models (its table 1, 175B from section 5.2) and small ones."""

_PAPER = {"vocab_size": 51200, "seq_length": 2048}


def _gpt(layers: int, hidden_size: int, heads: int, **rest: object) -> dict[str, object]:
    return {"layers": layers, "hidden_size": hidden_size, "heads": heads, **rest}


MODELS: dict[str, dict[str, object]] = {
    "gpt-nano": _gpt(4, 64, 4, vocab_size=256, seq_length=64),
    "gpt-tiny": _gpt(8, 128, 4, vocab_size=256, seq_length=128),
    "gpt-mini": _gpt(8, 512, 8, vocab_size=8192, seq_length=256),
    "gpt2": _gpt(12, 768, 12, vocab_size=50257, seq_length=1024),
    "gpt-1.7b": _gpt(24, 2304, 24, **_PAPER),
    "gpt-3.6b": _gpt(30, 3072, 32, **_PAPER),
    "gpt-7.5b": _gpt(36, 4096, 32, **_PAPER),
    "gpt-18.4b": _gpt(40, 6144, 48, **_PAPER),
    "gpt-39.1b": _gpt(48, 8192, 64, **_PAPER),
    "gpt-76.1b": _gpt(60, 10240, 80, **_PAPER),
    "gpt-145.6b": _gpt(80, 12288, 96, **_PAPER),
    "gpt-175b": _gpt(96, 12288, 96, **_PAPER),
    "gpt-310.1b": _gpt(96, 16384, 128, **_PAPER),
    "gpt-529.6b": _gpt(105, 20480, 128, **_PAPER),
    "gpt-1t": _gpt(128, 25600, 160, **_PAPER),
}
