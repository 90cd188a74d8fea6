"""The Backups page: copies of the database, made while it is in use."""
