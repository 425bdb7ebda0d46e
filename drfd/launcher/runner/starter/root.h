/* The steps of a job's process with its parent's rights: cgroups and limits, the private space, the user. */

enum { MOST_CPUS = 1 << 13 };

/* The root directory outside the private space; -1 if there is none. */
static long outside = -1;

/* An exec by uid 0 has given the process all capabilities (capabilities(7)). */
static void set_capabilities(const struct plan *plan)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct sets[2];

	for (int i = 0; i < 2; i++) {
		sets[i].effective = (__u32)(plan->effective >> 32 * i);
		sets[i].permitted = (__u32)(plan->permitted >> 32 * i);
		sets[i].inheritable = 0;
	}
	must(call(capset, &header, sets), "setting", "");
}

static char *joined(const char *name, const char *value)
{
	size_t length = strlen(name);
	char *variable = take(length + strlen(value) + 1);

	memcpy(variable, name, length);
	memcpy(variable + length, value, strlen(value) + 1);
	return variable;
}

/* The file stays open until `keep_only`. */
static long put(const char *path, const char *text)
{
	long fd = call(openat, AT_FDCWD, path, O_WRONLY | O_TRUNC | O_CLOEXEC, 0);

	return fd < 0 ? fd : call(write, fd, text, strlen(text));
}

static void enter_limits(const struct plan *plan)
{
	unsigned long mask[MOST_CPUS / 64] = {0};
	struct rlimit processes = {plan->processes, plan->processes};

	for (char **file = plan->entries; *file; file++)
		must(put(*file, "0"), "cgroup", *file);
	for (unsigned long i = 0; i < plan->cpus_count; i++)
		if (plan->cpus[i] < MOST_CPUS)
			mask[plan->cpus[i] / 64] |= 1ul << plan->cpus[i] % 64;
	if (plan->cpus_count)
		must(call(sched_setaffinity, 0, sizeof mask, mask), "setting", "");
	if (plan->processes)
		must(call(prlimit64, 0, RLIMIT_NPROC, &processes, NULL), "setting", "");
}

static void set_privileged_attributes(const struct plan *plan)
{
	if (plan->resets_oom_score) {
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

/* Cover the machine's directories for temporary files by those of the private space. Later mounts of
 * the machine are visible inside, and mounts made inside are not outside. */
static void enter_space(const struct plan *plan)
{
	const unsigned long safe = MS_NOSUID | MS_NODEV;
	struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
	struct stat first, seen;
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
	}
	must(call(fstat, fd[0], &first), "space", "");
	for (int i = 0; i < 2; i++) {
		const char *target = plan->targets[i];
		unsigned long extra = noexec(target) | noexec(sources[i]);

		must(call(newfstatat, AT_FDCWD, target, &seen, 0), "space", "");
		/* Where one of the two is a link to the other, both are covered already. Where the same
		 * directory is mounted at both, the second is not. */
		if (seen.st_ino != first.st_ino || seen.st_dev != first.st_dev) {
			must(call(mount, sources[i], target, NULL, MS_BIND, NULL), "space", "");
			must(call(mount, NULL, target, NULL, MS_BIND | MS_REMOUNT | safe | extra, NULL),
			     "space", "");
		}
		call(close, fd[i]);
	}
	must(call(mount, "tmpfs", "/dev/shm", "tmpfs", safe | noexec("/dev/shm"), plan->shm), "space", "");
	call(close, top);
}

/* An id of a user or a group; the highest number would mean that it is to stay as it is. */
static unsigned checked_id(unsigned long number)
{
	if (number >= ~0u)
		fail("setting", -EINVAL, "");
	return (unsigned)number;
}

/* Become the user for good, groups first, and verify it: no capability is left, and none comes back. */
static void become(const struct plan *plan)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct sets[2];
	unsigned *groups = take((plan->groups_count + 1) * sizeof *groups), ids[6];
	unsigned uid = checked_id(plan->uid), gid = checked_id(plan->gid);

	for (unsigned long i = 0; i < plan->groups_count; i++)
		groups[i] = checked_id(plan->groups[i]);
	must(call(setgroups, plan->groups_count, groups), "setting", "");
	must(call(setresgid, gid, gid, gid), "setting", "");
	/* The user may neither trace this process nor write to its descriptors in /proc. A change of the
	 * effective uid may allow that (fs.suid_dumpable), but not while another uid is root's. */
	must(call(setresuid, 0, uid, 0), "setting", "");
	must(call(prctl, PR_SET_DUMPABLE, 0, 0, 0, 0), "setting", "");
	must(call(setresuid, uid, uid, uid), "setting", "");
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
