/* The wait for a job: what its runner becomes once the job runs (waiting.py).
 *
 * The job's processes are children of this one, or become so when their parents die. It opens no file:
 * it has all the descriptors that it needs. Of root's rights it keeps that to kill, and of the system
 * calls those in `filter`. */

enum { MOST_OUTPUTS = 2, FREEZE_MS = 50, OOM_POLL_MS = 5, OOM_POLL_S = 30, OUTPUT_POLL_MS = 1000 };
enum { SWEEP_PAUSE_MS = 1, RETRY_MS = 100, MOST_RECORD = 1024 };

struct wait {
	unsigned long flags, job, pid, deadline_ms, sweep_ms, parent;
	const char *kind;
	/* Descriptors; -1 for none. See waiting.py. */
	int attempt, oom, oom_control, kill, freezer, state, members, populated, children;
	const char *freeze, *thaw, *frozen, *empty;
	/* Used until now by processes that have been waited for. */
	unsigned long cpu_us, peak_kib, read_blocks, written_blocks;
	/* A peak of no more than this may be drfd's own. */
	unsigned long own_kib;
	/* The output files, and their sizes at the start of the job. */
	unsigned long most_output, output_count, outputs[MOST_OUTPUTS], sizes[MOST_OUTPUTS];
	const char *failpoints;
};

/* A descriptor; 0 stands for none, as the numbers are one more than what they mean. */
static int next_descriptor(struct texts *from)
{
	return (int)next_number(from, 16) - 1;
}

static struct wait read_wait(int fd)
{
	struct texts from = read_texts(fd);
	struct wait wait = {0};

	/* Its reports would be read by nobody. */
	report_fd = -1;
	if (strcmp(next(&from), "drfd-wait-1") != 0)
		quit(FAILED);
	wait.flags = next_number(&from, 16);
	wait.kind = next(&from);
	wait.job = next_number(&from, 16);
	wait.pid = next_number(&from, 16);
	wait.deadline_ms = next_number(&from, 16);
	wait.sweep_ms = next_number(&from, 16);
	wait.parent = next_number(&from, 16);
	wait.attempt = next_descriptor(&from);
	wait.oom = next_descriptor(&from);
	wait.oom_control = next_descriptor(&from);
	wait.kill = next_descriptor(&from);
	wait.freezer = next_descriptor(&from);
	wait.state = next_descriptor(&from);
	wait.members = next_descriptor(&from);
	wait.populated = next_descriptor(&from);
	wait.children = next_descriptor(&from);
	wait.freeze = next(&from);
	wait.thaw = next(&from);
	wait.frozen = next(&from);
	wait.empty = next(&from);
	wait.cpu_us = next_number(&from, 16);
	wait.peak_kib = next_number(&from, 16);
	wait.read_blocks = next_number(&from, 16);
	wait.written_blocks = next_number(&from, 16);
	wait.own_kib = next_number(&from, 16);
	wait.most_output = next_number(&from, 16);
	wait.output_count = next_number(&from, 16);
	if (wait.output_count > MOST_OUTPUTS || strlen(wait.kind) > 16)
		quit(FAILED);
	for (unsigned long i = 0; i < wait.output_count; i++) {
		wait.outputs[i] = (unsigned long)next_descriptor(&from);
		wait.sizes[i] = next_number(&from, 16);
	}
	wait.failpoints = next(&from);
	return wait;
}

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
		ALLOW(read), ALLOW(pread64), ALLOW(write), ALLOW(lseek), ALLOW(fstat), ALLOW(statx),
		ALLOW(ppoll), ALLOW(restart_syscall), ALLOW(wait4), ALLOW(kill), ALLOW(clock_gettime),
		ALLOW(exit_group),
#ifdef FAILPOINTS
		STEP(BPF_JMP | BPF_JA | BPF_K, 0, 0, is_tested ? 0 : 8),
		ALLOW(openat), ALLOW(unlinkat), ALLOW(close), ALLOW(getpid),
