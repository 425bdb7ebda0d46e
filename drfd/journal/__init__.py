"""Durable storage: an SQLite file with appended events and the tables of jobs made from them.

The only package that uses sqlite3. It stores and finds; it neither decides nor applies events.
"""
