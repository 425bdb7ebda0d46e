"""The ordinary users that tests of the whole machine make for themselves."""

from __future__ import annotations

import pwd

#: Two users that exist while the tests run.
Accounts = tuple[pwd.struct_passwd, pwd.struct_passwd]
