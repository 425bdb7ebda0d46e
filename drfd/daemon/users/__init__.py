"""Users: their accounts, their quotas, and their shares of the loop's time; and its threads."""
