"""Root's tools: accounts, kernel files, processes, background work, removal of users' leftovers."""
