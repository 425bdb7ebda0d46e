/* What root has decided about a job: see plan.py. */

/* Its flags. */
enum { DROPS = 1, JOINS_KEYRING = 2, EMPTIES_OUTPUT = 4, RESETS_OOM_SCORE = 8, SENDS_OUTPUTS = 16 };
/* It is not the job that is begun, but the command that notifies its owner. */
enum { NOTIFIES = 32, LEAVES_KEYRING = 64, TELLS_START = 128 };
enum { MOST_PLAN = 1 << 22 };

struct plan {
	unsigned long flags, effective, permitted;
	/* The attempt, as its file is called. */
	const char *name;
	/* Limits that the job inherits: number, soft and hard value of each. */
	unsigned long limit_count, *limits, timer_slack_ns;
	/* How long the start, the exec and the killing of the rest may take, and a notification in all. */
	unsigned long start_ms, exec_ms, sweep_ms, notice_ms;
	/* The process with which this one ends; 0 for none. */
	unsigned long parent;
	/* See Killing in interface.py. */
	const char *pids_max, *freezer, *oom_control, *event_control;
	unsigned long most_output;
	const char *failpoints;
	/* Path, text and line of each limit. */
	char **settings;
	/* The cgroup of version 2 that the process begins in, empty for none, and files of cgroups
	 * into which it writes itself. */
	const char *cgroup;
	char **entries;
	unsigned long cpu_count, *cpus, processes;
	const char *login;
	/* The private space: empty without one. Directories below it, and what they cover. */
	char *place, *shm, **names, **targets;
	unsigned long uid, gid, group_count, *groups;
	/* What %j, %A, %a, %x and %u stand for in the names of output files. */
	char **signs;
	/* Beginnings of variables of the submitter's that the job does not get; variables it gets
	 * unless the submitter has set them; those it gets unless the submitter has set them or the
	 * number of OpenMP's threads; or them or how these wait; those it gets in any case. */
	char **hidden, **defaults, **openmp_defaults, **wait_defaults, **own;
};

static struct texts read_texts(int fd)
{
	unsigned length;
	size_t have = 0;
	struct texts from = {.step = "plan", .fault = ""};

	if (call(read, fd, &length, sizeof length) != sizeof length || length > MOST_PLAN)
		quit(FAILED);
	from.at = take(length + 1);
	from.end = from.at + length;
	while (have < length) {
		long got = call(read, fd, from.at + have, length - have);

		if (got <= 0)
			quit(FAILED);
		have += (size_t)got;
	}
	return from;
}

static struct plan read_plan(int fd)
{
	struct texts from = read_texts(fd);
	struct plan plan;

	if (strcmp(next(&from), "drfd-plan-6") != 0)
		fail(from.step, 0, from.fault);
	plan.flags = next_number(&from, 16);
	plan.effective = next_number(&from, 16);
	plan.permitted = next_number(&from, 16);
	plan.name = next(&from);
	plan.limits = counted_numbers(&from, &plan.limit_count);
	plan.timer_slack_ns = next_number(&from, 16);
	plan.start_ms = next_number(&from, 16);
	plan.exec_ms = next_number(&from, 16);
	plan.sweep_ms = next_number(&from, 16);
	plan.notice_ms = next_number(&from, 16);
	plan.parent = next_number(&from, 16);
	plan.pids_max = next(&from);
	plan.freezer = next(&from);
	plan.oom_control = next(&from);
	plan.event_control = next(&from);
	plan.most_output = next_number(&from, 16);
	plan.failpoints = next(&from);
	if (strlen(plan.name) > 64)
		fail(from.step, 0, from.fault);
	plan.settings = counted_texts(&from);
	plan.cgroup = next(&from);
	plan.entries = counted_texts(&from);
	plan.cpus = counted_numbers(&from, &plan.cpu_count);
	plan.processes = next_number(&from, 16);
	plan.login = next(&from);
	plan.place = next(&from);
	plan.shm = next(&from);
	plan.names = next_texts(&from, 2);
	plan.targets = next_texts(&from, 2);
	plan.uid = next_number(&from, 16);
	plan.gid = next_number(&from, 16);
	plan.groups = counted_numbers(&from, &plan.group_count);
	plan.signs = next_texts(&from, 5);
	plan.hidden = counted_texts(&from);
	plan.defaults = counted_texts(&from);
	plan.openmp_defaults = counted_texts(&from);
	plan.wait_defaults = counted_texts(&from);
	plan.own = counted_texts(&from);
	return plan;
}
