"""The link to the launcher: owed effects become its orders, and its reports become stimuli."""
