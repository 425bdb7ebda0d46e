/* A runner, the parent of one job: the start of the job's process, and its release. */

/* Its possessor may view, read and search it; its user may view and read it. */
enum { KEYRING_RIGHTS = 0x0B030000 };

static void set_limit(const struct plan *plan, unsigned long kind, unsigned long soft, unsigned long hard)
{
	struct rlimit present, wanted = {soft, hard};

	if (plan->drops && soft <= hard && call(prlimit64, 0, kind, &wanted, NULL) == 0)
		return;
	must(call(prlimit64, 0, kind, NULL, &present), "setting", "");
	wanted.rlim_max = plan->drops ? hard : present.rlim_max;
	for (int is_last = 0;; is_last = 1) {
		wanted.rlim_cur = soft < wanted.rlim_max ? soft : wanted.rlim_max;
		if (call(prlimit64, 0, kind, &wanted, NULL) == 0)
			return;
		if (is_last)
			must(-EPERM, "setting", "");
		/* Only CAP_SYS_RESOURCE raises a hard limit, and never beyond fs.nr_open. */
		if (wanted.rlim_max > present.rlim_max)
			wanted.rlim_max = present.rlim_max;
	}
}

/* Set all that a job inherits and that the launcher may have otherwise: see inheritance.py. */
static void take_policy(const struct plan *plan)
{
	int usual = 0;

	for (unsigned long i = 0; i + 2 < plan->limits_count; i += 3)
		set_limit(plan, plan->limits[i], plan->limits[i + 1], plan->limits[i + 2]);
	/* An ordinary user may not change these, nor may a container. */
	if (call(sched_getscheduler, 0) != SCHED_NORMAL)
		call(sched_setscheduler, 0, SCHED_NORMAL, &usual);
	call(setpriority, PRIO_PROCESS, 0, 0);
	call(ioprio_set, IOPRIO_WHO_PROCESS, 0, 0);
	if (call(personality, ~0u) != 0)
		call(personality, 0);
	must(call(prctl, PR_SET_TIMERSLACK, plan->timer_slack_ns, 0, 0, 0), "setting", "");
}

/* Close all descriptors from 3 on but these. */
static void keep_only(const int *fds, int count)
{
	for (unsigned from = 3, next; from; from = next + 1) {
		next = ~0u;
		for (int i = 0; i < count; i++)
			if (fds[i] >= (int)from && (unsigned)fds[i] < next)
				next = (unsigned)fds[i];
		if (next > from)
			must(call(close_range, from, next == ~0u ? next : next - 1, 0), "setting", "");
	}
}

/* Make the job's cgroups. One that is there already is another run's, with its limits and peaks. Where they
 * are to be made is gone if somebody has removed it, and the launcher then looks for what that was. */
static void make_cgroups(const struct plan *plan)
{
	unsigned long count = 0;

	while (plan->directories[count])
		count++;
	if (plan->makes > count)
		fail("plan", 0, "");
	for (unsigned long i = 0; i < plan->makes; i++) {
		const char *path = plan->directories[--count];
		long error = call(mkdirat, AT_FDCWD, path, 0711);

		if (error == -ENOENT)
			quit(FAILED);
		must(error, "mkdir", path);
		if (i == 0)
			reach("runner.amid-mkdir");
	}
}

/* Set the limits of the job's cgroups. Each file must have a certain line then; the kernel may change a
 * value at the same moment, so it is written twice at most. The files stay open until `keep_only`. */
static void set_limits(const struct plan *plan)
{
	for (char **each = plan->settings; each[0] && each[1] && each[2]; each += 3) {
		int fd = (int)must(call(openat, AT_FDCWD, each[0], O_RDWR | O_CLOEXEC, 0), "limit", each[0]);
		int is_set = 0;

		for (int i = 0; i < 2 && !is_set; i++) {
			must(call(write, fd, each[1], strlen(each[1])), "limit", each[0]);
			is_set = has_line(fd, each[2]);
		}
		if (!is_set) {
			char there[256] = {0}, *what = joined(joined(each[0], " was set to "), each[1]);

			call(pread64, fd, there, sizeof there - 1, 0);
			fail("limit", 0, joined(joined(what, " and reads "), there));
		}
	}
}

/* Fork, into a cgroup of version 2 if there is one: to move a process there could take the kernel 20 ms
 * (clone3(2): CLONE_INTO_CGROUP). */
