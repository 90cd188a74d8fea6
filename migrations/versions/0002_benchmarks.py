"""Results of benchmarks."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "benchmarks",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("launch_id", sa.String(), nullable=False),
        sa.Column("profile", sa.String(), nullable=False),
        sa.Column("revision", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("started", sa.Double(), nullable=False),
        sa.Column("author", sa.String(), nullable=False),
        sa.Column("results", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
