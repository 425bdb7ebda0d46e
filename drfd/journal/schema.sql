-- What was submitted as a job or an array: `event` is its first event, without the specification that
-- stands in `spec`, and `seq` the number of that event. `own` is the beginning of what was signed, for
-- the start and for its user's next one (`drf retry`), and `blob` names the rest. A client that has
-- lost the answer to a submission may ask again with its key.
create table submissions (
    job_id integer primary key,
    uid    integer not null,
    seq    integer not null,
    key    text,
    proof  text,
    blob   integer,
    event  blob not null,
    spec   blob not null,
    own    blob
) strict;
create index submissions_by_key on submissions (uid, key) where key is not null;

-- Every job as it stands, without its specification, which is that of its submission, or of its
-- array's, unless `spec` has another one since it was altered. `events` are those after the
-- submission, as `drfd.journal.records` has them, without as many as `dropped` says; `seq` is the
-- number of the last one. Each turn writes the row of a job once.
create table jobs (
    id       integer primary key,
    uid      integer not null,
    user     text    not null,
    state    text    not null,
    live     integer not null,
    ended_at real,
    array_id integer,
    seq      integer not null,
    dropped  integer not null default 0,
    data     blob    not null,
    spec     blob,
    events   blob    not null
) strict;
create index jobs_by_seq on jobs (seq);
create index jobs_live on jobs (id) where live = 1;
-- How ended jobs are asked for: newest first, all or those of a user or a state. One index costs each
-- end less than one for each; 100,000 entries are passed over in 20 ms.
create index jobs_by_end on jobs (ended_at, id, user, state, array_id) where live = 0;
create index jobs_by_array on jobs (array_id, state, id) where live = 0 and array_id is not null;
-- Jobs with their specifications.
create view records as
    select jobs.id, user, state, live, ended_at, array_id, jobs.seq, data,
        ifnull(jobs.spec, submissions.spec) as spec
    from jobs join submissions on job_id = ifnull(array_id, jobs.id);

-- Every array as it was submitted, or ordered as a whole since: `events` are these orders, and
-- `seq` is the number of the submission. Its tasks have the ids that follow its own; those without a
-- row in `jobs` are as they were submitted.
create table arrays (
    id           integer primary key,
    last_id      integer not null,
    uid          integer not null,
    user         text    not null,
    live         integer not null,
    ended_at     real,
    seq          integer not null,
    dropped      integer not null default 0,
    data         blob    not null,
    events       blob    not null
) strict;
create index arrays_by_seq on arrays (seq);
create index arrays_by_end on arrays (ended_at, id, user) where live = 0;
create index arrays_live on arrays (id) where live = 1;

-- The last event of each kind that is about no job, and of each node.
create table general_events (
    kind text not null,
    node text not null,
    seq  integer not null,
    data blob not null,
    primary key (kind, node)
) strict, without rowid;

-- Parts of submissions, each of a user once: so many name it as `uses` says. Ids are never given twice:
-- a blob may be dropped before what names it. The data stand apart, so that counting does not write
-- them again.
create table blobs (
    id     integer primary key autoincrement,
    uid    integer not null,
    digest blob    not null,
    bytes  integer not null,
    uses   integer not null,
    unique (uid, digest)
) strict;
create table blob_data (
    id   integer primary key,
    data blob not null
) strict;
create trigger submission_removed after delete on submissions begin
    update blobs set uses = uses - 1 where id = old.blob;
    delete from blobs where id = old.blob and uses = 0;
end;
create trigger blob_removed after delete on blobs begin
    delete from blob_data where id = old.id;
end;

-- How the use of a job went, in a few points: of ended ones, and of those that run as it was lately.
create table curves (
    job_id integer primary key,
    data   blob not null
) strict;

-- Which jobs and arrays repeat another one (`drf retry`).
create table repeats (
    of_id  integer not null,
    job_id integer not null,
    primary key (of_id, job_id)
) strict, without rowid;
create index repeats_by_job on repeats (job_id);

-- With a job or array goes all that is stored of it, and with the last task of an array what was
-- submitted.
create trigger job_removed after delete on jobs begin
    delete from curves where job_id = old.id;
    delete from repeats where job_id = old.id;
    delete from submissions where job_id = ifnull(old.array_id, old.id)
        and not exists (select 1 from arrays where id = old.array_id)
        and not exists (select 1 from jobs where live = 0 and array_id = old.array_id);
end;
create trigger array_removed after delete on arrays begin
    delete from repeats where job_id = old.id;
    delete from submissions where job_id = old.id
        and not exists (select 1 from jobs where live = 0 and array_id = old.id);
end;

-- What is true of the journal itself, by name: `id` is random and made once; `next_id` is the lowest id
-- that the next job may have, and `seq` the number of the last event, where jobs were removed;
-- `reservations` is what was promised to big jobs; `external_load` is what the daemon last saw of it;
-- `past_runs` is what the scheduler knows of ended runs, up to an event.
create table facts (
    name  text primary key,
    value text not null
) strict, without rowid;
insert into facts values ('id', lower(hex(randomblob(16))));
