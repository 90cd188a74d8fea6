"""One decode of a batch by itself."""

from __future__ import annotations

from kernels.compressed_attention.cases import Batch
from kernels.compressed_attention.reference import Entries
from kernels.indexer.chosen import Chosen


def only(made: Batch, row: int) -> Batch:
    """The sequence `row`, of those that decode."""
    rows, of = slice(row, row + 1), made.metadata
    assert made.compressed is not None
    assert made.compressed.chosen is not None
    chosen = Chosen(*(part[rows].clone() for part in made.compressed.chosen))
    metadata = type(of)(
        [1], of.context_lens[rows], 1, of.query_start_loc[:2].clone(), of.seq_lens[rows].clone(),
        of.block_tables[rows].clone(), of.slot_mapping[rows],
    )  # fmt: skip
    return made._replace(
        query=made.query[rows], entry=made.entry[rows], rows=made.rows[rows].clone(), metadata=metadata,
        positions=made.positions[rows], compressed=Entries(made.compressed.pages, made.compressed.ratio, chosen),
    )  # fmt: skip
