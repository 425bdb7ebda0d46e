"""The payload of a submission: bytes that its user signs and the job's own process reads.

`drf submit` loads this package first: it imports only the standard library, and little of that.
"""
