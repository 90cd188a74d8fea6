"""Whether the API requires a key, the keys that were revoked, and the addresses that accounts signed in from."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_access",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key_required", sa.Boolean(), nullable=False),
        sa.CheckConstraint("id = 1", name="only_one"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "revoked_keys",
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("revoked", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("sha256"),
    )
    op.create_table(
        "known_addresses",
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("seen", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("user_id", "address"),
    )
    # Until now the first key turned the requirement on. No row means off.
    op.execute("INSERT INTO api_access (id, key_required) SELECT 1, 1 WHERE EXISTS (SELECT 1 FROM api_keys)")
    # A browser that is signed in has signed in from where it is.
    op.execute(
        "INSERT INTO known_addresses (user_id, address, seen) SELECT user_id, address, max(seen) FROM sessions "
        "WHERE address != '' GROUP BY user_id, address"
    )
