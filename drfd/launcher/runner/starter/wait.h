/* The wait for a job, by its parent, once the job runs.
 *
 * The job's processes are children of this one, or become so when their parents die. It opens no file
 * any more: it has all the descriptors that it needs. Of root's rights it keeps that to kill, and of the
 * system calls those in `filter`. What it cannot remove at the end, or if it is killed, is the launcher's. */

enum { MOST_OUTPUTS = 2, MOST_COUNTERS = 32, OOM_POLL_MS = 5, OOM_POLL_S = 30, OUTPUT_POLL_MS = 1000 };
enum { SWEEP_PAUSE_MS = 1 };

struct wait {
	const struct plan *plan;
	/* The process whose end is recorded, and when it is killed; 0 for never. */
	long pid;
	unsigned long deadline_ms;
	/* Descriptors; -1 for none. See CgroupPlan in interface.py. */
	int signals, oom, oom_control, pids_max, freezer, children;
	/* Of each counter of the plan, in its order; the same for those of one file. */
	int counters[MOST_COUNTERS];
	/* How it has ended, whether the rest is killed, and whether because the time was over. */
	int status, is_over, is_killing, is_stopped;
	/* Until when a kill for memory is looked for, and until when the process is waited for. */
	unsigned long oom_until_ms, until_ms;
	/* Used until now by processes that have been waited for. */
	unsigned long cpu_us, peak_kib, read_blocks, written_blocks;
	/* The output files that have a limit, and their sizes at the start of the job; and how much they have
	 * grown, if that was too much. */
	int output_count, outputs[MOST_OUTPUTS];
	unsigned long sizes[MOST_OUTPUTS], output;
};

/* -- rights -------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
enum { ARCHITECTURE = AUDIT_ARCH_X86_64 };
#else
enum { ARCHITECTURE = AUDIT_ARCH_AARCH64 };
#endif

#define STEP(what, on, off, value) {(unsigned short)(what), (on), (off), (unsigned)(value)}
#define ALLOW(name) STEP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, __NR_##name), \
		    STEP(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW)

/* Refuse all system calls but these from now on. `is_tested`: also those of failpoints. */
static long filter(int is_tested)
{
	struct sock_filter steps[] = {
		STEP(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, arch)),
		STEP(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, ARCHITECTURE),
		STEP(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM),
		STEP(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr)),
		ALLOW(read), ALLOW(pread64), ALLOW(write), ALLOW(statx),
		ALLOW(ppoll), ALLOW(restart_syscall), ALLOW(wait4), ALLOW(kill), ALLOW(clock_gettime),
		ALLOW(close), ALLOW(fgetxattr), ALLOW(exit_group),
#ifdef FAILPOINTS
		STEP(BPF_JMP | BPF_JA | BPF_K, 0, 0, is_tested ? 0 : 6),
		ALLOW(openat), ALLOW(unlinkat), ALLOW(getpid),
