"""The database's schema, step by step. `REVISIONS` lists every step in order, so that a start at head need not import
Alembic to know that there is nothing to do; a test keeps it equal to the files in versions/."""

REVISIONS = ("0001", "0002", "0003")
HEAD = REVISIONS[-1]
