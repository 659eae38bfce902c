"""Which layers each virtual stage holds."""


def layer_split(layers: int, virtual_stages: int, split: tuple[int, ...] | None = None) -> list[range]:
    """The layers of every virtual stage, in model order; each layer in exactly one.

    Without a `split` (layers per stage) the layers are spread evenly; what does not divide goes to the first
    stages, one layer each, so that the last stage, which also has the head, never has more than another.
    """
    even, rest = divmod(layers, virtual_stages)
    counts = split or tuple(even + (stage < rest) for stage in range(virtual_stages))
    ends = [sum(counts[: stage + 1]) for stage in range(virtual_stages)]
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
