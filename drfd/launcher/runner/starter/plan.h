/* What root has decided about a job, which the runner sends: see plan.py. */

/* Its flags. */
enum { DROPS = 1, JOINS_KEYRING = 2, EMPTIES_OUTPUT = 4, RESETS_OOM_SCORE = 8, SENDS_OUTPUTS = 16 };
/* It is not the job that is begun, but the command that notifies its owner. */
enum { NOTIFIES = 32 };
enum { MOST_PLAN = 1 << 22 };

struct plan {
	unsigned long flags, effective, permitted, inheritable;
	/* The cgroup of version 2 that the process begins in, empty for none, and files of cgroups
	 * into which it writes itself. */
	const char *cgroup;
	char **entries;
	unsigned long cpu_count, *cpus, processes;
	const char *login;
	struct rlimit core;
	/* The private space: empty without one. Directories below it, and what they cover. */
	char *place, *shm, **names, **targets;
	unsigned long uid, gid, group_count, *groups;
	/* What %j, %A, %a, %x and %u stand for in the names of output files. */
	char **signs;
	/* Beginnings of variables of the submitter's that the job does not get; variables it gets
	 * unless the submitter has set them; those it gets unless the submitter has set them or the
	 * number of OpenMP's threads; or them or how these wait; those it gets in any case. */
	char **hidden, **defaults, **openmp_defaults, **wait_defaults, **own;
	/* What the interpreters of scripts are started with: see script.h. */
	char **programs;
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

	if (strcmp(next(&from), "drfd-plan-2") != 0)
		fail(from.step, 0, from.fault);
	plan.flags = next_number(&from, 16);
	plan.effective = next_number(&from, 16);
	plan.permitted = next_number(&from, 16);
	plan.inheritable = next_number(&from, 16);
	plan.cgroup = next(&from);
	plan.entries = counted_texts(&from);
	plan.cpus = counted_numbers(&from, &plan.cpu_count);
	plan.processes = next_number(&from, 16);
	plan.login = next(&from);
	plan.core.rlim_cur = next_number(&from, 16);
	plan.core.rlim_max = next_number(&from, 16);
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
	plan.programs = next_texts(&from, 4);
	return plan;
}
