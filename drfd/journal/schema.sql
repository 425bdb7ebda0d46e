-- What has happened. Rows are only ever added; `data` is the event as JSON.
create table events (
    seq    integer primary key,
    at_s   real    not null,
    job_id integer,
    kind   text    not null,
    data   blob    not null
) strict;
create index events_by_job on events (job_id, seq);

-- Every job as it stands: `events` replayed, kept up to date in the same transaction.
create table jobs (
    id       integer primary key,
    uid      integer not null,
    user     text    not null,
    state    text    not null,
    live     integer not null,
    ended_at real,
    data     blob    not null
) strict;
create index jobs_live on jobs (id) where live = 1;
create index jobs_by_end on jobs (ended_at) where live = 0;

-- What a job needs at its start and nobody should keep longer: its environment and its script.
create table payloads (
    job_id integer primary key,
    data   blob not null
) strict;

-- Which job came of a submission: a client that has lost the answer may ask again with its key.
create table submissions (
    uid    integer not null,
    key    text    not null,
    job_id integer not null,
    primary key (uid, key)
) strict, without rowid;
