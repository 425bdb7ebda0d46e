-- Payloads of ended jobs and arrays, for `drf retry`: environments and scripts once of each user,
-- named so often as `uses` says. Made at any opening, so that an older journal gets them too.
create table if not exists past_texts (
    id     integer primary key,
    uid    integer not null,
    digest blob    not null,
    bytes  integer not null,
    uses   integer not null,
    data   blob    not null,
    unique (uid, digest, bytes)
) strict;
create table if not exists past_payloads (
    job_id integer primary key,
    uid    integer not null,
    env    integer,
    script integer,
    proof  text
) strict;
create index if not exists past_payloads_by_uid on past_payloads (uid, job_id);
