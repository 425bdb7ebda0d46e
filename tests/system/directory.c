/* A user directory for tests: a module of the C library's name service (nsswitch.conf(5)).
 *
 * It knows one user, and is as slow as the file at $DRFD_TEST_DIRECTORY says in milliseconds, also
 * while somebody waits; with a negative number there it answers as a directory does that is not
 * running. */

#include <errno.h>
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

enum nss_status _nss_drfdtest_getpwuid_r(uid_t uid, struct passwd *entry, char *text, size_t size,
                                         int *error)
{
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
