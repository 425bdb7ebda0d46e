"""The page of keys."""

from __future__ import annotations

HELP = (
    "",
    "  ↑ ↓  j k           up and down          PgUp PgDn Space  by pages",
    "  Home End  g G      first and last       Tab  ← →  1-4    another panel",
    "  Enter              a job's own page; in SHARES: only the jobs of this node",
    "  /                  only jobs with this text in id, name, user, pool or reason",
    "  u                  only mine, or all    Esc              all again",
    "  s                  another order        ^L               draw anew",
    "  c                  cancel (it asks)     h                hold, or release",
    "  e                  a job's errors, in place of its output",
    "  q  ^C              quit",
    "",
    "  █ ▒ ╱ ·            held and used, held, left to others than drfd, free;",
    "                     a colour (or a letter) is one user in one pool",
    "  STALL              percent of the last 10 s in which somebody waited for it",
    "  SHARES             the bar: dominant share; ┃ or │ on it: the entitlement",
    "  SAT                share over entitlement: from 100% on the promise is kept",
    "  RUNNING            used/declared; the bar turns (or ! comes) near the limit",
    "  WAITING            in the order in which they would start now",
)
