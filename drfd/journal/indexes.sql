-- How ended jobs are asked for: by user, by state, newest first. Made at any opening, so that an
-- older journal gets them too; an older drfd keeps them up to date without knowing of them.
create index if not exists jobs_by_user_and_end on jobs (user, ended_at) where live = 0;
create index if not exists jobs_by_state_and_end on jobs (state, ended_at) where live = 0;
-- What is old is removed, with all that belongs to it.
create index if not exists arrays_by_user_and_end on arrays (user, ended_at) where live = 0;
create index if not exists submissions_by_job on submissions (job_id);
-- What is not about one job: the last of a kind is looked up at each start.
create index if not exists events_of_none on events (kind, seq) where job_id is null;
