/* The first program of a job's process: from the runner to the job's own program.
 *
 *   drfd-starter                           say which sources this was compiled from
 *   drfd-starter ENTRY REPORT GO PAYLOAD   become a job; the arguments are descriptors
 *
 * First the limits, then the user, then the user's files: as child.py, which does the same where this
 * program is not there. The runner writes to GO what root has decided, the plan (plan.py), and later
 * a "+". PAYLOAD is what the user has written, a sealed file in memory (payload/pack.py): nothing of
 * it is read, and no path of the user's is touched, before root's rights are dropped.
 *
 * A failure is reported as step NUL errno NUL text (report.py), up to the entry of the cgroup through
 * ENTRY, later through REPORT. ENTRY is closed before the rights are dropped, because the user
 * may control the process from then on. Where the process begins in a cgroup of version 2, its id
 * comes through ENTRY first, and this one has ended with 0. */
#define _GNU_SOURCE
#include <asm/errno.h>
#include <asm/ioctls.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <linux/keyctl.h>
#include <linux/openat2.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <time.h>
#include "calls.h"

/* Flags of the plan. */
enum { DROPS = 1, JOINS_KEYRING = 2, EMPTIES_OUTPUT = 4, RESETS_OOM_SCORE = 8 };
enum { MOST_PLAN = 1 << 22, MOST_TEXT = 1 << 14, MOST_DIGITS = 16, MOST_CPUS = 1 << 13 };
enum { OPEN_TRIES = 100, ATTACH_WAIT_S = 10, FAILED = 125 };

#ifndef SOURCES
#define SOURCES "unknown"
#endif

static int report_fd;
/* The root directory outside the private space; -1 if there is none. */
static long outside = -1;

_Noreturn static void quit(int code)
{
	for (;;)
		call(exit_group, code);
}

static char *decimal(unsigned long value, char *end)
{
	*--end = '\0';
	do
		*--end = (char)('0' + value % 10);
	while (value /= 10);
	return end;
}

_Noreturn static void fail(const char *step, long error, const char *what)
{
	char report[MOST_TEXT + 64], digits[24], *at = report;
	const char *parts[] = {step, decimal((unsigned long)-error, digits + sizeof digits), what};

	for (int i = 0; i < 3; i++) {
		size_t length = strlen(parts[i]);

		if (length > MOST_TEXT)
			length = MOST_TEXT;
		memcpy(at, parts[i], length);
		at += length;
		if (i < 2)
			*at++ = '\0';
	}
	call(write, report_fd, report, at - report);
	quit(FAILED);
}

static long must(long result, const char *step, const char *what)
{
	if (result < 0)
		fail(step, result, what);
	return result;
}

/* Memory that is never given back: this program is over in a millisecond. */
static void *take(size_t size)
{
	static char first[1 << 16] __attribute__((aligned(16)));
	static size_t used;
	long more;

#ifdef LIBC
	/* Each piece apart, for the sanitizers. */
	return malloc(size);
#endif
	size = (size + 15) & ~(size_t)15;
	if (size <= sizeof first - used) {
		used += size;
		return first + used - size;
	}
	more = call(mmap, 0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(more < 0 && more > -4096 ? more : 0, "setting", "");
	return (void *)more;
}

/* ---- texts that end with a NUL, one after the other ---- */

struct texts {
	char *at, *end;
	/* What is reported if they are not as they must be. */
	const char *step, *fault;
};

static char *next(struct texts *from)
{
	char *found = from->at;

	while (from->at < from->end && *from->at)
		from->at++;
	if (from->at == from->end)
		fail(from->step, 0, from->fault);
	from->at++;
	return found;
}

static unsigned long next_number(struct texts *from, unsigned base)
{
	const char *digits = next(from);
	unsigned long value = 0;
	size_t count = strlen(digits);

	if (count == 0 || count > MOST_DIGITS)
		fail(from->step, 0, from->fault);
	for (; *digits; digits++) {
		unsigned digit = (unsigned char)*digits - (unsigned)'0';

		if (*digits >= 'a')
			digit = (unsigned char)*digits - (unsigned)'a' + 10;
		if (digit >= base || (digit >= 10 && *digits < 'a'))
			fail(from->step, 0, from->fault);
		value = value * base + digit;
	}
	return value;
}

static char **next_texts(struct texts *from, unsigned long count)
{
	char **found;

	if (count > (size_t)(from->end - from->at))
		fail(from->step, 0, from->fault);
	found = take((count + 1) * sizeof *found);
	for (unsigned long i = 0; i < count; i++)
		found[i] = next(from);
	found[count] = NULL;
	return found;
}

static char **counted_texts(struct texts *from)
{
	return next_texts(from, next_number(from, 16));
}

static unsigned long *counted_numbers(struct texts *from, unsigned long *count)
{
	unsigned long *found;

	*count = next_number(from, 16);
	if (*count > (size_t)(from->end - from->at))
		fail(from->step, 0, from->fault);
	found = take((*count + 1) * sizeof *found);
	for (unsigned long i = 0; i < *count; i++)
		found[i] = next_number(from, 16);
	return found;
}

/* ---- with the runner's rights ---- */

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
	 * number of OpenMP's threads; those it gets in any case. */
	char **hidden, **defaults, **openmp_defaults, **own;
};

