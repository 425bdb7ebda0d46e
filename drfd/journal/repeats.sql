-- Which jobs and arrays repeat another one (`drf retry`). Made at any opening, so that an older
-- journal gets it too; an older drfd leaves rows of jobs that it removes.
create table if not exists repeats (
    of_id  integer not null,
    job_id integer not null,
    primary key (of_id, job_id)
) strict, without rowid;
create index if not exists repeats_by_job on repeats (job_id);
