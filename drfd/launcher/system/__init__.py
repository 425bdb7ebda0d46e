"""Root's tools: kernel files, processes, background work, and the removal of users' leftovers."""
