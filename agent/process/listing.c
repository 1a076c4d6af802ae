/* agent/process/listing.c - see listing.h. */
#include "agent/process/listing.h"

#include "base/crc.h"
#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PLACES_MAX = 3, NAME_CHARS = 16, NAME_BYTES = NAME_CHARS + 1 };

struct place {
    char path[CAIRN_CONFIG_PATH_BYTES_MAX];
    mode_t mode; /* if we make it */
};

/* The places of the list, best first; returns how many. */
static uint32_t
find_places(struct place places[PLACES_MAX])
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    char of_user[64];
    size_t len = runtime ? strlen(runtime) : 0;
    uint32_t count = 0;

    while (len > 1 && runtime[len - 1] == '/')
        len--;
    snprintf(of_user, sizeof of_user, "/run/user/%u", geteuid());
    if (len && runtime[0] == '/' &&
        (len != strlen(of_user) || strncmp(runtime, of_user, len) != 0)) {
        int written = snprintf(places[0].path, sizeof places[0].path, "%.*s/cairn", (int)len,
                               len < sizeof places[0].path ? runtime : "");

        places[0].mode = 0700;
        return written > 0 && (size_t)written < sizeof places[0].path ? 1 : 0;
    }
    places[count] = (struct place){.mode = 0755};
    snprintf(places[count++].path, sizeof places[0].path, "/run/cairn");
    places[count] = (struct place){.mode = 0700};
    snprintf(places[count++].path, sizeof places[0].path, "%s/cairn", of_user);
    places[count] = (struct place){.mode = 0700};
    snprintf(places[count++].path, sizeof places[0].path, "/tmp/cairn-%u", geteuid());
    return count;
}

