"""What a calibration measures: shapes and sizes, and how often."""

from dataclasses import dataclass
from typing import NamedTuple

from suite.experiment.point import Model, Point, Training


class Product(NamedTuple):
    """A linear layer's products: (rows x inputs)(inputs x outputs), and its two gradients'."""

    rows: int
    inputs: int
    outputs: int


class Core(NamedTuple):
    """An attention core of `heads` heads over all sequences."""

    sequences: int
    heads: int
    seq_length: int
    width: int  # of a head
    dropout: float = 0.0

    def point(self, precision: str) -> Point:
        """One microbatch of a layer with such a core."""
        model = Model(
            layers=1,
            hidden_size=self.heads * self.width,
            heads=self.heads,
            seq_length=self.seq_length,
            dropout=self.dropout,
        )
        training = Training(global_batch=self.sequences, microbatch=self.sequences, precision=precision)
        return Point(model=model, training=training)


class Body(NamedTuple):
    """A small GPT that is trained on one rank."""

    layers: int
    hidden_size: int
    heads: int
    seq_length: int
    microbatch: int
    vocab_size: int
    dropout: float = 0.0

    def point(self, precision: str) -> Point:
        """Two microbatches of it."""
        model = Model(
            layers=self.layers,
            hidden_size=self.hidden_size,
            heads=self.heads,
            seq_length=self.seq_length,
            vocab_size=self.vocab_size,
            dropout=self.dropout,
        )
        training = Training(global_batch=2 * self.microbatch, microbatch=self.microbatch, precision=precision)
        return Point(model=model, training=training)


@dataclass(frozen=True)
class Sweep:
    """Every measurement is made once a round; a sample is the median over the rounds."""

    products: tuple[Product, ...]
    streams: tuple[int, ...]  # elements of sums of two arrays into a third
    functions: tuple[int, ...]  # elements of GELUs, and of dropout with its mask
    cores: tuple[Core, ...]
    bodies: tuple[Body, ...]
    messages: tuple[int, ...]  # bytes
    collectives: tuple[int, ...]  # bytes that every rank has before a reduction and after a gathering
    rounds: int = 7
    least_seconds: float = 2e-3  # of a measurement; what takes less is repeated


FULL = Sweep(
    products=tuple(
        Product(rows, inputs, outputs)
        for rows in (16, 64, 256, 1024)
        for inputs, outputs in ((64, 64), (128, 128), (128, 512), (512, 128), (256, 256), (256, 1024), (512, 512))
    )
    + tuple(
        Product(rows, inputs, outputs)
        for rows in (32, 128, 512)
        for inputs, outputs in ((768, 768), (768, 3072), (2048, 512), (512, 4096))
    ),
    streams=tuple(1 << power for power in range(8, 24)),
    functions=(1 << 10, 1 << 13, 1 << 16, 1 << 19),
    cores=(
        Core(2, 4, 128, 32),
        Core(1, 8, 128, 64),
        Core(1, 8, 256, 32),
        Core(2, 8, 256, 64),
        Core(1, 8, 512, 64),
        Core(1, 4, 128, 32, dropout=0.1),
        Core(2, 4, 256, 64, dropout=0.1),
        Core(1, 8, 384, 64, dropout=0.1),
    ),
    bodies=(
        Body(1, 32, 2, 16, 1, 128),
        Body(8, 32, 2, 16, 1, 128),
        Body(1, 64, 2, 32, 2, 4096),
        Body(4, 64, 4, 64, 2, 512),
        Body(6, 128, 4, 32, 1, 256),
        Body(2, 128, 2, 128, 4, 1024),
        Body(4, 256, 4, 96, 1, 512),
        Body(2, 256, 8, 192, 2, 256),
        Body(1, 384, 6, 256, 1, 8192),
        Body(2, 512, 8, 64, 1, 1024),
        Body(1, 512, 8, 384, 1, 512),
        Body(1, 640, 10, 128, 4, 256),
        Body(2, 128, 4, 128, 1, 256, dropout=0.1),
        Body(1, 256, 4, 256, 1, 256, dropout=0.1),
    ),
    messages=tuple(1 << power for power in range(8, 24, 2)),
    collectives=tuple(1 << power for power in range(8, 25, 2)),
)
