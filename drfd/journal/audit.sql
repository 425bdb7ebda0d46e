-- The texts of the rules that were in force at some time, by their digests, which events name: one row
-- for each text. Made at any opening, so that an older journal gets it too.
create table if not exists rules_in_force (
    digest text primary key,
    text   text not null
) strict, without rowid;
