/* The parent of a step of `srun`, in whose place it is: it records when the step begins and how it ends, and
 * ends as the step does. It has its user's rights alone, and next to no memory of its own, of which the job
 * may have little and many steps.
 *
 *   drfd-starter step RECORDS NUMBER PATH ARGV...  RECORDS is a descriptor (cli/drfd_cli/slurm/records.py) */

#define BIT(number) (1ul << ((number) - 1))

static char *append_step(char *line, const char *kind, const char *number)
{
	char *end = append_name(append_kind(line, kind), "step");

	return append_time(append(end, number), "at_s", CLOCK_REALTIME);
}

/* Whether a signal was for this process alone, from one of the job's: the launcher's go to all processes of
 * a job, and a terminal's to all of a group. */
static int is_for_step(const siginfo_t *told)
{
	return told->si_code <= 0 && told->si_pid > 0 &&
	       call(getsid, told->si_pid) == call(getsid, 0);
}

/* Become the program of the step. */
_Noreturn static void execute_step(char **words, char **env)
{
	static const char begin[] = "drf: srun: cannot run ";
	char text[64], *end = append(text, ": ");
	long error = call(execve, words[0], words + 1, env);

	if (error == -ENOEXEC)
		end = append(end, "Exec format error\n");
	else
		end = append(append_number(append(end, "error "), (unsigned long)-error), "\n");
	call(write, 2, begin, sizeof begin - 1);
	call(write, 2, words[1], strlen(words[1]));
	call(write, 2, text, end - text);
	quit(1);
}

_Noreturn static void run_step(int records, const char *number, char **words, char **env)
{
	/* A terminal stops and continues this process as well as the step. */
	unsigned long held = ~(BIT(SIGTSTP) | BIT(SIGTTIN) | BIT(SIGTTOU) | BIT(SIGCONT)), before;
	char line[MOST_RECORD], usual[32] = {0};
	struct wait wait = {0};
	int signal;

	attempt_fd = records;
	call(fcntl, records, F_SETFD, FD_CLOEXEC);
	call(rt_sigprocmask, SIG_BLOCK, &held, &before, 8);
	/* Whoever ignores the ends of children is not told of them. */
	call(rt_sigaction, SIGCHLD, usual, NULL, 8);
	wait.pid = call(clone, SIGCHLD);
	if (wait.pid <= 0) {
		/* If the job has as many processes as it may have, in place, and without a record. */
		if (wait.pid == 0)
			call(prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
		call(rt_sigprocmask, SIG_SETMASK, &before, NULL, 8);
		execute_step(words, env);
	}
	/* Whoever reads from the step, or writes to it, sees it close its end. */
	for (int fd = 0; fd < 3; fd++)
		if (fd != records)
			call(close, fd);
	keep_only(&records, 1);
	call(prctl, PR_SET_NAME, "srun", 0, 0, 0);
	write_record(line, append_step(line, "began", number));
	while (reap(&wait), !wait.is_over) {
		siginfo_t told;
		long got = call(rt_sigtimedwait, &held, &told, NULL, 8);

		if (got > 0 && got != SIGCHLD && is_for_step(&told))
			call(kill, wait.pid, got);
	}
	write_record(line, append_end(append_step(line, "ended", number), &wait));
	signal = wait.status & 0x7f;
	if (!signal)
		quit(wait.status >> 8 & 0xff);
	/* The step has left its core, if any. */
	call(prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
	call(rt_sigaction, signal, usual, NULL, 8);
	call(rt_sigprocmask, SIG_SETMASK, &before, NULL, 8);
	call(kill, call(getpid), signal);
	quit(128 + signal);
}
