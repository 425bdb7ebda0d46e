"""What has happened, durable: SQLite, append-only events and a rebuildable job table."""
