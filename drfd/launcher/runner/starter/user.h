/* The steps with the user's rights alone: outputs, terminal, variables, the program. */

enum { OPEN_TRIES = 100, ATTACH_WAIT_S = 10, NOTICE_ALARM_S = 60 };

/* Of the texts of signs, the first three are numbers. */
static const char letters[] = "jAaxu";
enum { NUMBERS = 3, MOST_WIDTH = 10 };

/* The letter of a sign such as %j or %03a, and the width before it; else NULL. */
static const char *letter_of(const char *sign, size_t *width)
{
	*width = 0;
	if (*sign++ != '%')
		return NULL;
	for (; *sign >= '0' && *sign <= '9'; sign++)
		*width = *width * 10 + (size_t)(*sign - '0') < MOST_WIDTH ?
			 *width * 10 + (size_t)(*sign - '0') : MOST_WIDTH;
	return *sign && strchr(letters, *sign) ? sign : NULL;
}

/* The path of an output file, as unpack.output_path. */
static char *output_path(const char *pattern, const char *cwd, char **signs)
{
	size_t room = strlen(pattern) + 1, length = strlen(cwd), width;
	const char *letter;
	char *path, *at;

	for (const char *sign = pattern; *sign; sign++) {
		letter = letter_of(sign, &width);
		if (letter)
			room += strlen(signs[strchr(letters, *letter) - letters]) + width;
		sign = letter ? letter : sign + (*sign == '%' && sign[1] == '%');
	}
	at = path = (char *)take(length + 1 + room) + length + 1;
	for (; *pattern; pattern++) {
		letter = letter_of(pattern, &width);
		if (letter) {
			size_t which = (size_t)(strchr(letters, *letter) - letters);
			size_t size = strlen(signs[which]);

			for (; which < NUMBERS && width > size; width--)
				*at++ = '0';
			memcpy(at, signs[which], size);
			at += size;
			pattern = letter;
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

/* Open a path as the machine outside the private space sees it. Links are followed there, too. */
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

/* Make the directories of a path, unless they are there. */
static void make_directories(char *path)
{
	char *name = path + 1;

	for (char *at = name; *at; at++) {
		long above, made;

		if (*at != '/')
			continue;
		name[-1] = *at = '\0';
		above = open_outside(name - 1 == path ? "/" : path, O_PATH);
		made = above < 0 ? above : call(mkdirat, above, name, 0777);
		name[-1] = *at = '/';
		if (name != at && made != -EEXIST)
			must(made, "output", path);
		call(close, above);
		name = at + 1;
	}
}

/* Whether the job's id is in the last part of the path, as unpack.is_named_by_id. */
static int is_named_by_id(const char *pattern)
{
	int found = 0;
	size_t width;

	for (; *pattern; pattern++) {
		const char *letter = letter_of(pattern, &width);

		if (letter)
			found |= *letter == 'j' || *letter == 'A';
		else if (*pattern == '/')
			found = 0;
		pattern = letter ? letter : pattern + (*pattern == '%' && pattern[1] == '%');
	}
	return found;
}

/* Open an output file that is there already and must be the user's own: another user
 * may have put a file or a link there, to read the output or to have it written elsewhere. */
static long open_own(const char *path, int how, int empties)
{
	long fd = open_outside(path, (how & ~O_CREAT) | O_NOFOLLOW);
	struct stat file;

	if (fd == -ELOOP || fd == -ENXIO)
		fail("not own", 0, path);
	if (fd < 0)
		return fd;
	must(call(fstat, fd, &file), "setting", "");
	if (!S_ISREG(file.st_mode) || file.st_uid != call(getuid) || file.st_nlink != 1)
		fail("not own", 0, path);
	if (empties)
		must(call(ftruncate, fd, 0), "output", path);
	return fd;
}

static long open_output(char *path, int empties, int own)
{
	/* Without O_NONBLOCK a FIFO that nobody reads would block a job indefinitely. */
	int how = O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY | O_NONBLOCK;
	int first = how | (own ? O_EXCL : empties ? O_TRUNC : 0);
	long fd = open_outside(path, first);

	if (fd == -ENOENT) {
		make_directories(path);
		fd = open_outside(path, first);
	}
	if (own && fd == -EEXIST)
		fd = open_own(path, how, empties);
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
	long out_fd, err_fd;

	/* First, as an output may be named /dev/stdin. */
	must(call(dup3, null, 0, 0), "setting", "");
	out_fd = err_fd = open_output(out_path, (int)plan->empties_output, is_named_by_id(out));
	if (strcmp(out_path, err_path) != 0)
		err_fd = open_output(err_path, (int)plan->empties_output, is_named_by_id(err));
	must(call(dup3, out_fd, 1, 0), "setting", "");
	must(call(dup3, err_fd, 2, 0), "setting", "");
}

/* Say to the parent that only the release is missing, and give it the outputs: descriptors with which
 * it can ask for their sizes, and whose closing asks no file system of the user's (FUSE, FLUSH). */
static void send_outputs(void)
{
	int how = O_PATH | O_CLOEXEC;
	int fds[2] = {
		(int)must(call(openat, AT_FDCWD, "/proc/self/fd/1", how, 0), "setting", ""),
		(int)must(call(openat, AT_FDCWD, "/proc/self/fd/2", how, 0), "setting", ""),
	};
	char ready = '+', control[CMSG_SPACE(sizeof fds)] __attribute__((aligned(8))) = {0};
	struct iovec part = {&ready, 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control};
	struct cmsghdr *head = (struct cmsghdr *)control;

	message.msg_controllen = CMSG_SPACE(sizeof fds);
	head->cmsg_len = CMSG_LEN(sizeof fds);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	memcpy(CMSG_DATA(head), fds, sizeof fds);
	must(call(sendmsg, report_fd, &message, 0), "setting", "");
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

/* Receive a byte, and up to `most` descriptors that come with it. Returns how many have come. */
static int receive(long fd, char *byte, int *given, int most)
{
	char control[CMSG_SPACE(4 * sizeof(int))] __attribute__((aligned(8)));
	struct iovec part = {byte, 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control};
	struct cmsghdr *head = (struct cmsghdr *)control;
	size_t size;

	message.msg_controllen = CMSG_LEN((size_t)most * sizeof *given);
	must(call(recvmsg, fd, &message, MSG_CMSG_CLOEXEC), "attach", "");
	if (message.msg_controllen < sizeof *head || head->cmsg_level != SOL_SOCKET ||
	    head->cmsg_type != SCM_RIGHTS)
		return 0;
	size = head->cmsg_len - CMSG_LEN(0);
	memcpy(given, CMSG_DATA(head), size);
	return (int)(size / sizeof *given);
}

/* Receive standard input, output and error from the submitter's own socket (`drf run`). */
static void take_descriptors(char *path)
{
	char kind = 0;
	struct timespec wait = {.tv_sec = ATTACH_WAIT_S};
	long fd = call(socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct pollfd answer = {.fd = (int)must(fd, "attach", ""), .events = POLLIN};
	int given[3];
	struct {
		unsigned pid, uid, gid;
	} peer = {0, ~0u, ~0u};
	unsigned size = sizeof peer;

	connect_to(fd, path);
	/* When the client has left, another user may listen at its path. */
	must(call(getsockopt, fd, SOL_SOCKET, SO_PEERCRED, &peer, &size), "attach", "");
	if (peer.uid != (unsigned)call(getuid))
		fail("another", 0, "");
	if (must(call(ppoll, &answer, 1, &wait, NULL, 8), "attach", "") == 0)
		fail("attach", -ETIMEDOUT, "");
	if (receive(fd, &kind, given, 3) < 3)
		fail("too few", 0, "");
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

		while (*one && *one != '=' && *one == *other)
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

/* The given variables, and after them those of the others that have other names. */
static char **add_missing(char **given, char **others)
{
	size_t count = count_of(given);
	char **all = take((count + count_of(others) + 1) * sizeof *all), **at = all + count;

	memcpy(all, given, count * sizeof *all);
	for (; *others; others++)
		if (!has_name(given, *others))
			*at++ = *others;
	*at = NULL;
	return all;
}

/* The job's variables, as identity.environment. The list `given` is changed. */
static char **environment(const struct plan *plan, char **given, const char *cwd)
{
	char *pwd[] = {joined("PWD=", cwd), NULL}, **kept = given, **env;

	for (char **each = given; *each; each++) {
		int is_hidden = 0;

		for (char **hidden = plan->hidden; *hidden; hidden++)
			is_hidden |= begins(*each, *hidden);
		if (!is_hidden)
			*kept++ = *each;
	}
	*kept = NULL;
	env = add_missing(add_missing(add_missing(plan->own, pwd), given), plan->defaults);
	if (!has_name(given, "OMP_NUM_THREADS="))
		env = add_missing(env, plan->openmp_defaults);
	if (!has_name(given, "OMP_WAIT_POLICY="))
		env = add_missing(env, plan->wait_defaults);
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
