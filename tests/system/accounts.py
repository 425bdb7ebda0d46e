"""The ordinary users that tests of the whole machine make for themselves."""

from __future__ import annotations

import pwd
import subprocess

from instance import wait_for

#: Two users that exist while the tests run.
Accounts = tuple[pwd.struct_passwd, pwd.struct_passwd]

#: The exit code of userdel(8) while the account has a process.
_IN_USE = 8


def delete_account(name: str) -> None:
    """Remove the account, once the last of its processes is gone."""

    def is_deleted() -> bool:
        done = subprocess.run(["userdel", name], capture_output=True, text=True)
        assert done.returncode in (0, _IN_USE), done.stderr
        return done.returncode == 0

    wait_for(f"the end of all processes of {name}", is_deleted, pause_s=0.2)
