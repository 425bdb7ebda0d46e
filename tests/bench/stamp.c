/* A job that tells when it runs, with its first instructions, and ends. The time is CLOCK_MONOTONIC
 * in nanoseconds, on a line of its own that is not torn (a write of less than PIPE_BUF); it goes to
 * the standard output, or to the file that the argument names. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct timespec now;
	char line[64];
	int length, fd = 1;

	clock_gettime(CLOCK_MONOTONIC, &now);
	if (argc > 1)
		fd = open(argv[1], O_WRONLY);
	length = snprintf(line, sizeof line, "%lld%09ld\n", (long long)now.tv_sec, now.tv_nsec);
	return write(fd, line, (size_t)length) == length ? 0 : 1;
}
