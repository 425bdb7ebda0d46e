-- The journal that drfd 0.1.0 wrote of the history in tests/journal/test_golden.py. Never edit it.
pragma application_id = 1685218916;
pragma user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE events (
    seq    integer primary key,
    at_s   real    not null,
    job_id integer,
    kind   text    not null,
    data   blob    not null
) strict;
INSERT INTO "events" VALUES(1,1.5,1,'Submitted',cast('{"job_id":1,"at_s":1.5,"spec":{"name":"train","user":"alice","uid":1001,"gid":1001,"pool":"root.alice","demand":{"cores_milli":1500,"memory_bytes":8589934592,"read_bps":1000,"write_bps":2000,"gres":[]},"time_limit_s":3600,"priority":7,"preemptible":false,"argv":["true"],"cwd":"/home/alice","umask":18,"stdout":"drf-%j.out","stderr":"drf-%j.err","attach":null},"held":true}' as blob));
INSERT INTO "events" VALUES(2,2.5,1,'Released',cast('{"job_id":1,"at_s":2.5,"by":"alice"}' as blob));
INSERT INTO "events" VALUES(3,3.5,1,'Held',cast('{"job_id":1,"at_s":3.5,"by":"root"}' as blob));
INSERT INTO "events" VALUES(4,4.5,1,'Cancelled',cast('{"job_id":1,"at_s":4.5,"by":"root"}' as blob));
INSERT INTO "events" VALUES(5,5.5,2,'Submitted',cast('{"job_id":2,"at_s":5.5,"spec":{"name":"train","user":"alice","uid":1001,"gid":1001,"pool":"root.alice","demand":{"cores_milli":1500,"memory_bytes":8589934592,"read_bps":1000,"write_bps":2000,"gres":[]},"time_limit_s":3600,"priority":7,"preemptible":false,"argv":["true"],"cwd":"/home/alice","umask":18,"stdout":"drf-%j.out","stderr":"drf-%j.err","attach":null},"held":false}' as blob));
INSERT INTO "events" VALUES(6,6.5,2,'Admitted',cast('{"job_id":2,"at_s":6.5,"attempt":1}' as blob));
INSERT INTO "events" VALUES(7,7.5,2,'Launched',cast('{"job_id":2,"at_s":7.5,"attempt":1,"mono_s":70.5,"cgroup":"drfd/0123456789/job-2.1"}' as blob));
INSERT INTO "events" VALUES(8,8.5,2,'Exited',cast('{"job_id":2,"at_s":8.5,"attempt":1,"exit_code":null,"signal":9,"outcome":"OUT_OF_MEMORY","text":"needed more than its memory limit of 8G","usage":{"cores_milli":0,"memory_bytes":0,"memory_peak_bytes":3,"read_bytes":4,"written_bytes":5,"cpu_s":6.5}}' as blob));
INSERT INTO "events" VALUES(9,9.5,2,'Cleaned',cast('{"job_id":2,"at_s":9.5,"attempt":1}' as blob));
INSERT INTO "events" VALUES(10,10.5,3,'Submitted',cast('{"job_id":3,"at_s":10.5,"spec":{"name":"train","user":"alice","uid":1001,"gid":1001,"pool":"root.alice","demand":{"cores_milli":1500,"memory_bytes":8589934592,"read_bps":1000,"write_bps":2000,"gres":[]},"time_limit_s":3600,"priority":7,"preemptible":false,"argv":["true"],"cwd":"/home/alice","umask":18,"stdout":"drf-%j.out","stderr":"drf-%j.err","attach":null},"held":false}' as blob));
INSERT INTO "events" VALUES(11,11.5,3,'Admitted',cast('{"job_id":3,"at_s":11.5,"attempt":1}' as blob));
INSERT INTO "events" VALUES(12,12.5,3,'LaunchFailed',cast('{"job_id":3,"at_s":12.5,"attempt":1,"text":"there is no command x in the job''s PATH","outcome":"LAUNCH_FAILED"}' as blob));
INSERT INTO "events" VALUES(13,13.5,4,'Submitted',cast('{"job_id":4,"at_s":13.5,"spec":{"name":"train","user":"alice","uid":1001,"gid":1001,"pool":"root.alice","demand":{"cores_milli":1500,"memory_bytes":8589934592,"read_bps":1000,"write_bps":2000,"gres":[]},"time_limit_s":3600,"priority":7,"preemptible":false,"argv":["true"],"cwd":"/home/alice","umask":18,"stdout":"drf-%j.out","stderr":"drf-%j.err","attach":null},"held":false}' as blob));
INSERT INTO "events" VALUES(14,14.5,4,'Admitted',cast('{"job_id":4,"at_s":14.5,"attempt":1}' as blob));
INSERT INTO "events" VALUES(15,15.5,4,'Launched',cast('{"job_id":4,"at_s":15.5,"attempt":1,"mono_s":150.5,"cgroup":null}' as blob));
INSERT INTO "events" VALUES(16,16.5,4,'StopRequested',cast('{"job_id":4,"at_s":16.5,"mono_s":160.5,"outcome":"TIMEOUT","text":"ran for its whole time limit of 1h00m"}' as blob));
INSERT INTO "events" VALUES(17,17.5,4,'Escalated',cast('{"job_id":4,"at_s":17.5}' as blob));
INSERT INTO "events" VALUES(18,18.5,5,'Submitted',cast('{"job_id":5,"at_s":18.5,"spec":{"name":"train","user":"alice","uid":1001,"gid":1001,"pool":"root.alice","demand":{"cores_milli":1500,"memory_bytes":8589934592,"read_bps":1000,"write_bps":2000,"gres":[]},"time_limit_s":3600,"priority":7,"preemptible":true,"argv":["true"],"cwd":"/home/alice","umask":18,"stdout":"drf-%j.out","stderr":"drf-%j.err","attach":null},"held":false}' as blob));
INSERT INTO "events" VALUES(19,19.5,5,'Admitted',cast('{"job_id":5,"at_s":19.5,"attempt":1}' as blob));
INSERT INTO "events" VALUES(20,20.5,5,'Launched',cast('{"job_id":5,"at_s":20.5,"attempt":1,"mono_s":200.5,"cgroup":null}' as blob));
INSERT INTO "events" VALUES(21,21.5,5,'PreemptRequested',cast('{"job_id":5,"at_s":21.5,"mono_s":210.5,"for_job":4,"text":"stopped for job 4 (alice): root.lab has far less than it is entitled to"}' as blob));
INSERT INTO "events" VALUES(22,22.5,5,'Exited',cast('{"job_id":5,"at_s":22.5,"attempt":1,"exit_code":null,"signal":15,"outcome":null,"text":"stopped for job 4 (alice): root.lab has far less than it is entitled to","usage":{"cores_milli":0,"memory_bytes":0,"memory_peak_bytes":3,"read_bytes":4,"written_bytes":5,"cpu_s":6.5}}' as blob));
INSERT INTO "events" VALUES(23,23.5,5,'Requeued',cast('{"job_id":5,"at_s":23.5,"attempt":1}' as blob));
INSERT INTO "events" VALUES(24,24.5,5,'Admitted',cast('{"job_id":5,"at_s":24.5,"attempt":2}' as blob));
INSERT INTO "events" VALUES(25,25.5,5,'Launched',cast('{"job_id":5,"at_s":25.5,"attempt":2,"mono_s":250.5,"cgroup":null}' as blob));
INSERT INTO "events" VALUES(26,26.5,5,'SuspendRequested',cast('{"job_id":5,"at_s":26.5,"by":null,"text":"suspended for job 4 (alice)"}' as blob));
INSERT INTO "events" VALUES(27,27.5,5,'Suspended',cast('{"job_id":5,"at_s":27.5,"attempt":2,"mono_s":270.5}' as blob));
INSERT INTO "events" VALUES(28,28.5,5,'Resumed',cast('{"job_id":5,"at_s":28.5,"mono_s":280.5}' as blob));
INSERT INTO "events" VALUES(29,29.5,5,'SuspendRequested',cast('{"job_id":5,"at_s":29.5,"by":"alice","text":"suspended by alice"}' as blob));
INSERT INTO "events" VALUES(30,30.5,5,'ResumeRequested',cast('{"job_id":5,"at_s":30.5,"by":"root"}' as blob));
INSERT INTO "events" VALUES(31,31.5,5,'Suspended',cast('{"job_id":5,"at_s":31.5,"attempt":2,"mono_s":310.5}' as blob));
INSERT INTO "events" VALUES(32,32.5,6,'Submitted',cast('{"job_id":6,"at_s":32.5,"spec":{"name":"train","user":"alice","uid":1001,"gid":1001,"pool":"root.alice","demand":{"cores_milli":1500,"memory_bytes":8589934592,"read_bps":1000,"write_bps":2000,"gres":[]},"time_limit_s":3600,"priority":7,"preemptible":false,"argv":["true"],"cwd":"/home/alice","umask":18,"stdout":"drf-%j.out","stderr":"drf-%j.err","attach":null},"held":false}' as blob));
INSERT INTO "events" VALUES(33,33.5,6,'Admitted',cast('{"job_id":6,"at_s":33.5,"attempt":1}' as blob));
INSERT INTO "events" VALUES(34,34.5,6,'Launched',cast('{"job_id":6,"at_s":34.5,"attempt":1,"mono_s":340.5,"cgroup":null}' as blob));
INSERT INTO "events" VALUES(35,35.5,6,'SuspendRequested',cast('{"job_id":6,"at_s":35.5,"by":"root","text":"suspended by root"}' as blob));
INSERT INTO "events" VALUES(36,36.5,NULL,'Drained',cast('{"at_s":36.5,"on":true,"by":"root"}' as blob));
INSERT INTO "events" VALUES(37,37.5,7,'Submitted',cast('{"job_id":7,"at_s":37.5,"spec":{"name":"train","user":"alice","uid":1001,"gid":1001,"pool":"root.alice","demand":{"cores_milli":1500,"memory_bytes":8589934592,"read_bps":1000,"write_bps":2000,"gres":[]},"time_limit_s":3600,"priority":7,"preemptible":false,"argv":["true"],"cwd":"/home/alice","umask":18,"stdout":"drf-%j.out","stderr":"drf-%j.err","attach":null},"held":false}' as blob));
CREATE TABLE jobs (
    id       integer primary key,
    uid      integer not null,
    user     text    not null,
    state    text    not null,
    live     integer not null,
    ended_at real,
    data     blob    not null
) strict;
INSERT INTO "jobs" VALUES(1,1001,'alice','CANCELLED',0,4.5,cast('{"id":1,"spec":{"name":"train","user":"alice","uid":1001,"gid":1001,"pool":"root.alice","demand":{"cores_milli":1500,"memory_bytes":8589934592,"read_bps":1000,"write_bps":2000,"gres":[]},"time_limit_s":3600,"priority":7,"preemptible":false,"argv":["true"],"cwd":"/home/alice","umask":18,"stdout":"drf-%j.out","stderr":"drf-%j.err","attach":null},"state":"ENDED","attempt":0,"submitted_at":1.5,"eligible_at":null,"started_at":null,"started_mono_s":null,"ended_at":4.5,"stop":null,"exit_code":null,"signal":null,"outcome":"CANCELLED","outcome_text":"cancelled by root before it started","usage":null,"cgroup":null,"held_by":"root","preempted_at":null,"freezing":false,"suspended_at":null,"suspended_mono_s":null,"suspended_s":0.0,"suspensions":0}' as blob));
INSERT INTO "jobs" VALUES(2,1001,'alice','OUT_OF_MEMORY',0,8.5,cast('{"id":2,"spec":{"name":"train","user":"alice","uid":1001,"gid":1001,"pool":"root.alice","demand":{"cores_milli":1500,"memory_bytes":8589934592,"read_bps":1000,"write_bps":2000,"gres":[]},"time_limit_s":3600,"priority":7,"preemptible":false,"argv":["true"],"cwd":"/home/alice","umask":18,"stdout":"drf-%j.out","stderr":"drf-%j.err","attach":null},"state":"ENDED","attempt":1,"submitted_at":5.5,"eligible_at":5.5,"started_at":7.5,"started_mono_s":70.5,"ended_at":8.5,"stop":null,"exit_code":null,"signal":9,"outcome":"OUT_OF_MEMORY","outcome_text":"needed more than its memory limit of 8G","usage":{"cores_milli":0,"memory_bytes":0,"memory_peak_bytes":3,"read_bytes":4,"written_bytes":5,"cpu_s":6.5},"cgroup":"drfd/0123456789/job-2.1","held_by":null,"preempted_at":null,"freezing":false,"suspended_at":null,"suspended_mono_s":null,"suspended_s":0.0,"suspensions":0}' as blob));
INSERT INTO "jobs" VALUES(3,1001,'alice','CLEANING',1,12.5,cast('{"id":3,"spec":{"name":"train","user":"alice","uid":1001,"gid":1001,"pool":"root.alice","demand":{"cores_milli":1500,"memory_bytes":8589934592,"read_bps":1000,"write_bps":2000,"gres":[]},"time_limit_s":3600,"priority":7,"preemptible":false,"argv":["true"],"cwd":"/home/alice","umask":18,"stdout":"drf-%j.out","stderr":"drf-%j.err","attach":null},"state":"CLEANING","attempt":1,"submitted_at":10.5,"eligible_at":10.5,"started_at":null,"started_mono_s":null,"ended_at":12.5,"stop":null,"exit_code":null,"signal":null,"outcome":"LAUNCH_FAILED","outcome_text":"there is no command x in the job''s PATH","usage":null,"cgroup":null,"held_by":null,"preempted_at":null,"freezing":false,"suspended_at":null,"suspended_mono_s":null,"suspended_s":0.0,"suspensions":0}' as blob));
INSERT INTO "jobs" VALUES(4,1001,'alice','STOPPING',1,NULL,cast('{"id":4,"spec":{"name":"train","user":"alice","uid":1001,"gid":1001,"pool":"root.alice","demand":{"cores_milli":1500,"memory_bytes":8589934592,"read_bps":1000,"write_bps":2000,"gres":[]},"time_limit_s":3600,"priority":7,"preemptible":false,"argv":["true"],"cwd":"/home/alice","umask":18,"stdout":"drf-%j.out","stderr":"drf-%j.err","attach":null},"state":"STOPPING","attempt":1,"submitted_at":13.5,"eligible_at":13.5,"started_at":15.5,"started_mono_s":150.5,"ended_at":null,"stop":{"outcome":"TIMEOUT","text":"ran for its whole time limit of 1h00m","at_s":16.5,"mono_s":160.5,"escalated":true},"exit_code":null,"signal":null,"outcome":null,"outcome_text":"","usage":null,"cgroup":null,"held_by":null,"preempted_at":null,"freezing":false,"suspended_at":null,"suspended_mono_s":null,"suspended_s":0.0,"suspensions":0}' as blob));
INSERT INTO "jobs" VALUES(5,1001,'alice','SUSPENDED',1,NULL,cast('{"id":5,"spec":{"name":"train","user":"alice","uid":1001,"gid":1001,"pool":"root.alice","demand":{"cores_milli":1500,"memory_bytes":8589934592,"read_bps":1000,"write_bps":2000,"gres":[]},"time_limit_s":3600,"priority":7,"preemptible":true,"argv":["true"],"cwd":"/home/alice","umask":18,"stdout":"drf-%j.out","stderr":"drf-%j.err","attach":null},"state":"SUSPENDED","attempt":2,"submitted_at":18.5,"eligible_at":23.5,"started_at":25.5,"started_mono_s":250.5,"ended_at":null,"stop":null,"exit_code":null,"signal":null,"outcome":null,"outcome_text":"","usage":null,"cgroup":null,"held_by":null,"preempted_at":26.5,"freezing":false,"suspended_at":31.5,"suspended_mono_s":310.5,"suspended_s":10.0,"suspensions":2}' as blob));
INSERT INTO "jobs" VALUES(6,1001,'alice','RUNNING',1,NULL,cast('{"id":6,"spec":{"name":"train","user":"alice","uid":1001,"gid":1001,"pool":"root.alice","demand":{"cores_milli":1500,"memory_bytes":8589934592,"read_bps":1000,"write_bps":2000,"gres":[]},"time_limit_s":3600,"priority":7,"preemptible":false,"argv":["true"],"cwd":"/home/alice","umask":18,"stdout":"drf-%j.out","stderr":"drf-%j.err","attach":null},"state":"RUNNING","attempt":1,"submitted_at":32.5,"eligible_at":32.5,"started_at":34.5,"started_mono_s":340.5,"ended_at":null,"stop":null,"exit_code":null,"signal":null,"outcome":null,"outcome_text":"","usage":null,"cgroup":null,"held_by":"root","preempted_at":null,"freezing":true,"suspended_at":null,"suspended_mono_s":null,"suspended_s":0.0,"suspensions":0}' as blob));
INSERT INTO "jobs" VALUES(7,1001,'alice','PENDING',1,NULL,cast('{"id":7,"spec":{"name":"train","user":"alice","uid":1001,"gid":1001,"pool":"root.alice","demand":{"cores_milli":1500,"memory_bytes":8589934592,"read_bps":1000,"write_bps":2000,"gres":[]},"time_limit_s":3600,"priority":7,"preemptible":false,"argv":["true"],"cwd":"/home/alice","umask":18,"stdout":"drf-%j.out","stderr":"drf-%j.err","attach":null},"state":"PENDING","attempt":0,"submitted_at":37.5,"eligible_at":37.5,"started_at":null,"started_mono_s":null,"ended_at":null,"stop":null,"exit_code":null,"signal":null,"outcome":null,"outcome_text":"","usage":null,"cgroup":null,"held_by":null,"preempted_at":null,"freezing":false,"suspended_at":null,"suspended_mono_s":null,"suspended_s":0.0,"suspensions":0}' as blob));
CREATE TABLE payloads (
    job_id integer primary key,
    data   blob not null
) strict;
INSERT INTO "payloads" VALUES(3,cast('{"env":{"PATH":"/usr/bin"},"script":"#!/bin/sh\necho ü\n"}' as blob));
INSERT INTO "payloads" VALUES(4,cast('{"env":{"PATH":"/usr/bin"},"script":"#!/bin/sh\necho ü\n"}' as blob));
INSERT INTO "payloads" VALUES(5,cast('{"env":{"PATH":"/usr/bin"},"script":"#!/bin/sh\necho ü\n"}' as blob));
INSERT INTO "payloads" VALUES(6,cast('{"env":{"PATH":"/usr/bin"},"script":"#!/bin/sh\necho ü\n"}' as blob));
INSERT INTO "payloads" VALUES(7,cast('{"env":{"PATH":"/usr/bin"},"script":"#!/bin/sh\necho ü\n"}' as blob));
CREATE TABLE submissions (
    uid    integer not null,
    key    text    not null,
    job_id integer not null,
    primary key (uid, key)
) strict, without rowid;
INSERT INTO "submissions" VALUES(1001,'0123',7);
CREATE INDEX events_by_job on events (job_id, seq);
CREATE INDEX jobs_live on jobs (id) where live = 1;
CREATE INDEX jobs_by_end on jobs (ended_at) where live = 0;
COMMIT;
