"""Runs migrations for `console.db.schema`, and for the `alembic` command on the database of `INGOT_HOME`."""

from alembic import context
from sqlalchemy import create_engine
from sqlalchemy.engine import URL

from appliance.home import Home
from console.db.models import Base

path = context.config.attributes.get("database") or Home.from_environment().create().database
engine = create_engine(URL.create("sqlite", database=str(path)))

with engine.connect() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