#endif
		/* A directory that is empty may go. */
		STEP(BPF_JMP | BPF_JEQ | BPF_K, 0, 3, __NR_unlinkat),
		STEP(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, args[2])),
		STEP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, AT_REMOVEDIR),
		STEP(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW),
		STEP(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM),
	};
	struct sock_fprog program = {sizeof steps / sizeof *steps, steps};

	(void)is_tested;
	call(prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	return call(seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

/* A file that is there unless the cgroup is gone, which has no processes to be killed then. */
static int open_there(const char *path, int how)
{
	long fd = *path ? call(openat, AT_FDCWD, path, how | O_CLOEXEC, 0) : -ENOENT;

	return fd == -ENOENT ? -1 : (int)must(fd, "cgroup", path);
}

/* A descriptor that is readable after each kill for memory (kernel: cgroup-v1/memory.rst, section 10). */
static int watch_oom(const struct plan *plan, int oom_control)
{
	long event = must(call(eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK), "setting", "");
	char words[64];

	append_number(append(append_number(words, (unsigned long)event), " "), (unsigned long)oom_control);
	must(put(plan->event_control, words), "cgroup", plan->event_control);
	return (int)event;
}

/* Open the files of the counters. A kernel may lack some. */
static void open_counters(struct wait *wait, char **counters)
{
	for (int i = 0; i < MOST_COUNTERS; i++)
		wait->counters[i] = -1;
	for (int i = 0; i < MOST_COUNTERS && counters[0] && counters[1] && counters[2] && counters[3];
	     i++, counters += 4)
		if (i && strcmp(counters[0], counters[-4]) == 0)
			wait->counters[i] = wait->counters[i - 1];
		else if (wait->oom_control >= 0 && strcmp(counters[0], wait->plan->oom_control) == 0)
			wait->counters[i] = wait->oom_control;
		else
			wait->counters[i] =
				(int)call(openat, AT_FDCWD, counters[0], O_RDONLY | O_CLOEXEC, 0);
}

static struct wait open_wait(const struct plan *plan, long pid, unsigned long deadline_ms)
{
	unsigned long child = 1ul << (SIGCHLD - 1);
	struct wait wait = {.plan = plan, .pid = pid, .deadline_ms = deadline_ms, .until_ms = ~0ul};

	wait.children = open_there("/proc/thread-self/children", O_RDONLY);
	wait.pids_max = open_there(plan->pids_max, O_WRONLY);
	wait.freezer = open_there(plan->freezer, O_WRONLY);
	wait.oom_control = open_there(plan->oom_control, O_RDONLY);
	wait.oom = wait.oom_control < 0 ? -1 : watch_oom(plan, wait.oom_control);
	open_counters(&wait, plan->counters);
	wait.signals = (int)must(call(signalfd4, -1, &child, 8, SFD_CLOEXEC | SFD_NONBLOCK), "setting", "");
	return wait;
}

/* -- the job's processes -------------------------------------------------------------------------- */

/* Whether a file of the kernel's has this line. */
static int has_line(int fd, const char *line)
{
	char text[8192];
	long got = call(pread64, fd, text, sizeof text - 1, 0);

	text[got > 0 ? got : 0] = '\0';
	for (char *at = text; *at;) {
		char *end = strchr(at, '\n');

		if (end)
			*end = '\0';
		if (strcmp(at, line) == 0)
			return 1;
		if (!end)
			break;
		at = end + 1;
	}
	return 0;
}

/* Kill all children once. None can be another process: this one has not waited for it. When one dies, its
 * own children become this process's, and no process of the cgroup forks any more. */
static void kill_job(const struct wait *wait)
{
	char text[512];
	unsigned long pid = 0;
	long got;

	call(write, wait->pids_max, "0", 1);
	for (long at = 0; (got = call(pread64, wait->children, text, sizeof text, at)) > 0; at += got)
		for (long i = 0; i < got; i++) {
			if (text[i] >= '0' && text[i] <= '9') {
				pid = 10 * pid + (unsigned long)(text[i] - '0');
				continue;
			}
			if (pid)
				call(kill, pid, SIGKILL);
			pid = 0;
		}
	call(write, wait->freezer, "THAWED", 6);
}

/* Take note of the children that have died. Returns whether others are left. */
static int reap(struct wait *wait)
{
	for (;;) {
		struct rusage used;
		int found;
		long pid = call(wait4, -1, &found, WNOHANG, &used);

		if (pid <= 0)
			return pid == 0;
		/* A job that has itself traced (PTRACE_TRACEME) is traced by this process, until it is killed. */
		if (WIFSTOPPED(found))
			continue;
		if (pid == wait->pid && !wait->is_over)
			wait->status = found, wait->is_over = 1;
		wait->cpu_us += (unsigned long)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000;
		wait->cpu_us += (unsigned long)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
		if ((unsigned long)used.ru_maxrss > wait->peak_kib)
			wait->peak_kib = (unsigned long)used.ru_maxrss;
		wait->read_blocks += (unsigned long)used.ru_inblock;
		wait->written_blocks += (unsigned long)used.ru_oublock;
	}
}

/* How many bytes the output files have grown. A file system that hangs is not asked. */
static unsigned long grown(const struct wait *wait)
{
	unsigned long sum = 0;

	for (int i = 0; i < wait->output_count; i++) {
		struct statx file;
		long error = call(statx, wait->outputs[i], "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC,
				  STATX_SIZE, &file);

		if (error == 0 && file.stx_size > wait->sizes[i])
			sum += file.stx_size - wait->sizes[i];
	}
	return sum;
}

/* Whether the kernel has killed a process of the job for memory. */
static int has_oom_kill(const struct wait *wait)
{
	return wait->oom_control >= 0 && !has_line(wait->oom_control, "oom_kill 0");
}

/* -- the whole wait ------------------------------------------------------------------------------- */

/* Keep only the right to kill, and the system calls of `filter`. */
static void drop_rest(const struct plan *plan)
{
	const unsigned long kept = plan->permitted & 1ul << CAP_KILL;
	const struct plan none = {.effective = kept, .permitted = kept};

	if (plan->drops)
		set_capabilities(&none);
#ifndef LIBC
	/* The launcher has said so if it is not to be had. */
	filter(*plan->failpoints != 0);
#endif
}

/* The present time, or 0 if nothing depends on it. */
static unsigned long time_for(const struct wait *wait)
{
	return wait->deadline_ms || wait->oom_until_ms ? now_ms() : 0;
}

/* Decide whether the job is killed. */
static void judge(struct wait *wait, unsigned long now)
{
	unsigned long size;

	if (wait->deadline_ms && !wait->is_killing && now >= wait->deadline_ms)
		wait->is_killing = wait->is_stopped = 1, wait->until_ms = now + wait->plan->sweep_ms;
	if (now < wait->oom_until_ms && has_oom_kill(wait))
		wait->is_killing = 1;
	if (!wait->output && (size = grown(wait)) > wait->plan->most_output)
		wait->is_killing = 1, wait->output = size;
}

/* The time until the next look at anything, or -1 for none. */
static long pause_of(const struct wait *wait, unsigned long now)
{
	if (wait->is_killing || now < wait->oom_until_ms)
		return OOM_POLL_MS;
	if (wait->deadline_ms)
		return now < wait->deadline_ms ? (long)(wait->deadline_ms - now) : 0;
	return wait->output_count ? OUTPUT_POLL_MS : -1;
}

/* Sleep until a child has died, the kernel has killed for memory, or the pause is over. */
static void sleep_until_change(struct wait *wait, long ms)
{
	struct pollfd polled[2] = {{wait->signals, POLLIN, 0}, {wait->oom, POLLIN, 0}};
	struct timespec time = {ms / 1000, ms % 1000 * 1000000};
	struct signalfd_siginfo signal;
	unsigned long events;

	call(ppoll, polled, 2, ms < 0 ? NULL : &time, NULL, 8);
	/* However many have died, the signal is pending once. */
	if (polled[0].revents)
		call(read, wait->signals, &signal, sizeof signal);
	if (polled[1].revents) {
		/* The kernel signals before it kills: the counter follows a moment later. */
		call(read, wait->oom, &events, sizeof events);
		wait->oom_until_ms = now_ms() + 1000 * OOM_POLL_S;
	}
}

/* Kill what is left of the job. */
static void sweep(struct wait *wait)
{
	unsigned long until = now_ms() + wait->plan->sweep_ms;

	while (reap(wait) && now_ms() < until) {
		kill_job(wait);
		pause_ms(SWEEP_PAUSE_MS);
	}
}

/* Append how the job has ended, and what it has used. */
static char *append_end(char *end, const struct wait *wait)
{
	int status = wait->status, is_over = wait->is_over;

	end = append_field(end, "exit_code", is_over && !(status & 0x7f) ? status >> 8 & 0xff : -1);
	end = append_field(end, "signal", is_over && status & 0x7f ? status & 0x7f : -1);
	end = append_seconds(end, "cpu_s", wait->cpu_us / 1000000, wait->cpu_us % 1000000);
	end = append_field(end, "peak_bytes", (long)wait->peak_kib * 1024);
	end = append_field(end, "read_bytes", (long)wait->read_blocks * 512);
	end = append_field(end, "written_bytes", (long)wait->written_blocks * 512);
	if (wait->output)
		end = append_field(end, "output_bytes", (long)wait->output);
	if (wait->is_stopped)
		end = append_field(end, "is_stopped", 1);
	return end;
}

/* The number after a key, as in "key 5" and "key=5", or the first one if the key is empty; -1 for none. */
static long number_after(const char *text, const char *key)
{
	size_t length = strlen(key);
	long number = 0;

	for (const char *at = text; length; at++) {
		if (!*at)
			return -1;
		if ((at == text || at[-1] == ' ' || at[-1] == '\n') && begins(at, key) &&
		    (at[length] == ' ' || at[length] == '=')) {
			text = at + length + 1;
			break;
		}
	}
	if (*text < '0' || *text > '9')
		return -1;
	for (; *text >= '0' && *text <= '9'; text++)
		number = (long)(10 * (unsigned long)number + (unsigned long)(*text - '0'));
	return number;
}

/* Append the counters of the plan that there are. */
static char *append_counters(char *end, const struct wait *wait)
{
	char text[8192], *first = end = append_name(end, "counters"), **each = wait->plan->counters;
	long number = 0;
	int read = -1;

	for (int i = 0; i < MOST_COUNTERS && each[0] && each[1] && each[2] && each[3]; i++, each += 4) {
		int fd = wait->counters[i], is_attribute = begins(each[1], "user.");
		long got;

		if (fd < 0 || (number >= 0 && number < number_after(each[3], "")) || strlen(each[2]) > MOST_NAME)
			continue;
		if (fd != read) {
			got = is_attribute ? call(fgetxattr, fd, each[1], text, sizeof text - 1) :
					     call(pread64, fd, text, sizeof text - 1, 0);
			text[got > 0 ? got : 0] = '\0';
			read = fd;
		}
		number = number_after(text, is_attribute ? "" : each[1]);
		if (number >= 0)
			end = append_field(end, each[2], number);
	}
	/* In place of the first comma. */
	*first = '{';
	return append(end == first ? end + 1 : end, "}");
}

/* Wait until the job's first process is over, kill what is left, and record the end. */
_Noreturn static void await_end(struct wait *wait)
{
	int has_more = 1;
	char line[MOST_RECORD + MOST_COUNTERS * 2 * MOST_NAME], *end;

	for (;;) {
		unsigned long now = time_for(wait);

		if (wait->is_over || now >= wait->until_ms)
			break;
		if (!has_more)
			quit(FAILED);
		judge(wait, now);
		if (wait->is_killing)
			kill_job(wait);
		sleep_until_change(wait, pause_of(wait, now));
		/* The first one may have died before: then there is a signal already. */
		has_more = reap(wait);
	}
	end = append_kind(line, "exited");
	end = append_time(end, "at_s", CLOCK_REALTIME);
	end = append_time(end, "mono_s", CLOCK_MONOTONIC);
	if (has_more)
		sweep(wait);
	end = append_end(end, wait);
	end = append_counters(end, wait);
	reach("runner.before-end-record");
	record_end(line, end);
	reach("runner.after-end-record");
	remove_cgroups();
}
