-- How ended jobs are asked for: by user, by state, newest first. Made at any opening, so that an
-- older journal gets them too; an older drfd keeps them up to date without knowing of them.
create index if not exists jobs_by_user_and_end on jobs (user, ended_at) where live = 0;
create index if not exists jobs_by_state_and_end on jobs (state, ended_at) where live = 0;
