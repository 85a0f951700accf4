"""What Alembic runs: the revisions, in the transaction that database.py has begun."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
