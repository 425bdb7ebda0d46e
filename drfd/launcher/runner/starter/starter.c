/* The first program of a job's process: from the runner to the job's own program.
 *
 *   drfd-starter                           say which sources this was compiled from
 *   drfd-starter ENTRY REPORT GO PAYLOAD   become a job; the arguments are descriptors
 *   drfd-starter PLAN                      wait for the end of a job: see wait.h
 *
 * First the limits, then the user, then the user's files. The runner writes to GO what root has
 * decided, the plan (plan.py), and later a "+". PAYLOAD is what the user has written, a sealed file
 * in memory (payload/pack.py): nothing of it is read, and no path of the user's is touched, before
 * root's rights are dropped.
 *
 * A failure is reported as step NUL errno NUL text (report.py), up to the entry of the cgroup through
 * ENTRY, later through REPORT. ENTRY is closed before the rights are dropped, because the user
 * may control the process from then on. Where the process begins in a cgroup of version 2, its id
 * comes through ENTRY first, and this one has ended with 0. */
#define _GNU_SOURCE
#include <asm/errno.h>
#include <asm/ioctls.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <linux/filter.h>
#include <linux/keyctl.h>
#include <linux/openat2.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include "calls.h"
#include "texts.h"
#include "plan.h"
#include "root.h"
#include "user.h"
#include "script.h"
#include "wait.h"

#ifndef SOURCES
#define SOURCES "unknown"
#endif

_Noreturn static void run(const struct plan *plan, int payload_fd, int go_fd)
{
	struct stat file;
	struct texts from = {.step = "payload", .fault = "it is not what a job is started with"};
	unsigned long umask, argc, notices, count, has_script;
	struct itimerval alarm = {.it_value.tv_sec = NOTICE_ALARM_S};
	char *cwd, *out, *err, *attach, **argv, **notify, **env, go;
	int is_notice = !!(plan->flags & NOTIFIES);
	const char *name;
	long content;
	struct script script;

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
	notify = next_texts(&from, notices);
	env = next_texts(&from, count);
	for (char **each = env; *each; each++)
		if (**each == '=' || !strchr(*each, '='))
			fail(from.step, 0, "a variable has no name or no value");
	if (is_notice)
		argv = notify, argc = notices, has_script = 0;
	if (argc == 0 || !*argv[0])
		fail(from.step, 0, "it names no program");
	/* The submitter's own value: it decides which code the interpreter loads beside the script. */
	name = drf_script(env);
	env = environment(plan, env, cwd);

	call(umask, umask & 0777);
	if (is_notice) {
		env = with_outputs(env, plan, cwd, out, err);
		/* The job may have removed its directory; the owner is notified in any case. */
		if (call(chdir, cwd) < 0)
			must(call(chdir, "/"), "directory", "/");
		out = err = "/dev/null";
	} else {
		must(call(chdir, cwd), "directory", cwd);
	}
	if (*attach && !is_notice)
		take_descriptors(attach);
	else
		open_outputs(plan, cwd, out, err);
	if (has_script) {
		script = script_of(plan, from.at, (size_t)(from.end - from.at), name);
		write_script(&script);
	}
	if (plan->flags & SENDS_OUTPUTS && !*attach && !is_notice)
		send_outputs();
	else
		must(call(write, report_fd, "+", 1), "setting", "");
	if (call(read, go_fd, &go, 1) != 1 || go != '+')
		quit(FAILED);
	must(call(prlimit64, 0, RLIMIT_CORE, &plan->core, NULL), "setting", "");
	if (is_notice)
		/* An alarm survives exec (execve(2)). */
		must(call(setitimer, ITIMER_REAL, &alarm, NULL), "setting", "");
	if (has_script)
		execute_script(&script, argv, env);
	execute(argv[0], argv, env);
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
	call(write, 1, SOURCES, sizeof SOURCES - 1);
#ifndef LIBC
	if (filter(0) < 0)
		call(write, 1, " unfiltered", 11);
#endif
	call(write, 1, "\n", 1);
	quit(0);
}

_Noreturn static void begin(int count, char **argv)
{
	/* glibc's posix_spawn leaves its two internal signals ignored, which a program would inherit. */
	char usual[32] = {0};
	struct plan plan;
	int entry_fd, go_fd, payload_fd;

	if (count == 2)
		await_end(descriptor(argv[1]));
	if (count != 5)
		introduce();
	report_fd = entry_fd = descriptor(argv[1]);
	go_fd = descriptor(argv[3]);
	payload_fd = descriptor(argv[4]);
	/* Nothing that is open now stays open in the job. */
	must(call(close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC), "setting", "");
	/* The kernel has named it after the number of a descriptor. */
	call(prctl, PR_SET_NAME, "drfd-starter", 0, 0, 0);
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
