"""The verbs. A module has the name of its verb, and its click command is called `command`.

`drfd_cli.main` names those that share a module; there each has the name of its verb.
"""
