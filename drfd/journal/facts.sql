-- What is true of the journal itself, by name: `id` is random and made once; `next_id` is the lowest id
-- that the next job may have, where the launcher has shown that higher ones were given out before;
-- `believed_s` is the Unix time by which history was removed last; `reservations` is what was promised to
-- big jobs.
-- Made at any opening, so that an older journal gets it too.
create table if not exists facts (
    name  text primary key,
    value text not null
) strict, without rowid;
insert or ignore into facts values ('id', lower(hex(randomblob(16))));