/* Opens the list's folder in a place; -1, with errno set, if it is missing or not safe to use. */
static int
open_folder(const struct place *place, bool make)
{
    int place_fd, fd = -1;
    struct stat status;

    if (make && mkdir(place->path, place->mode) != 0 && errno != EEXIST)
        return -1;
    place_fd = open(place->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (place_fd < 0)
        return -1;
    if (!make || mkdirat(place_fd, "agents", 0700) == 0 || errno == EEXIST)
        fd = openat(place_fd, "agents", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    close(place_fd);
    if (fd >= 0 && (fstat(fd, &status) != 0 || status.st_uid != geteuid() ||
                    (status.st_mode & 07777) != 0700)) {
        close(fd);
        errno = EPERM;
        fd = -1;
    }
    return fd;
}

static void
name_of(const char *socket_path, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "%016" PRIx64, cairn_crc64(0, socket_path, strlen(socket_path)));
}

/* Writes beside the entry and renames, so that readers never see half of it. */
static bool
write_entry(int folder_fd, const char *socket_path)
{
    char name[NAME_BYTES], temporary[NAME_BYTES + 4];
    bool written;
    int fd;

    name_of(socket_path, name);
    snprintf(temporary, sizeof temporary, "%s.new", name);
    (void)unlinkat(folder_fd, temporary, 0); /* of an agent that crashed here */
    fd = openat(folder_fd, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    written = dprintf(fd, "%s\n", socket_path) > 0;
    written &= close(fd) == 0;
    if (written && renameat(folder_fd, temporary, folder_fd, name) == 0)
        return true;
    (void)unlinkat(folder_fd, temporary, 0);
    return false;
}

/* The socket's path in an entry; false if the file is not one. */
static bool
read_entry(int folder_fd, const char *name, char socket_path[CAIRN_CONFIG_SOCKET_BYTES_MAX])
{
    char bytes[CAIRN_CONFIG_SOCKET_BYTES_MAX + 1], expected[NAME_BYTES];
    int fd = openat(folder_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat status;
    ssize_t len = 0;

    if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode))
        len = read(fd, bytes, sizeof bytes);
    if (fd >= 0)
        close(fd);
    if (len < 2 || len > CAIRN_CONFIG_SOCKET_BYTES_MAX || bytes[len - 1] != '\n' || bytes[0] != '/')
        return false;
    bytes[len - 1] = '\0';
    name_of(bytes, expected);
    if (strlen(bytes) != (size_t)len - 1 || strcmp(name, expected) != 0)
        return false;
    memcpy(socket_path, bytes, (size_t)len);
    return true;
}

/* Removes entries without a lock file: their agents crashed, and somebody removed the folder of
 * their sockets. Leaves others alone: an agent with that socket may be starting now. */
static void
remove_orphans(int folder_fd)
{
    int fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    uint32_t looked_at = 0;
    struct dirent *file;

    if (!folder && fd >= 0)
        close(fd);
    while (folder && looked_at++ < CAIRN_LISTING_FILES_MAX && (file = readdir(folder)) != NULL) {
        char socket_path[CAIRN_CONFIG_SOCKET_BYTES_MAX], lock_path[sizeof socket_path + 8];
        struct stat status;

        if (strlen(file->d_name) != NAME_CHARS || !read_entry(fd, file->d_name, socket_path))
            continue;
        snprintf(lock_path, sizeof lock_path, "%s.lock", socket_path);
        if (lstat(lock_path, &status) != 0 && errno == ENOENT)
            (void)unlinkat(fd, file->d_name, 0);
    }
    if (folder)
        closedir(folder);
}

void
cairn_listing_add(const char *socket_path)
{
    struct place places[PLACES_MAX];
    uint32_t count = find_places(places);
    bool added = false;
    int error = ENAMETOOLONG;

    for (uint32_t i = 0; i < count && !added; i++) {
        int fd = open_folder(&places[i], true);

        if (fd >= 0)
            remove_orphans(fd);
        added = fd >= 0 && write_entry(fd, socket_path);
        error = errno;
        if (fd >= 0)
            close(fd);
    }
    if (!added)
        CAIRN_LOG_AT(WARN,
                     "session: cannot list %s for `cairn status` to find: %s; name it there with "
                     "--agent",
                     socket_path, strerror(error));
}

void
cairn_listing_remove(const char *socket_path)
{
    struct place places[PLACES_MAX];
    uint32_t count = find_places(places);
    char name[NAME_BYTES];

    name_of(socket_path, name);
    for (uint32_t i = 0; i < count; i++) {
        int fd = open_folder(&places[i], false);

        if (fd < 0)
            continue;
        (void)unlinkat(fd, name, 0);
        close(fd);
    }
}

static bool
is_known(char (*sockets)[CAIRN_CONFIG_SOCKET_BYTES_MAX], uint32_t count, const char *socket_path)
{
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(sockets[i], socket_path) == 0)
            return true;
    return false;
}

uint32_t
cairn_listing_read(char (*sockets)[CAIRN_CONFIG_SOCKET_BYTES_MAX], uint32_t max, bool *complete)
{
    struct place places[PLACES_MAX];
    uint32_t place_count = find_places(places), count = 0, looked_at = 0;

    *complete = true;
    for (uint32_t i = 0; i < place_count; i++) {
        int fd = open_folder(&places[i], false);
        DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
        struct dirent *file;

        if (!folder && fd >= 0)
            close(fd);
        while (folder && *complete && (file = readdir(folder)) != NULL) {
            char socket_path[CAIRN_CONFIG_SOCKET_BYTES_MAX];

            if (strlen(file->d_name) == NAME_CHARS && looked_at < CAIRN_LISTING_FILES_MAX &&
                read_entry(fd, file->d_name, socket_path) &&
                !is_known(sockets, count, socket_path)) {
                if (count < max)
                    memcpy(sockets[count++], socket_path, sizeof socket_path);
                else
                    *complete = false;
            }
            *complete = *complete && ++looked_at <= CAIRN_LISTING_FILES_MAX;
        }
        if (folder)
            closedir(folder);
    }
    return count;
}
