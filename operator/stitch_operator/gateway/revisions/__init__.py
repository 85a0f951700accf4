"""How a ledger becomes one of this release: Alembic's revisions, each a file of `versions`."""