/* An exec by uid 0 has given the process all capabilities (capabilities(7)). */
static void set_capabilities(const struct plan *plan)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct sets[2];

	for (int i = 0; i < 2; i++) {
		sets[i].effective = (__u32)(plan->effective >> 32 * i);
		sets[i].permitted = (__u32)(plan->permitted >> 32 * i);
		sets[i].inheritable = (__u32)(plan->inheritable >> 32 * i);
	}
	must(call(capset, &header, sets), "setting", "");
}

static long put(const char *path, const char *text)
{
	long fd = call(openat, AT_FDCWD, path, O_WRONLY | O_TRUNC | O_CLOEXEC, 0), result;

	if (fd < 0)
		return fd;
	result = call(write, fd, text, strlen(text));
	call(close, fd);
	return result;
}

/* Go on as another child of the runner's, in a cgroup of version 2. To move this process there could
 * take the kernel 20 ms; a fork of it takes a few pages (clone3(2): CLONE_INTO_CGROUP). */
static void begin_in(const char *cgroup)
{
	struct clone_args how = {.flags = CLONE_INTO_CGROUP | CLONE_PARENT};
	long fd = call(openat, AT_FDCWD, cgroup, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
	int pid;

	how.cgroup = (__u64)must(fd, "cgroup", cgroup);
	if (must(call(clone3, &how, sizeof how), "cgroup", cgroup) > 0)
		quit(0);
	call(close, fd);
	pid = (int)call(getpid);
	must(call(write, report_fd, &pid, sizeof pid), "setting", "");
}

static void enter_limits(const struct plan *plan)
{
	unsigned long mask[MOST_CPUS / 64] = {0};
	struct rlimit processes = {plan->processes, plan->processes};

	for (char **file = plan->entries; *file; file++)
		must(put(*file, "0"), "cgroup", *file);
	for (unsigned long i = 0; i < plan->cpu_count; i++)
		if (plan->cpus[i] < MOST_CPUS)
			mask[plan->cpus[i] / 64] |= 1ul << plan->cpus[i] % 64;
	if (plan->cpu_count)
		must(call(sched_setaffinity, 0, sizeof mask, mask), "setting", "");
	if (plan->processes)
		must(call(prlimit64, 0, RLIMIT_NPROC, &processes, NULL), "setting", "");
}

static void set_privileged_attributes(const struct plan *plan)
{
	if (plan->flags & RESETS_OOM_SCORE) {
		long result = put("/proc/self/oom_score_adj", "0");

		/* Only root may lower what root has set for a user's whole session. */
		if (result != -EACCES && result != -EPERM)
			must(result, "setting", "");
	}
	/* It may be immutable, for which see inheritance.py. */
	if (*plan->login)
		put("/proc/self/loginuid", plan->login);
}

/* Write the name of a descriptor in /proc, and return its length. */
static size_t name_descriptor(char *into, long fd)
{
	static const char proc[] = "/proc/self/fd/";
	char digits[24], *number = decimal((unsigned long)fd, digits + sizeof digits);

	memcpy(into, proc, sizeof proc - 1);
	memcpy(into + sizeof proc - 1, number, strlen(number) + 1);
	return sizeof proc - 1 + strlen(number);
}

static unsigned long noexec(const char *path)
{
	struct statfs found;

	must(call(statfs, path, &found), "space", "");
	return (unsigned long)found.f_flags & MS_NOEXEC;
}

/* As private_tmp.enter. */
static void enter_space(const struct plan *plan)
{
	const unsigned long safe = MS_NOSUID | MS_NODEV;
	struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
	struct stat seen[2];
	char sources[2][40];
	long top, fd[2];

	outside = must(call(openat, AT_FDCWD, "/", O_PATH | O_DIRECTORY | O_CLOEXEC, 0), "space", "");
	must(call(unshare, CLONE_NEWNS), "space", "");
	must(call(mount, NULL, "/", NULL, MS_REC | MS_SLAVE, NULL), "space", "");
	top = must(call(openat2, AT_FDCWD, plan->place, &how, sizeof how), "space", "");
	/* All are opened before the first is covered: they may lie below /var/tmp themselves. */
	for (int i = 0; i < 2; i++) {
		fd[i] = must(call(openat2, top, plan->names[i], &how, sizeof how), "space", "");
		name_descriptor(sources[i], fd[i]);
		must(call(newfstatat, AT_FDCWD, plan->targets[i], &seen[i], 0), "space", "");
	}
	for (int i = 0; i < 2; i++) {
		const char *target = plan->targets[i];
		unsigned long extra = noexec(target) | noexec(sources[i]);

		/* One of the two may be a link to the other. */
		if (i == 0 || seen[0].st_ino != seen[1].st_ino || seen[0].st_dev != seen[1].st_dev) {
			must(call(mount, sources[i], target, NULL, MS_BIND, NULL), "space", "");
			must(call(mount, NULL, target, NULL, MS_BIND | MS_REMOUNT | safe | extra, NULL),
			     "space", "");
		}
		call(close, fd[i]);
	}
	must(call(mount, "tmpfs", "/dev/shm", "tmpfs", safe | noexec("/dev/shm"), plan->shm), "space", "");
	call(close, top);
}

/* Become the user for good, groups first, and verify it: no capability is left, and none comes back. */
static void become(const struct plan *plan)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct sets[2];
	unsigned *groups = take((plan->group_count + 1) * sizeof *groups), ids[6];
	unsigned uid = (unsigned)plan->uid, gid = (unsigned)plan->gid;

	for (unsigned long i = 0; i < plan->group_count; i++)
		groups[i] = (unsigned)plan->groups[i];
	must(call(setgroups, plan->group_count, groups), "setting", "");
	must(call(setresgid, gid, gid, gid), "setting", "");
	must(call(setresuid, uid, uid, uid), "setting", "");
	/* The user may neither trace this process nor write to its descriptors in /proc. */
	must(call(prctl, PR_SET_DUMPABLE, 0, 0, 0, 0), "setting", "");
	must(call(getresuid, &ids[0], &ids[1], &ids[2]), "setting", "");
	must(call(getresgid, &ids[3], &ids[4], &ids[5]), "setting", "");
	for (int i = 0; i < 6; i++)
		if (ids[i] != (i < 3 ? uid : gid))
			fail("regained", 0, "");
	if (uid == 0)
		return;
	must(call(capget, &header, sets), "setting", "");
	for (int i = 0; i < 2; i++)
		if (sets[i].effective || sets[i].permitted)
			fail("regained", 0, "");
	if (call(setuid, 0) != -EPERM)
		fail("regained", 0, "");
}