static long fork_job(const struct plan *plan, int *is_outside)
{
	struct clone_args how = {.exit_signal = SIGCHLD};
	long fd = -1, child;

	if (*plan->cgroup) {
		fd = call(openat, AT_FDCWD, plan->cgroup, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
		if (fd < 0)
			return fd;
		how.flags = CLONE_INTO_CGROUP, how.cgroup = (__u64)fd;
	}
	/* A container may refuse clone3. */
	child = fd < 0 ? call(clone, SIGCHLD) : call(clone3, &how, sizeof how);
	*is_outside = fd >= 0 && child == -EAGAIN;
	if (*is_outside) {
		/* All jobs together have as many processes as allowed. That bound must not keep out a
		 * job's first process, and does not concern a process that moves (cgroup-v2.rst). */
		child = call(clone, SIGCHLD);
	}
	if (fd >= 0 && child != 0)
		call(close, fd);
	return child;
}

/* Become the job, or the command that notifies its owner. First the limits, then the user, then the
 * user's files. The parent may not see when this process has started (hidepid in proc(5)). Reports come
 * through ENTRY up to the entry of the cgroup, and through REPORT later: ENTRY is closed before the rights
 * are dropped, because the user may control this process then, as are the files of the cgroups. */
_Noreturn static void become_job(const struct plan *plan, int entry, int report, int go, int payload,
				 int is_outside)
{
	const int kept[] = {report, go, payload};
	unsigned long none = 0;
	long ticks = own_start();

	call(write, entry, &ticks, sizeof ticks);
	report_fd = entry;
	ours = NULL;
	call(prctl, PR_SET_NAME, "drfd-starter", 0, 0, 0);
	call(rt_sigprocmask, SIG_SETMASK, &none, NULL, 8);
	if (is_outside)
		must(put(joined(plan->cgroup, "/cgroup.procs"), "0"), "cgroup", plan->cgroup);
	must(call(setsid), "setting", "");
	enter_limits(plan);
	set_privileged_attributes(plan);
	report_fd = report;
	keep_only(kept, 3);
	/* Nothing that is open now stays open in the job. */
	must(call(close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC), "setting", "");
	if (*plan->place)
		enter_space(plan);
	if (plan->drops)
		become(plan);
	if (plan->joins_keyring) {
		long key = call(keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL);

		if (key != -EDQUOT)
			must(key, "keyring", "");
	}
	run(plan, payload, go);
}

static unsigned long left_ms(unsigned long until_ms)
{
	unsigned long now = now_ms();

	return now < until_ms ? until_ms - now : 0;
}

static int is_readable(int fd, unsigned long within_ms)
{
	struct pollfd polled = {fd, POLLIN, 0};
	struct timespec time = {(long)(within_ms / 1000), (long)(within_ms % 1000) * 1000000};

	return call(ppoll, &polled, 1, &time, NULL, 8) > 0;
}

/* Read up to the end. Its user may control the writer by now: no more is kept than drfd's code would
 * write. */
static size_t read_report(int fd, char *report, size_t have)
{
	char more[512];
	long got;

	while ((got = call(read, fd, more, sizeof more)) > 0) {
		if ((size_t)got > MOST_REPORT - have)
			got = (long)(MOST_REPORT - have);
		memcpy(report + have, more, (size_t)got);
		have += (size_t)got;
	}
	return have;
}

/* Tell the launcher that the job is launched. If it is gone, or so far behind that its pipe is full, it
 * reads the attempt files anyway. */
static void report_launched(const struct plan *plan, int launched_fd)
{
	const char *line = joined(plan->name, "\n");

	call(write, launched_fd, line, strlen(line));
}

/* Take the output files of a job over, and note their sizes. Of those that are no files there is no
 * limit. */
static void watch_outputs(struct wait *wait, const int *given, int count)
{
	struct statx file, first = {0};

	for (int i = 0; i < count; i++) {
		int at = wait->output_count;

		/* Where the size is hidden from root, as on a FUSE mount, a limit cannot be kept. */
		must(call(statx, given[i], "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &file),
		     "unseen", "");
		if (!S_ISREG(file.stx_mode) ||
		    (at && file.stx_ino == first.stx_ino && file.stx_dev_major == first.stx_dev_major &&
		     file.stx_dev_minor == first.stx_dev_minor)) {
			call(close, given[i]);
			continue;
		}
		first = file;
		wait->outputs[at] = given[i], wait->sizes[at] = file.stx_size;
		wait->output_count++;
	}
}

/* Kill a job's process that hangs before its program. Its time limit does not count yet, so a directory
 * that hangs, or a SIGSTOP by the user, could otherwise keep the job's resources for ever. */
_Noreturn static void give_up(const struct plan *plan, long pid)
{
	unsigned long until = now_ms() + plan->sweep_ms;
	char seconds[24];

	call(kill, pid, SIGKILL);
	while (call(wait4, pid, NULL, WNOHANG, NULL) == 0 && now_ms() < until)
		pause_ms(10);
	fail("hung", 0, decimal(plan->start_ms / 1000, seconds + sizeof seconds));
}

/* Fork the command that notifies the owner of the start, into the job's cgroup; it ends with the job. Returns
 * the pipe through which it is let go. Nobody reads its reports, and if it cannot be had the job runs without
 * it. */
static long fork_notice(const struct plan *plan, int payload)
{
	struct plan notice = *plan;
	char *state[] = {"DRF_STATE=RUNNING", NULL};
	int go[2], is_outside;
	long null = call(openat, AT_FDCWD, "/dev/null", O_WRONLY | O_CLOEXEC, 0), null2 = call(dup, null);

	notice.notifies = 1;
	notice.own = add_missing(state, plan->own);
	if (null2 < 0 || call(pipe2, go, O_CLOEXEC) < 0) {
		call(close, null), call(close, null2);
		return -1;
	}
	if (fork_job(plan, &is_outside) == 0)
		become_job(&notice, (int)null, (int)null2, go[0], payload, is_outside);
	call(close, go[0]), call(close, null), call(close, null2);
	return go[1];
}

/* A process that has been forked and whose program has not begun: the parent's ends of its pipes, and what
 * is waited for afterwards. */
struct start {
	const struct plan *plan;
	int sends, entry, report, go;
	long ticks;
	struct wait wait;
};

static struct start fork_attempt(const struct plan *plan, int payload)
{
	int sends = (int)plan->sends_outputs, entry[2], report[2], go[2], is_outside;
	unsigned long deadline_ms = plan->whole_ms ? now_ms() + plan->whole_ms : 0;
	long pid;

	must(call(pipe2, entry, O_CLOEXEC), "setting", "");
	if (sends)
		must(call(socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, report), "setting", "");
	else
		must(call(pipe2, report, O_CLOEXEC), "setting", "");
	must(call(pipe2, go, O_CLOEXEC), "setting", "");
	pid = must(fork_job(plan, &is_outside), *plan->cgroup ? "cgroup" : "setting", plan->cgroup);
	if (pid == 0)
		become_job(plan, entry[1], report[1], go[0], payload, is_outside);
	call(close, entry[1]), call(close, report[1]), call(close, go[0]);
	/* Opened while that process prepares itself. */
	return (struct start){
		plan, sends, entry[0], report[0], go[1], -1, open_wait(plan, pid, deadline_ms),
	};
}

/* Wait until the process lacks only its release, and says "+". Anything else is the first byte of its report
 * of a failure; NUL if it has died without one. */
static char await_ready(struct start *start)
{
	const struct plan *plan = start->plan;
	int given[MOST_OUTPUTS], count = 0;
	char said = '\0';

	if (!is_readable(start->report, plan->start_ms))
		give_up(plan, start->wait.pid);
	if (start->sends)
		count = receive(start->report, &said, given, MOST_OUTPUTS);
	else
		call(read, start->report, &said, 1);
	call(read, start->entry, &start->ticks, sizeof start->ticks);
	watch_outputs(&start->wait, given, count);
	return said;
}

/* Put the job on record as launched, and let its program begin. */
static void release(const struct start *start)
{
	char line[MOST_RECORD];

	reach("runner.before-launched-record");
	must(write_record(line, append_process(append_kind(line, "launched"), start->wait.pid,
					       start->ticks)), "setting", "");
	has_released = 1;
	reach("runner.after-launched-record");
	call(write, start->go, "+", 1), call(close, start->go);
}

/* Wait for the exec, which closes the pipe of reports. Returns NUL then, else the first byte of a report. */
static char await_exec(struct start *start, int launched_fd)
{
	unsigned long until = start->wait.deadline_ms;
	char said = '\0';

	if (!is_readable(start->report, until ? left_ms(until) : start->plan->exec_ms)) {
		/* The program is on a mount that hangs, or its user delays it. The job counts as launched,
		 * as is on record, and so does its time limit. */
		if (until)
			await_end(&start->wait);
		report_launched(start->plan, launched_fd);
	}
	call(read, start->report, &said, 1);
	return said;
}

/* Record why the program could not be run. `first` is what has been read of the report. */
_Noreturn static void fail_start(const struct start *start, char first)
{
	static char report[MOST_REPORT] = {0};
	size_t length = first != '\0';
	int by_root;

	/* It has nothing left to do; its user could keep it from exiting by SIGSTOP. */
	call(kill, start->wait.pid, SIGKILL);
	report[0] = first;
	length = read_report(start->report, report, length);
	call(wait4, start->wait.pid, NULL, 0, NULL);
	by_root = call(read, start->entry, report, 1) == 1;
	if (by_root)
		length = read_report(start->entry, report, 1);
	record_failure(report, length, by_root);
}

_Noreturn static void run_attempt(const struct plan *plan, int launched_fd, int payload)
{
	const int kept[] = {attempt_fd, launched_fd, payload};
	struct start start;
	char said;
	long notice_go = -1;

	make_cgroups(plan);
	set_limits(plan);
	keep_only(kept, 3);
	start = fork_attempt(plan, payload);
	said = await_ready(&start);
	if (said != '+')
		fail_start(&start, said);
	if (plan->tells_start)
		notice_go = fork_notice(plan, payload);
	drop_rest(plan);
	release(&start);
	reach("runner.before-exec");
	said = await_exec(&start, launched_fd);
	if (said != '\0')
		fail_start(&start, said);
	call(close, start.report), call(close, start.entry);
	reach("runner.after-exec");
	report_launched(plan, launched_fd);
	if (notice_go >= 0)
		call(write, notice_go, "+", 1), call(close, notice_go);
	call(close, payload), call(close, launched_fd);
	await_end(&start.wait);
}
