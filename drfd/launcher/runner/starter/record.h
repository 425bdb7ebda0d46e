/* Records of the attempt file, as attempt_files.append writes them; and failpoints. */

enum { MOST_RECORD = 1024, MOST_NAME = 64, MOST_REPORT = 1 << 15, RETRY_MS = 100 };

/* The plan of the attempt that this process is the parent of, and the attempt's file. */
static const struct plan *ours BESIDE;
static int attempt_fd = -1;
/* Whether the job is on record as launched, so that only its end or failure says that it is not. */
static int has_released BESIDE;

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
static void reach(const char *name)
{
	char path[512], whom[16] = {0}, *end = path;
	long fd, pid = 0;

	if (!*ours->failpoints || strlen(ours->failpoints) > sizeof path - 64)
		return;
	end = append(append(append(path, ours->failpoints), "/"), name);
	fd = call(openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	if (fd < 0)
		return;
	call(read, fd, whom, sizeof whom - 1);
	call(close, fd);
	call(unlinkat, AT_FDCWD, path, 0);
	if (whom[0] == 's' && whom[1] == 't') {
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
#define reach(name) ((void)0)
#endif

/* -- lines ---------------------------------------------------------------------------------------- */

/* After a line feed, because the last line of the file may be a partial one. */
static char *append_kind(char *at, const char *kind)
{
	return append(append(append(at, "\n{\"record\":\""), kind), "\"");
}

static char *append_name(char *at, const char *name)
{
	return append(append(append(at, ",\""), name), "\":");
}

/* Append a name and the number of a field; a negative one is null. */
static char *append_field(char *at, const char *name, long value)
{
	at = append_name(at, name);
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

static char *append_time(char *at, const char *name, int clock)
{
	struct timespec time;

	call(clock_gettime, clock, &time);
	return append_seconds(at, name, (unsigned long)time.tv_sec, (unsigned long)time.tv_nsec / 1000);
}

static char *append_hex(char *at, unsigned char value)
{
	static const char digits[] = "0123456789abcdef";

	*at++ = digits[value >> 4];
	*at++ = digits[value & 15];
	return at;
}

/* When this process has started, in clock ticks; -1 if that is unknown. The file stays open until
 * `keep_only`. */
static long own_start(void)
{
	char text[1024], *field = NULL;
	long fd, got = 0, ticks = -1;

	fd = call(openat, AT_FDCWD, "/proc/self/stat", O_RDONLY | O_CLOEXEC, 0);
	if (fd >= 0)
		got = call(read, fd, text, sizeof text - 1);
	text[got > 0 ? got : 0] = '\0';
	/* The second field is the program's name in parentheses, and this the 22nd (proc_pid_stat(5)). */
	for (char *sign = text; *sign; sign++)
		if (*sign == ')')
			field = sign;
	for (int number = 2; field && number < 22; number++)
		field = strchr(field + 1, ' ');
	if (field)
		for (ticks = 0, field++; *field >= '0' && *field <= '9'; field++)
			ticks = 10 * ticks + (*field - '0');
	return ticks;
}

/* Append a process and when it has started, by which it is known again. */
static char *append_process(char *at, long pid, long ticks)
{
	return append_field(append_field(at, "pid", pid), "start_ticks", ticks);
}

/* Append this line, which lacks only its end, to the attempt file. */
static long write_record(char *line, char *end)
{
	size_t length = (size_t)(append(end, "}\n") - line);
	long written = call(write, attempt_fd, line, length);

	/* Only a full disk makes a write to a file partial. */
	return written >= 0 && (size_t)written != length ? -ENOSPC : written;
}

/* No other process can record the end, so a shortage is waited out. */
static void record_end(char *line, char *end)
{
	char text[128], *at;
	long error;
	int is_logged = 0;

	while ((error = write_record(line, end)) < 0) {
		if (!is_logged) {
			at = append(append(text, "drfd-launcher: event=runner-waits attempt="), ours->name);
			at = append_number(append(at, " errno="), (unsigned long)-error);
			at = append(at, "\n");
			call(write, 2, text, at - text);
		}
		is_logged = 1;
		pause_ms(RETRY_MS);
	}
}

/* Remove the job's cgroups, and end. */
_Noreturn static void remove_cgroups(void)
{
	for (char **each = ours->directories; each && *each; each++) {
		long error = call(unlinkat, AT_FDCWD, *each, AT_REMOVEDIR);

		if (error < 0 && error != -ENOENT)
			quit(LEFT);
		if (each == ours->directories)
			reach("runner.amid-rmdir");
	}
	quit(0);
}

/* Record why the program could not be run, and end. `by_root`: this text is drfd's own for certain; else
 * its user may have written it. */
_Noreturn static void record_failure(const char *report, size_t length, int by_root)
{
	static char line[2 * MOST_REPORT + 128];
	char *end;

	if (!ours)
		quit(FAILED);
	if (length > MOST_REPORT)
		length = MOST_REPORT;
	end = append_kind(line, "launch_failed");
	end = append_name(append_field(end, "by_root", by_root), "report");
	*end++ = '"';
	for (size_t i = 0; i < length; i++)
		end = append_hex(end, (unsigned char)report[i]);
	end = append(end, "\"");
	if (has_released)
		record_end(line, end);
	else if (write_record(line, end) < 0)
		quit(FAILED);
	remove_cgroups();
}