/* ---- with the user's rights alone ---- */

/* The path of an output file, as unpack.output_path. */
static char *output_path(const char *pattern, const char *cwd, char **signs)
{
	static const char letters[] = "jAaxu";
	size_t room = strlen(pattern) + 1, length = strlen(cwd);
	char *path, *at;

	for (const char *sign = pattern; *sign; sign++)
		if (*sign == '%' && sign[1] && strchr(letters, sign[1]))
			room += strlen(signs[strchr(letters, *++sign) - letters]);
		else if (*sign == '%' && sign[1] == '%')
			sign++;
	at = path = (char *)take(length + 1 + room) + length + 1;
	for (; *pattern; pattern++) {
		const char *letter = *pattern == '%' && pattern[1] ? strchr(letters, pattern[1]) : NULL;

		if (letter) {
			memcpy(at, signs[letter - letters], strlen(signs[letter - letters]));
			at += strlen(signs[letter - letters]);
			pattern++;
		} else {
			*at++ = *pattern;
			pattern += *pattern == '%' && pattern[1] == '%';
		}
	}
	*at = '\0';
	if (*path == '/')
		return path;
	while (length && cwd[length - 1] == '/')
		length--;
	*--path = '/';
	path -= length;
	memcpy(path, cwd, length);
	return path;
}

