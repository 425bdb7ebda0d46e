/* How long a process takes to enter a cgroup, in nanoseconds, a line for each time.
 *
 *   migrate DIRECTORY TIMES PAUSE_MS pid|self
 *
 * A cgroup is made in DIRECTORY, and a new process enters it each time, so many milliseconds after
 * the last one. pid: the parent writes its number to cgroup.procs. self: the process, which has one
 * thread, writes a 0 to `tasks`, or to cgroup.procs on version 2, which has no such file. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char made[PATH_MAX];

static void die(const char *what)
{
	fprintf(stderr, "migrate: %s: %s\n", what, strerror(errno));
	if (made[0] != '\0')
		rmdir(made);
	_exit(1);
}

static long long now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static long long enter(int fd, const char *word)
{
	long long begin = now();

	if (pwrite(fd, word, strlen(word), 0) < 0)
		die(word);
	return now() - begin;
}

static long long migrate(int fd, int is_self)
{
	long long took = 0;
	char word[32];
	int there[2], back[2];
	pid_t pid;

	if (pipe(there) != 0 || pipe(back) != 0)
		die("pipe");
	pid = fork();
	if (pid < 0)
		die("fork");
	if (pid == 0) {
		close(there[1]);
		if (is_self) {
			took = enter(fd, "0");
			if (write(back[1], &took, sizeof took) != sizeof took)
				_exit(1);
		}
		/* Until the parent has moved it. */
		_exit(read(there[0], word, 1) == 0 ? 0 : 1);
	}
	close(back[1]);
	snprintf(word, sizeof word, "%d", (int)pid);
	if (!is_self)
		took = enter(fd, word);
	else if (read(back[0], &took, sizeof took) != sizeof took)
		die("the process that enters");
	close(there[0]);
	close(there[1]);
	close(back[0]);
	if (waitpid(pid, NULL, 0) != pid)
		die("waiting");
	return took;
}

int main(int argc, char **argv)
{
	char directory[PATH_MAX - 16], file[PATH_MAX];
	struct timespec pause;
	int fd, is_self;
	long left, pause_ms;

	if (argc != 5) {
		fprintf(stderr, "usage: migrate DIRECTORY TIMES PAUSE_MS pid|self\n");
		return 2;
	}
	is_self = strcmp(argv[4], "self") == 0;
	pause_ms = strtol(argv[3], NULL, 10);
	pause.tv_sec = pause_ms / 1000;
	pause.tv_nsec = pause_ms % 1000 * 1000000;
	snprintf(directory, sizeof directory, "%s/migrate-%d", argv[1], (int)getpid());
	if (mkdir(directory, 0755) != 0)
		die(directory);
	strcpy(made, directory);
	snprintf(file, sizeof file, "%s/%s", directory, is_self ? "tasks" : "cgroup.procs");
	fd = open(file, O_WRONLY | O_CLOEXEC);
	if (fd < 0 && is_self) {
		snprintf(file, sizeof file, "%s/cgroup.procs", directory);
		fd = open(file, O_WRONLY | O_CLOEXEC);
	}
	if (fd < 0)
		die(file);
	for (left = strtol(argv[2], NULL, 10); left > 0; left--) {
		nanosleep(&pause, NULL);
		printf("%lld\n", migrate(fd, is_self));
	}
	close(fd);
	return rmdir(made) == 0 ? 0 : 1;
}
