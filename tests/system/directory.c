/* A user directory for tests: a module of the C library's name service (nsswitch.conf(5)).
 *
 * It knows one user, and is as slow as the file at $DRFD_TEST_DIRECTORY says in milliseconds, also
 * while somebody waits; with a negative number there it answers as a directory does that is not
 * running. Each process that asks it adds its effective uid to the file of that name with ".asked",
 * where there is one. */

#include <errno.h>
#include <fcntl.h>
#include <nss.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEP_MS 10

static int delay_ms(void)
{
    const char *path = getenv("DRFD_TEST_DIRECTORY");
    FILE *file = path ? fopen(path, "r") : NULL;
    int found = 0;

    if (file) {
        if (fscanf(file, "%d", &found) != 1)
            found = 0;
        fclose(file);
    }
    return found;
}

static void note_who_asks(void)
{
    const char *path = getenv("DRFD_TEST_DIRECTORY");
    char name[4096], uid[32];
    int fd;

    snprintf(name, sizeof name, "%s.asked", path ? path : "");
    fd = open(name, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0)
        return;
    if (write(fd, uid, snprintf(uid, sizeof uid, "%u\n", geteuid())) < 0)
        abort();
    close(fd);
}

enum nss_status _nss_drfdtest_getpwuid_r(uid_t uid, struct passwd *entry, char *text, size_t size,
                                         int *error)
{
    note_who_asks();
    if (delay_ms() < 0) {
        *error = ECONNREFUSED;
        return NSS_STATUS_UNAVAIL;
    }
    for (int waited_ms = 0; waited_ms < delay_ms(); waited_ms += STEP_MS)
        usleep(STEP_MS * 1000);
    if (uid != KNOWN_UID) {
        *error = ENOENT;
        return NSS_STATUS_NOTFOUND;
    }
    if (snprintf(text, size, "distant") >= (int)size) {
        *error = ERANGE;
        return NSS_STATUS_TRYAGAIN;
    }
    memset(entry, 0, sizeof *entry);
    entry->pw_name = entry->pw_gecos = text;
    entry->pw_passwd = "x";
    entry->pw_dir = "/";
    entry->pw_shell = "/bin/sh";
    entry->pw_uid = entry->pw_gid = uid;
    return NSS_STATUS_SUCCESS;
}
