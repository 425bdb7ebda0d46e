"""What `drf submit` and `drf run` look at before they submit. Imports must stay few."""