#endif
		STEP(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM),
	};
	struct sock_fprog program = {sizeof steps / sizeof *steps, steps};

	(void)is_tested;
	call(prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	return call(seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

static char *append(char *at, const char *text)
{
	size_t length = strlen(text);

	memcpy(at, text, length + 1);
	return at + length;
}

static char *append_number(char *at, unsigned long value)
{
	char digits[24];

	return append(at, decimal(value, digits + sizeof digits));
}

/* -- failpoints: see drfd/common/failpoints.py ---------------------------------------------------- */

#ifdef FAILPOINTS
static void reach(const struct wait *wait, const char *name)
{
	char path[512], whom[16] = {0}, *end = path;
	long fd, pid = 0;

	if (!*wait->failpoints || strlen(wait->failpoints) > sizeof path - 64)
		return;
	end = append(append(append(path, wait->failpoints), "/"), name);
	fd = call(openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	if (fd < 0)
		return;
	call(read, fd, whom, sizeof whom - 1);
	call(close, fd);
	call(unlinkat, AT_FDCWD, path, 0);
	if (strcmp(whom, "stop\n") == 0) {
		append(end, ".reached");
		fd = call(openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
		end = append(append_number(whom, (unsigned long)call(getpid)), "\n");
		call(write, fd, whom, end - whom);
		call(close, fd);
		call(kill, call(getpid), SIGSTOP);
		return;
	}
	for (const char *digit = whom; *digit >= '0' && *digit <= '9'; digit++)
		pid = 10 * pid + (*digit - '0');
	call(kill, pid ? pid : call(getpid), SIGKILL);
}
#else
#define reach(wait, name) ((void)(wait))
#endif

/* -- the job's processes -------------------------------------------------------------------------- */

static unsigned long now_ms(void)
{
	struct timespec now;

	call(clock_gettime, CLOCK_MONOTONIC, &now);
	return (unsigned long)now.tv_sec * 1000 + (unsigned long)now.tv_nsec / 1000000;
}

static void pause_ms(unsigned long ms)
{
	struct timespec time = {(long)(ms / 1000), (long)(ms % 1000) * 1000000};

	call(ppoll, NULL, 0, &time, NULL, 8);
}

/* Whether a file of the kernel's has this line. */
static int has_line(int fd, const char *line)
{
	char text[1024];
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

/* Kill each process that a file of the kernel's lists, and return how many it lists. With `only_count`
 * none is killed. */
static unsigned long kill_listed(int fd, int only_count)
{
	char text[512];
	unsigned long count = 0, pid = 0;
	long got;

	if (fd < 0 || call(lseek, fd, 0, SEEK_SET) < 0)
		return 0;
	while ((got = call(read, fd, text, sizeof text)) > 0)
		for (long i = 0; i < got; i++) {
			if (text[i] >= '0' && text[i] <= '9') {
				pid = 10 * pid + (unsigned long)(text[i] - '0');
				continue;
			}
			if (pid) {
				count++;
				if (!only_count)
					call(kill, pid, SIGKILL);
			}
			pid = 0;
		}
	return count;
}

/* Kill the job's processes once: those of its cgroup, while they are frozen so that none forks and no
 * pid is given to another process, and the children of this process, which it has not waited for. */
static void kill_job(const struct wait *wait)
{
	if (wait->kill >= 0) {
		call(write, wait->kill, "1", 1);
	} else if (wait->freezer >= 0) {
		unsigned long until = now_ms() + FREEZE_MS;

		call(write, wait->freezer, wait->freeze, strlen(wait->freeze));
		while (!has_line(wait->state, wait->frozen) && now_ms() < until)
			pause_ms(1);
		if (has_line(wait->state, wait->frozen))
			kill_listed(wait->members, 0);
		call(write, wait->freezer, wait->thaw, strlen(wait->thaw));
	}
	kill_listed(wait->children, 0);
}

static int is_empty(const struct wait *wait)
{
	if (wait->populated >= 0) {
		char text[1];

		/* A cgroup that is gone has no processes. */
		return call(pread64, wait->populated, text, 1, 0) < 0 || has_line(wait->populated, wait->empty);
	}
	return kill_listed(wait->members, 1) == 0;
}

/* Take note of the children that have died. Returns whether others are left. */
static int reap(struct wait *wait, int *status, int *is_over)
{
	for (;;) {
		struct rusage used;
		int found;
		long pid = call(wait4, -1, &found, WNOHANG, &used);

		if (pid <= 0)
			return pid == 0;
		if ((unsigned long)pid == wait->pid)
			*status = found, *is_over = 1;
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

	for (unsigned long i = 0; i < wait->output_count; i++) {
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

/* -- the record of the end: as attempt_files.append ----------------------------------------------- */

static unsigned checksum(const char *text, size_t length)
{
	unsigned crc = ~0u;

	for (size_t i = 0; i < length; i++) {
		crc ^= (unsigned char)text[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (0xEDB88320u & -(crc & 1));
	}
	return ~crc;
}

/* Append a name and the number of a field; a negative one is null. */
static char *append_field(char *at, const char *name, long value)
{
	at = append(append(append(at, ",\""), name), "\":");
	return value < 0 ? append(at, "null") : append_number(at, (unsigned long)value);
}

/* Append a name and seconds, of which `us` are microseconds. */
static char *append_seconds(char *at, const char *name, unsigned long s, unsigned long us)
{
	char digits[24], *fraction = decimal(1000000 + us, digits + sizeof digits);

	at = append_field(at, name, (long)s);
	*fraction = '.';
	return append(at, fraction);
}

static char *append_checksum(char *text, char *end)
{
	static const char digits[] = "0123456789abcdef";
	unsigned crc;

	*end = '}';
	crc = checksum(text, (size_t)(end + 1 - text));
	end = append(end, ",\"crc\":\"");
	for (int shift = 28; shift >= 0; shift -= 4)
		*end++ = digits[crc >> shift & 15];
	return append(end, "\"}\n");
}

/* Whether this line is now the last of the attempt file, after a line feed. */
static long append_line(const struct wait *wait, const char *line, size_t length)
{
	struct stat file;
	char last;
	long written = call(fstat, wait->attempt, &file);

	if (written == 0 && file.st_size > 0 &&
	    call(pread64, wait->attempt, &last, 1, file.st_size - 1) == 1 && last != '\n')
		written = call(write, wait->attempt, "\n", 1);
	if (written >= 0)
		written = call(write, wait->attempt, line, length);
	/* Only a full disk makes a write to a file partial. */
	return written >= 0 && (size_t)written != length ? -ENOSPC : written;
}

/* No other process can record the end, so a shortage is waited out. */
static void record(const struct wait *wait, const char *line, size_t length)
{
	char text[128], *end;
	long error;
	int is_logged = 0;

	while ((error = append_line(wait, line, length)) < 0) {
		if (!is_logged) {
			end = append(text, "drfd-launcher: event=runner-waits job=");
			end = append(append_number(end, wait->job), " errno=");
			end = append(append_number(end, (unsigned long)-error), "\n");
			call(write, 2, text, end - text);
		}
		is_logged = 1;
		pause_ms(RETRY_MS);
	}
}

/* -- the whole wait ------------------------------------------------------------------------------- */

/* The time until the next look at anything, or -1 for none. */
static long pause_of(const struct wait *wait, int is_killing, unsigned long oom_until)
{
	if (is_killing || now_ms() < oom_until)
		return OOM_POLL_MS;
	if (wait->deadline_ms) {
		unsigned long now = now_ms();

		return now < wait->deadline_ms ? (long)(wait->deadline_ms - now) : 0;
	}
	return wait->output_count ? OUTPUT_POLL_MS : -1;
}

_Noreturn static void await_end(int plan_fd)
{
	struct wait wait = read_wait(plan_fd);
	unsigned long children = 1ul << (SIGCHLD - 1), oom_until = 0, output = 0, until, events[1];
	int status = 0, is_over = 0, is_killing = 0, is_stopped = 0, has_more;
	int is_notice = strcmp(wait.kind, "notified") == 0;
	struct timespec at, mono;
	char line[MOST_RECORD], *end;
	struct pollfd polled[2] = {{.events = POLLIN}, {.fd = wait.oom, .events = POLLIN}};
	struct plan none = {.effective = 1ul << CAP_KILL, .permitted = 1ul << CAP_KILL};

	call(prctl, PR_SET_NAME, "drfd-runner", 0, 0, 0);
	if (wait.flags & DROPS) {
		/* It has root's capabilities again since it was executed. */
		set_capabilities(&none);
		must(call(prctl, PR_SET_DUMPABLE, 0, 0, 0, 0), "setting", "");
	}
	if (wait.parent) {
		/* The kernel forgets it when an executed program gains capabilities. */
		must(call(prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "setting", "");
		if ((unsigned long)call(getppid) != wait.parent)
			quit(FAILED);
	}
	polled[0].fd = (int)must(call(signalfd4, -1, &children, 8, SFD_CLOEXEC | SFD_NONBLOCK), "setting", "");
	call(close, plan_fd);
#ifndef LIBC
	/* The launcher has said so if it is not to be had. */
	filter(*wait.failpoints != 0);
#endif
	until = ~0ul;
	for (;;) {
		struct timespec time;
		char signals[128];
		long ms;

		has_more = reap(&wait, &status, &is_over);
		if (is_over || now_ms() >= until)
			break;
		if (!has_more)
			quit(FAILED);
		if (wait.deadline_ms && !is_killing && now_ms() >= wait.deadline_ms)
			is_killing = is_stopped = 1, until = now_ms() + wait.sweep_ms;
		if (now_ms() < oom_until && has_oom_kill(&wait))
			is_killing = 1;
		if (wait.output_count && !output && grown(&wait) > wait.most_output)
			is_killing = 1, output = grown(&wait);
		if (is_killing)
			kill_job(&wait);
		ms = pause_of(&wait, is_killing, oom_until);
		time.tv_sec = ms / 1000, time.tv_nsec = ms % 1000 * 1000000;
		polled[1].revents = 0;
		call(ppoll, polled, 2, ms < 0 ? NULL : &time, NULL, 8);
		while (call(read, polled[0].fd, signals, sizeof signals) > 0)
			continue;
		if (polled[1].revents) {
			/* The kernel signals before it kills: the counter follows a moment later. */
			call(read, wait.oom, events, sizeof events);
			oom_until = now_ms() + 1000 * OOM_POLL_S;
		}
	}
	call(clock_gettime, CLOCK_REALTIME, &at);
	call(clock_gettime, CLOCK_MONOTONIC, &mono);
	until = now_ms() + wait.sweep_ms;
	for (;;) {
		kill_job(&wait);
		has_more = reap(&wait, &status, &is_over);
		if ((!has_more && is_empty(&wait)) || now_ms() >= until)
			break;
		pause_ms(SWEEP_PAUSE_MS);
	}
	if (wait.peak_kib <= wait.own_kib)
		wait.peak_kib = 0;
	end = append(append(append(line, "{\"record\":\""), wait.kind), "\"");
	end = append_seconds(end, "at_s", (unsigned long)at.tv_sec, (unsigned long)at.tv_nsec / 1000);
	end = append_seconds(end, "mono_s", (unsigned long)mono.tv_sec, (unsigned long)mono.tv_nsec / 1000);
	end = append_field(end, "exit_code", is_over && !(status & 0x7f) ? status >> 8 & 0xff : -1);
	end = append_field(end, "signal", is_over && status & 0x7f ? status & 0x7f : -1);
	end = append_seconds(end, "cpu_s", wait.cpu_us / 1000000, wait.cpu_us % 1000000);
	end = append_field(end, "peak_bytes", (long)wait.peak_kib * 1024);
	end = append_field(end, "read_bytes", (long)wait.read_blocks * 512);
	end = append_field(end, "written_bytes", (long)wait.written_blocks * 512);
	if (output)
		end = append_field(end, "output_bytes", (long)output);
	if (is_stopped)
		end = append_field(end, "is_stopped", 1);
	end = append_checksum(line, end);
	reach(&wait, is_notice ? "notifier.before-record" : "runner.before-end-record");
	record(&wait, line, (size_t)(end - line));
	if (!is_notice)
		reach(&wait, "runner.after-end-record");
	quit(0);
}
