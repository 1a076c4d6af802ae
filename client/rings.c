/*
 * client/rings.c - finds this process's rings of timing records, and hands each to the agent.
 *
 * A process has a ring per source (cairn/timing.h), in libraries that do not know of each other:
 * NCCL's plugin makes one without libcairn. All are memfds of one name, so a search of the
 * process's descriptors finds them. The agent checks what it gets; here the inode number tells one
 * ring from the next, as long as a connection lasts.
 *
 * A search costs about a microsecond per open descriptor, on the service thread. It becomes rarer
 * while it finds nothing new.
 */
#include "client/state.h"

#include "base/clock.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOK_NS_MIN CAIRN_NS_PER_S
#define LOOK_NS_MAX (8 * CAIRN_NS_PER_S)

static const char link_begin[] = "/memfd:cairn-timing";

struct found {
    int fd;
    uint64_t inode;
};

static bool
is_handed_over(const struct client_rings *rings, uint64_t inode)
{
    for (uint32_t i = 0; i < rings->count; i++)
        if (rings->inodes[i] == inode)
            return true;
    return false;
}

/* True where the descriptor is a ring by its name. */
static bool
is_ring(int folder, const char *name)
{
    char target[sizeof link_begin];
    ssize_t got = readlinkat(folder, name, target, sizeof target);

    return got >= (ssize_t)sizeof link_begin - 1 &&
           memcmp(target, link_begin, sizeof link_begin - 1) == 0;
}

/* True if another descriptor of the same file is in the list. */
static bool
is_found(const struct found *found, uint32_t count, uint64_t inode)
{
    for (uint32_t i = 0; i < count; i++)
        if (found[i].inode == inode)
            return true;
    return false;
}

/* Lists rings that the agent does not have into found[CAIRN_SESSION_RINGS_MAX]. */
static uint32_t
find_rings(const struct client_rings *rings, struct found *found)
{
    DIR *folder = opendir("/proc/self/fd");
    const struct dirent *entry;
    uint32_t count = 0;

    if (!folder) /* no /proc: no timing, and nothing to log */
        return 0;
    while (rings->count + count < CAIRN_SESSION_RINGS_MAX && (entry = readdir(folder))) {
        struct stat status;
        int fd;

        if (!is_ring(dirfd(folder), entry->d_name))
            continue;
        fd = (int)strtol(entry->d_name, NULL, 10);
        if (fstat(fd, &status) == 0 && !is_handed_over(rings, status.st_ino) &&
            !is_found(found, count, status.st_ino))
            found[count++] = (struct found){fd, status.st_ino};
    }
    closedir(folder);
    return count;
}

void
client_rings_forget(struct cairn_client *client)
{
    client->rings = (struct client_rings){0};
}

void
client_rings_refused(struct cairn_client *client, uint64_t now_ns)
{
    client->rings = (struct client_rings){.look_at_ns = now_ns + LOOK_NS_MIN};
}

void
client_rings_look(struct cairn_client *client, uint64_t now_ns)
{
    struct client_rings *rings = &client->rings;
    struct found found[CAIRN_SESSION_RINGS_MAX];
    uint32_t count;

    if (now_ns < rings->look_at_ns)
        return;
    count = find_rings(rings, found);
    rings->look_ns = count > 0 || rings->look_ns == 0 ? LOOK_NS_MIN : 2 * rings->look_ns;
    if (rings->look_ns > LOOK_NS_MAX)
        rings->look_ns = LOOK_NS_MAX;
    rings->look_at_ns = now_ns + rings->look_ns;
    pthread_mutex_lock(&client->lock);
    for (uint32_t i = 0; i < count; i++) {
        struct cairn_session_timing value = {.index = rings->count};
        struct stat status;
        cairn_err err;

        if (fstat(found[i].fd, &status) != 0 || status.st_ino != found[i].inode)
            continue; /* closed since */
        err = cairn_session_put_timing(&client->writer, &value, found[i].fd);
        if (!err)
            rings->inodes[rings->count++] = found[i].inode;
        else if (err != CAIRN_AGAIN) /* no descriptor left for a moment: it is found again */
            break;
    }
    pthread_mutex_unlock(&client->lock);
}
