/* The program that runs a job: the parent of the job's process, and that process until its own program.
 *
 *   drfd-starter                                say which sources this was compiled from
 *   drfd-starter ATTEMPT LAUNCHED PLAN PAYLOAD  run an attempt; the arguments are descriptors
 *   drfd-starter step RECORDS NUMBER ...        run a step of a job, as its user (step.h)
 *
 * ATTEMPT is the attempt's file, to which this process appends what becomes of the job. It holds the
 * lock of the file as long as it lives, and outlives the launcher, to which it writes a line in
 * LAUNCHED when the job is launched. PLAN is what root has decided (layout.py). PAYLOAD is what the user has
 * written, a sealed file in memory (payload/pack.py): nothing of it is read, and no path of the user's
 * is touched, before root's rights are dropped, in the job's process alone.
 *
 * A failure is told as step NUL errno NUL text (daemon/launcher_link/failures.py). */
#define _GNU_SOURCE
#include <asm/errno.h>
#include <asm/ioctls.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <linux/filter.h>
#include <linux/ioprio.h>
#include <linux/keyctl.h>
#include <linux/openat2.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
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
#undef prlimit64 /* for musl another name of prlimit; here that of the system call */
#include "calls.h"
#include "texts.h"
#include "plan.h"
#include "record.h"
#include "root.h"
#include "user.h"
#include "script.h"
#include "wait.h"

#ifndef SOURCES
#define SOURCES "unknown"
#endif

/* Carry out the payload, with the rights of its user alone. */
_Noreturn static void run(const struct plan *plan, int payload_fd, int go_fd)
{
	struct stat file;
	struct texts from = {.step = "payload", .fault = "it is not what a job is started with"};
	unsigned long umask, argc, notices, count, words, has_script;
	struct itimerval alarm = {.it_value.tv_sec = NOTICE_ALARM_S};
	char *cwd, *out, *err, *attach, **argv, **notify, **env, **interpreter, go;
	int is_notice = (int)plan->notifies;
	long content, script_fd = -1;

	must(call(fstat, payload_fd, &file), "setting", "");
	if (file.st_size <= 0)
		fail(from.step, 0, from.fault);
	content = call(mmap, 0, file.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, payload_fd, 0);
	must(content < 0 && content > -4096 ? content : 0, "setting", "");
	from.at = (char *)content;
	from.end = from.at + file.st_size;
	if (strcmp(next(&from), "drfd-payload-2") != 0)
		fail(from.step, 0, from.fault);
	umask = next_number(&from, 8);
	cwd = next(&from), out = next(&from), err = next(&from), attach = next(&from);
	argc = next_number(&from, 10), notices = next_number(&from, 10);
	count = next_number(&from, 10), words = next_number(&from, 10), has_script = next_number(&from, 10);
	from.fault = "it is cut short";
	argv = next_texts(&from, argc);
	notify = next_texts(&from, notices);
	env = next_texts(&from, count);
	interpreter = next_texts(&from, words);
	for (char **each = env; *each; each++)
		if (**each == '=' || !strchr(*each, '='))
			fail(from.step, 0, "a variable has no name or no value");
	if (is_notice)
		argv = notify, argc = notices, has_script = 0;
	if (argc == 0 || !*argv[0])
		fail(from.step, 0, "it names no program");
	if (words && words < LEAST_WORDS)
		fail(from.step, 0, from.fault);
	env = environment(plan, env, cwd);

	call(umask, umask & 0777);
	if (is_notice) {
		char *outputs[] = {
			joined("DRF_STDOUT=", output_path(out, cwd, plan->signs)),
			joined("DRF_STDERR=", output_path(err, cwd, plan->signs)),
			NULL,
		};

		env = add_missing(outputs, env);
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
	if (has_script)
		script_fd = write_script(from.at, (size_t)(from.end - from.at));
	if (plan->sends_outputs && !*attach && !is_notice)
		send_outputs();
	else
		must(call(write, report_fd, "+", 1), "setting", "");
	if (call(read, go_fd, &go, 1) != 1 || go != '+')
		quit(FAILED);
	if (is_notice)
		/* An alarm survives exec (execve(2)). */
		must(call(setitimer, ITIMER_REAL, &alarm, NULL), "setting", "");
	if (has_script)
		execute_script(&from, script_fd, interpreter, argv, env);
	execute(argv[0], argv, env);
}

#include "start.h"

static int descriptor(const char *digits)
{
	struct texts one = {(char *)digits, (char *)digits + strlen(digits) + 1, "plan", ""};

	return (int)next_number(&one, 10);
}

#include "step.h"

/* Say which sources this is, if the kernel has the calls that are not in every kernel. */
_Noreturn static void introduce(void)
{
	struct open_how how = {.flags = O_PATH | O_CLOEXEC};
	/* By an address that must have been corrected: a program without is not used. */
	static const char *volatile sources = SOURCES;
	char line[sizeof SOURCES + 16], *end = append(line, sources);

	if (call(close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC) < 0 ||
	    call(openat2, AT_FDCWD, "/", &how, sizeof how) < 0)
		quit(FAILED);
#ifndef LIBC
	if (filter(0) < 0)
		end = append(end, " unfiltered");
#endif
	end = append(end, "\n");
	/* At once: the reader does not wait for more. */
	call(write, 1, line, end - line);
	quit(0);
}

/* Make this process the runner of an attempt. */
static void prepare(const struct plan *plan)
{
	call(prctl, PR_SET_NAME, "drfd-runner", 0, 0, 0);
	/* Out of the launcher's session, and of its fate. */
	must(call(setsid), "setting", "");
	must(call(prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "setting", "");
	take_policy(plan);
	if (plan->drops) {
		/* It has all of root's capabilities again since it was executed. */
		set_capabilities(plan);
		must(call(prctl, PR_SET_DUMPABLE, 0, 0, 0, 0), "setting", "");
	}
	if (plan->leaves_keyring) {
		/* An empty one that nobody can fill: see inheritance.py. */
		long key = must(call(keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL), "keyring", "");

		must(call(keyctl, KEYCTL_SETPERM, key, KEYRING_RIGHTS), "keyring", "");
	}
}

/* The first record: the next launcher can find this runner by it. */
static void announce(void)
{
	char line[MOST_RECORD];
	char *end = append_process(append_kind(line, "runner"), call(getpid), own_start());

	must(write_record(line, end), "setting", "");
	reach("runner.before-child");
}

_Noreturn static void begin(int count, char **argv)
{
	static struct plan plan;
	unsigned long all = ~0ul;
	char usual[32] = {0};
	int fds[4];

	if (count > 5 && strcmp(argv[1], "step") == 0)
		run_step(descriptor(argv[2]), argv[3], argv + 4, argv + count + 1);
	if (count != 5)
		introduce();
	for (int i = 0; i < 4; i++)
		fds[i] = descriptor(argv[i + 1]);
	call(rt_sigprocmask, SIG_SETMASK, &all, NULL, 8);
	/* A C library's posix_spawn leaves its own ones ignored. */
	for (int number = 32; number <= 34; number++)
		call(rt_sigaction, number, usual, NULL, 8);
	attempt_fd = fds[0];
	ours = &plan;
	plan = read_plan(fds[2]);
	if (strlen(plan.name) > MOST_NAME)
		fail("plan", 0, "");
	announce();
	prepare(&plan);
	run_attempt(&plan, fds[1], fds[3]);
}

ENTRY
