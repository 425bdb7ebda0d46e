"""The page of `drf web`: what a user may see of the machine and the jobs, in a browser, live.

`commands/web.py` reads the options; `serving.py` listens, bounds connections and lets in who has
the token; `pages.py` answers, and remembers the shares. The files of the page are in `static`.
"""
