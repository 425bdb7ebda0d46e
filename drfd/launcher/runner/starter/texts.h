/* Reports of failures, memory, and the texts that plan and payload consist of. */

enum { MOST_TEXT = 1 << 14, MOST_PLAN = 1 << 22, MOST_DIGITS = 16, FAILED = 125 };
/* The status of a parent that has put the end on record and could not remove the cgroups. */
enum { LEFT = 3 };

/* In the page of other variables, rather than behind long arrays in one of its own. */
#define BESIDE __attribute__((section(".data")))

/* The pipe through which a job's process reports a failure; -1 in its parent, which records its own. */
static int report_fd = -1;

_Noreturn static void record_failure(const char *report, size_t length, int by_root);

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
	if (report_fd < 0)
		record_failure(report, (size_t)(at - report), 1);
	call(write, report_fd, report, at - report);
	quit(FAILED);
}

#ifndef LIBC
/* Called where a function finds that more was written than its arrays hold. */
__attribute__((used)) _Noreturn void __stack_chk_fail(void)
{
	fail("stack", 0, "");
}
#endif

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
	static size_t used BESIDE;
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

/* Texts that end with a NUL, one after the other. */
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

/* Read the texts of a plan: see layout.py. */
static struct texts read_texts(int fd)
{
	unsigned length;
	size_t have = 0;
	struct texts from = {.step = "plan", .fault = ""};

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
	return from;
}