/* Open a path as the machine outside the private space sees it: as private_tmp.open_outside. */
static long open_outside(const char *path, int flags)
{
	struct open_how how = {.flags = (unsigned)flags | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT};

	how.mode = flags & O_CREAT ? 0666 : 0;
	for (int i = 0; outside >= 0 && *path == '/'; i++) {
		long fd = call(openat2, outside, path, &how, sizeof how);

		/* A link of /proc that names a descriptor of this process, such as /dev/stdout. */
		if (fd == -ELOOP || fd == -EXDEV)
			break;
		if ((fd != -EAGAIN && fd != -EINTR) || i == OPEN_TRIES)
			return fd;
	}
	return call(openat, AT_FDCWD, path, flags | O_CLOEXEC, 0666);
}

static long open_output(const char *path, unsigned long flags)
{
	/* Without O_NONBLOCK a FIFO that nobody reads would block a job indefinitely. */
	int how = O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY | O_NONBLOCK;
	long fd = open_outside(path, how | (flags & EMPTIES_OUTPUT ? O_TRUNC : 0));

	if (fd == -ENXIO) {
		struct stat file;
		long found = open_outside(path, O_PATH);

		if (found >= 0 && call(fstat, found, &file) == 0 && S_ISFIFO(file.st_mode))
			fail("pipe", fd, path);
	}
	must(fd, "output", path);
	must(call(fcntl, fd, F_SETFL, O_APPEND), "setting", "");
	return fd;
}

static void open_outputs(const struct plan *plan, const char *cwd, const char *out, const char *err)
{
	long null = must(call(openat, AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC, 0), "setting", "");
	char *out_path = output_path(out, cwd, plan->signs), *err_path = output_path(err, cwd, plan->signs);
	long out_fd = open_output(out_path, plan->flags), err_fd = out_fd;

	if (strcmp(out_path, err_path) != 0)
		err_fd = open_output(err_path, plan->flags);
	must(call(dup3, null, 0, 0), "setting", "");
	must(call(dup3, out_fd, 1, 0), "setting", "");
	must(call(dup3, err_fd, 2, 0), "setting", "");
}

static void connect_to(long fd, char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char *name = path + strlen(path);
	size_t length = 0;

	while (name > path && name[-1] != '/')
		name--;
	if (name > path) {
		long above;

		name[-1] = '\0';
		above = open_outside(name - 1 == path ? "/" : path, O_PATH | O_DIRECTORY);
		length = name_descriptor(address.sun_path, must(above, "attach", ""));
		address.sun_path[length++] = '/';
	}
	if (length + strlen(name) >= sizeof address.sun_path)
		fail("attach", -ENAMETOOLONG, "");
	memcpy(address.sun_path + length, name, strlen(name) + 1);
	must(call(connect, fd, &address, sizeof address), "attach", "");
}

