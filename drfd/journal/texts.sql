-- Environments and scripts of jobs that are not over, each of a user once: `payloads` names them, and
-- so often as `uses` says. Made at any opening, so that an older journal gets it too.
create table if not exists texts (
    id     integer primary key,
    uid    integer not null,
    digest blob    not null,
    bytes  integer not null,
    uses   integer not null,
    data   blob    not null,
    unique (uid, digest, bytes)
) strict;
