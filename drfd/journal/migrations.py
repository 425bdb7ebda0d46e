"""From the schema of an older version to the next one. A step, once released, is never edited."""

from __future__ import annotations

#: By the version that it starts from; `schema.sql` is what the last one leads to.
STEPS: dict[int, str] = {
    # The same tables; the number keeps an older drfd, which would overlook what jobs wait for, from
    # reading what is written from now on.
    1: "",
    2: """
        alter table jobs add column array_id integer;
        create index jobs_by_array on jobs (array_id, state, id) where array_id is not null;
        create table arrays (
            id           integer primary key,
            last_id      integer not null,
            uid          integer not null,
            user         text    not null,
            live         integer not null,
            cancelled_at real,
            data         blob    not null
        ) strict;
        create index arrays_live on arrays (id) where live = 1;
        create index arrays_cancelled on arrays (cancelled_at) where cancelled_at is not null;
    """,
    3: """
        create table curves (
            job_id integer primary key,
            data   blob not null
        ) strict;
    """,
}
