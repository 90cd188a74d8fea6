"""What one sequence takes of the cache, for every kind of attention that a decoder may have."""

from __future__ import annotations

import msgspec


class Windowed(msgspec.Struct, frozen=True):
    """Layers that keep the last `window` tokens only: `bytes_per_token` is that of all of them together."""

    window: int
    bytes_per_token: int


class CacheShape(msgspec.Struct, frozen=True, kw_only=True):
    """`bytes_per_token` is that of all layers that keep every token: keys and values, or a latent of both (MLA).
    `per_sequence` are states of a fixed size, as of linear attention."""

    bytes_per_token: int
    windows: tuple[Windowed, ...] = ()
    per_sequence: int = 0

    @property
    def most_bytes_per_token(self) -> int:
        """While a sequence is shorter than every window."""
        return self.bytes_per_token + sum(layers.bytes_per_token for layers in self.windows)

    def sequence_bytes(self, length: int, block_size: int, chunk: int) -> int:
        """Of a sequence of `length` tokens, in whole blocks. Behind a window up to `chunk` tokens more are kept while
        they are computed together. Never falls as `length` grows."""

        def blocks(tokens: int) -> int:
            return -(-tokens // block_size) * block_size

        windowed = sum(blocks(min(length, part.window + chunk)) * part.bytes_per_token for part in self.windows)
        return blocks(length) * self.bytes_per_token + windowed + self.per_sequence
