/* A job that tells when it runs, with its first instructions, and ends. The time is CLOCK_MONOTONIC
 * in nanoseconds, on a line of its own that is not torn (a write of less than PIPE_BUF). */

#define _GNU_SOURCE
#include <stdio.h>
#include <time.h>
#include <unistd.h>

int main(void)
{
	struct timespec now;
	char line[64];
	int length;

	clock_gettime(CLOCK_MONOTONIC, &now);
	length = snprintf(line, sizeof line, "%lld%09ld\n", (long long)now.tv_sec, now.tv_nsec);
	return write(1, line, (size_t)length) == length ? 0 : 1;
}
