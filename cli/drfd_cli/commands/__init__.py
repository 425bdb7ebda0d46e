"""The verbs. A module has the name of its verb, and its click command is called `command`.

Verbs that are alike share `job_actions` and `administration`; there each has the name of its verb.
"""