/* Receive standard input, output and error from the submitter's own socket (`drf run`). */
static void take_descriptors(char *path)
{
	char kind = 0, control[CMSG_SPACE(3 * sizeof(int))] __attribute__((aligned(8)));
	struct iovec part = {&kind, 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control};
	struct cmsghdr *head = (struct cmsghdr *)control;
	struct timespec wait = {.tv_sec = ATTACH_WAIT_S};
	long fd = call(socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct pollfd answer = {.fd = (int)must(fd, "attach", ""), .events = POLLIN};
	int given[3];

	message.msg_controllen = CMSG_LEN(sizeof given);
	connect_to(fd, path);
	if (must(call(ppoll, &answer, 1, &wait, NULL, 8), "attach", "") == 0)
		fail("attach", -ETIMEDOUT, "");
	must(call(recvmsg, fd, &message, MSG_CMSG_CLOEXEC), "attach", "");
	if (message.msg_controllen < CMSG_LEN(sizeof given) || head->cmsg_len != CMSG_LEN(sizeof given) ||
	    head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
		fail("too few", 0, "");
	memcpy(given, CMSG_DATA(head), sizeof given);
	for (int i = 0; i < 3; i++)
		must(call(dup3, given[i], i, 0), "setting", "");
	if (kind == 't')
		must(call(ioctl, 0, TIOCSCTTY, 0), "terminal", "");
}

/* Whether one of the variables has the same name. All contain a "=". */
static int has_name(char **variables, const char *wanted)
{
	for (; *variables; variables++) {
		const char *one = *variables, *other = wanted;

		while (*one != '=' && *one == *other)
			one++, other++;
		if (*one == '=' && *other == '=')
			return 1;
	}
	return 0;
}

static int begins(const char *text, const char *with)
{
	while (*with && *text == *with)
		text++, with++;
	return !*with;
}

static size_t count_of(char **list)
{
	size_t count = 0;

	while (list[count])
		count++;
	return count;
}

/* The job's variables, as identity.environment. The list `given` is changed. */
static char **environment(const struct plan *plan, char **given, const char *cwd)
{
	size_t most = count_of(given) + count_of(plan->defaults) + count_of(plan->openmp_defaults);
	char **env = take((most + count_of(plan->own) + 2) * sizeof *env), **at = env, **kept = given;
	char *pwd = take(strlen(cwd) + 5);

	memcpy(pwd, "PWD=", 4);
	memcpy(pwd + 4, cwd, strlen(cwd) + 1);
	for (char **each = plan->own; *each; each++)
		*at++ = *each;
	if (!has_name(plan->own, pwd))
		*at++ = pwd;
	for (char **each = given; *each; each++) {
		int is_hidden = 0;

		for (char **hidden = plan->hidden; *hidden; hidden++)
			is_hidden |= begins(*each, *hidden);
		if (!is_hidden)
			*kept++ = *each;
	}
	*kept = NULL;
	for (char **each = given; *each; each++)
		if (!has_name(plan->own, *each) && !begins(*each, "PWD="))
			*at++ = *each;
	for (char **each = plan->defaults; *each; each++)
		if (!has_name(given, *each) && !has_name(plan->own, *each))
			*at++ = *each;
	if (!has_name(given, "OMP_NUM_THREADS="))
		for (char **each = plan->openmp_defaults; *each; each++)
			if (!has_name(given, *each) && !has_name(plan->own, *each))
				*at++ = *each;
	*at = NULL;
	return env;
}

/* As os.execvpe. */
_Noreturn static void execute(const char *path, char **argv, char **env)
{
	const char *directory = "";
	long error = 0, first = 0;
	char *full;

	if (strchr(path, '/'))
		fail("program", call(execve, path, argv, env), path);
	for (char **each = env; *each; each++)
		if (begins(*each, "PATH="))
			directory = *each + 5;
	full = take(strlen(directory) + strlen(path) + 2);
	for (;; directory++) {
		size_t length = 0;

		for (; *directory && *directory != ':'; directory++)
			full[length++] = *directory;
		if (length && full[length - 1] != '/')
			full[length++] = '/';
		memcpy(full + length, path, strlen(path) + 1);
		error = call(execve, full, argv, env);
		if (error != -ENOENT && error != -ENOTDIR && !first)
			first = error;
		if (!*directory)
			fail("program", first ? first : error, path);
	}
}

/* Run the script from a file in memory, so that it runs as it was submitted. The interpreter opens it
 * by the name of its descriptor, so that stays open. */
_Noreturn static void execute_script(const char *script, size_t length, long fd, char **argv, char **env)
{
	char path[40], **words = take((count_of(argv) + 2) * sizeof *words);
	int is_shells = length < 2 || script[0] != '#' || script[1] != '!';

	name_descriptor(path, fd);
	words[0] = "sh";
	words[1] = path;
	memcpy(words + 2, argv + 1, count_of(argv) * sizeof *words);
	if (is_shells)
		fail("script", call(execve, "/bin/sh", words, env), argv[0]);
	fail("script", call(execve, path, argv, env), argv[0]);
}

static long script_file(const char *script, size_t length)
{
	long fd = must(call(memfd_create, "script", 0), "setting", "");

	for (size_t done = 0; done < length;)
		done += (size_t)must(call(write, fd, script + done, length - done), "setting", "");
	return fd;
}

_Noreturn static void run(const struct plan *plan, int payload_fd, int go_fd)
{
	struct stat file;
	struct texts from = {.step = "payload", .fault = "it is not what a job is started with"};
	unsigned long umask, argc, notices, count, has_script;
	char *cwd, *out, *err, *attach, **argv, **env, go;
	long content, script = -1;

	must(call(fstat, payload_fd, &file), "setting", "");
	if (file.st_size <= 0)
		fail(from.step, 0, from.fault);
	content = call(mmap, 0, file.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, payload_fd, 0);
	must(content < 0 && content > -4096 ? content : 0, "setting", "");
	from.at = (char *)content;
	from.end = from.at + file.st_size;
	if (strcmp(next(&from), "drfd-payload-1") != 0)
		fail(from.step, 0, from.fault);
	umask = next_number(&from, 8);
	cwd = next(&from), out = next(&from), err = next(&from), attach = next(&from);
	argc = next_number(&from, 10), notices = next_number(&from, 10);
	count = next_number(&from, 10), has_script = next_number(&from, 10);
	from.fault = "it is cut short";
	argv = next_texts(&from, argc);
	next_texts(&from, notices);
	env = next_texts(&from, count);
	for (char **each = env; *each; each++)
		if (**each == '=' || !strchr(*each, '='))
			fail(from.step, 0, "a variable has no name or no value");
	if (argc == 0 || !*argv[0])
		fail(from.step, 0, "it names no program");
	env = environment(plan, env, cwd);

	call(umask, umask & 0777);
	must(call(chdir, cwd), "directory", cwd);
	if (*attach)
		take_descriptors(attach);
	else
		open_outputs(plan, cwd, out, err);
	if (has_script)
		script = script_file(from.at, (size_t)(from.end - from.at));
	must(call(write, report_fd, "+", 1), "setting", "");
	if (call(read, go_fd, &go, 1) != 1 || go != '+')
		quit(FAILED);
	must(call(prlimit64, 0, RLIMIT_CORE, &plan->core, NULL), "setting", "");
	if (has_script)
		execute_script(from.at, (size_t)(from.end - from.at), script, argv, env);
	execute(argv[0], argv, env);
}

/* ---- the start ---- */

static struct plan read_plan(int fd)
{
	unsigned length;
	size_t have = 0;
	struct texts from = {.step = "plan", .fault = ""};
	struct plan plan;

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
	if (strcmp(next(&from), "drfd-plan-1") != 0)
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
	plan.own = counted_texts(&from);
	return plan;
}

static int descriptor(const char *digits)
{
	struct texts one = {(char *)digits, (char *)digits + strlen(digits) + 1, "plan", ""};

	return (int)next_number(&one, 10);
}

/* Say which sources this is, if the kernel has the calls that are not in every kernel. */
_Noreturn static void introduce(void)
{
	struct open_how how = {.flags = O_PATH | O_CLOEXEC};

	if (call(close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC) < 0 ||
	    call(openat2, AT_FDCWD, "/", &how, sizeof how) < 0)
		quit(FAILED);
	call(write, 1, SOURCES "\n", sizeof SOURCES);
	quit(0);
}

_Noreturn static void begin(int count, char **argv)
{
	/* glibc's posix_spawn leaves its two internal signals ignored, which a program would inherit. */
	char usual[32] = {0};
	struct plan plan;
	int entry_fd, go_fd, payload_fd;

	if (count != 5)
		introduce();
	report_fd = entry_fd = descriptor(argv[1]);
	go_fd = descriptor(argv[3]);
	payload_fd = descriptor(argv[4]);
	/* Nothing that is open now stays open in the job. */
	must(call(close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC), "setting", "");
	plan = read_plan(go_fd);
	if (plan.flags & DROPS)
		set_capabilities(&plan);
	for (int number = 32; number <= 33; number++)
		must(call(rt_sigaction, number, usual, NULL, 8), "setting", "");
	if (*plan.cgroup)
		begin_in(plan.cgroup);
	must(call(setsid), "setting", "");
	enter_limits(&plan);
	report_fd = descriptor(argv[2]);
	call(close, entry_fd);
	set_privileged_attributes(&plan);
	if (*plan.place)
		enter_space(&plan);
	if (plan.flags & DROPS)
		become(&plan);
	if (plan.flags & JOINS_KEYRING) {
		long key = call(keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL);

		if (key != -EDQUOT)
			must(key, "keyring", "");
	}
	run(&plan, payload_fd, go_fd);
}

ENTRY
