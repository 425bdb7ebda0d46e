/* What the kernel alone needs for a job: for each, one after the other, a cgroup in every
 * controller, a fork, joining the cgroups, becoming a user, /bin/true, waiting, and the removal.
 *
 *   baseline JOBS UID PAUSE_MS DIRECTORY...
 *
 * DIRECTORY: an existing cgroup of each controller, in which a job gets one of its own. UID 0: stay
 * who we are. PAUSE_MS: so long nothing is done before each. What each took is written in nanoseconds. Nothing is limited, counted or written down: whoever does so too cannot be faster. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 16
#define NAME 64

struct place {
	char job[PATH_MAX];
	/* What a job's cpuset begins with, without which nothing can join it on version 1. */
	char cpus[256], mems[256];
	/* The file for who enters it. Version 1 has one that needs no lock (cgroup_attach_lock). */
	const char *entry;
};

static struct place places[MOST];
static int count;

static void die(const char *what)
{
	fprintf(stderr, "baseline: %s: %s\n", what, strerror(errno));
	_exit(1);
}

static void put(const char *directory, const char *name, const char *text)
{
	char path[PATH_MAX + NAME];
	ssize_t length = (ssize_t)strlen(text);
	int fd;

	snprintf(path, sizeof path, "%s/%s", directory, name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, text, (size_t)length) != length)
		die(path);
	close(fd);
}

/* Nothing, if the file is not there: the directory is of another controller, or of version 2. */
static void get(const char *directory, const char *name, char *text, size_t most)
{
	char path[PATH_MAX + NAME];
	ssize_t length;
	int fd;

	snprintf(path, sizeof path, "%s/%s", directory, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	length = read(fd, text, most - 1);
	if (length < 0)
		die(path);
	text[length] = '\0';
	close(fd);
}

static void become(uid_t uid)
{
	if (setgroups(0, NULL) != 0 || setresgid(uid, uid, uid) != 0 || setresuid(uid, uid, uid) != 0)
		die("becoming the user");
}

static long long now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static void run(uid_t uid)
{
	char *const words[] = {"true", NULL}, *const none[] = {NULL};
	int i, status;
	pid_t pid;

	for (i = 0; i < count; i++) {
		if (mkdir(places[i].job, 0755) != 0)
			die(places[i].job);
		if (places[i].cpus[0] > '\n') {
			put(places[i].job, "cpuset.cpus", places[i].cpus);
			put(places[i].job, "cpuset.mems", places[i].mems);
		}
	}
	pid = fork();
	if (pid < 0)
		die("fork");
	if (pid == 0) {
		for (i = 0; i < count; i++)
			put(places[i].job, places[i].entry, "0");
		if (uid != 0)
			become(uid);
		execve("/bin/true", words, none);
		die("/bin/true");
	}
	if (waitpid(pid, &status, 0) != pid)
		die("waiting");
	for (i = 0; i < count; i++)
		if (rmdir(places[i].job) != 0)
			die(places[i].job);
	if (status != 0) {
		fprintf(stderr, "baseline: /bin/true ended with status %d\n", status);
		_exit(1);
	}
}

int main(int argc, char **argv)
{
	char tasks[PATH_MAX + NAME];
	struct timespec pause;
	long left, pause_ms;
	int i;

	if (argc < 4 || argc > 4 + MOST) {
		fprintf(stderr, "usage: baseline JOBS UID PAUSE_MS DIRECTORY...\n");
		return 2;
	}
	count = argc - 4;
	pause_ms = strtol(argv[3], NULL, 10);
	pause.tv_sec = pause_ms / 1000;
	pause.tv_nsec = pause_ms % 1000 * 1000000;
	for (i = 0; i < count; i++) {
		const char *parent = argv[4 + i];

		snprintf(places[i].job, sizeof places[i].job, "%s/baseline-%d", parent, (int)getpid());
		snprintf(tasks, sizeof tasks, "%s/tasks", parent);
		places[i].entry = access(tasks, F_OK) == 0 ? "tasks" : "cgroup.procs";
		get(parent, "cpuset.cpus", places[i].cpus, sizeof places[i].cpus);
		get(parent, "cpuset.mems", places[i].mems, sizeof places[i].mems);
	}
	for (left = strtol(argv[1], NULL, 10); left > 0; left--) {
		long long begin;

		if (pause_ms > 0)
			nanosleep(&pause, NULL);
		begin = now();
		run((uid_t)strtol(argv[2], NULL, 10));
		printf("%lld\n", now() - begin);
	}
	return 0;
}
