/* tools/convert/core/place.c - see core/place.h. */
#include "tools/convert/core/place.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"

enum { NAME_BYTES_MAX = 1024 };

static bool follow_links;

void
cairn_place_follow_links(bool follow)
{
    follow_links = follow;
}

cairn_err
cairn_place_split(const char *path, char **directory, char **name)
{
    const char *slash = strrchr(path, '/');

    *directory = slash ? strndup(path, (size_t)(slash == path ? 1 : slash - path)) : strdup(".");
    *name = strdup(slash ? slash + 1 : path);
    return *directory && *name ? CAIRN_OK : CAIRN_NOMEM;
}

/* The directory that links of a checkpoint's directory may not leave: itself, or models--X if it
 * lies in models--X/snapshots. The caller frees it; NULL: no memory. */
static char *
find_root(int dir_fd)
{
    char path[CAIRN_FILE_PATH_BYTES_MAX];

    cairn_file_path(dir_fd, NULL, path);
    for (char *at = path; (at = strstr(at, "/models--")) != NULL;) {
        at = strchr(at + 1, '/');
        if (!at)
            break;
        if (strncmp(at, "/snapshots/", 11) == 0) {
            *at = '\0';
            break;
        }
    }
    return strdup(path);
}

cairn_err
cairn_place_open(const char *path, struct cairn_place *out, struct cairn_complaint *complaint)
{
    struct cairn_place place = {.dir_fd = -1};
    char *directory = NULL;
    struct stat stat_of;
    cairn_err err = CAIRN_OK;

    if (stat(path, &stat_of) != 0) {
        err = errno == ENOENT || errno == ENOTDIR ? CAIRN_NOT_FOUND
              : errno == EACCES                   ? CAIRN_DENIED
                                                  : CAIRN_IO;
        return cairn_complain(complaint, err, "%s: %s; check the path", path, strerror(errno));
    }
    if (!S_ISDIR(stat_of.st_mode) && !S_ISREG(stat_of.st_mode))
        return cairn_complain(complaint, CAIRN_NOT_FOUND,
                              "%s: neither a file nor a directory; name a checkpoint", path);
    place.path = strdup(path);
    if (!place.path)
        err = CAIRN_NOMEM;
    else if (S_ISREG(stat_of.st_mode))
        err = cairn_place_split(path, &directory, &place.name);
    if (!err)
        err = cairn_file_open(AT_FDCWD, directory ? directory : path, CAIRN_FILE_DIRECTORY_LINKED,
                              &place.dir_fd);
    if (!err && !follow_links && !place.name && !(place.root = find_root(place.dir_fd)))
        err = CAIRN_NOMEM;
    free(directory);
    if (err) {
        cairn_place_close(&place);
        return cairn_complain_failed(complaint, err, "%s: cannot be opened", path);
    }
    *out = place;
    return CAIRN_OK;
}

void
cairn_place_close(struct cairn_place *place)
{
    if (place->path) /* the empty value has descriptor 0, which is not ours */
        (void)cairn_file_close(place->dir_fd);
    free(place->path);
    free(place->root);
    free(place->name);
    *place = (struct cairn_place){.dir_fd = -1};
}

bool
cairn_place_name_check(const char *name)
{
    size_t bytes = strnlen(name, NAME_BYTES_MAX);

    if (bytes == 0 || bytes == NAME_BYTES_MAX || !cairn_utf8_valid(name, bytes))
        return false;
    for (const char *at = name; at;) {
        const char *slash = strchr(at, '/');
        size_t part_bytes = slash ? (size_t)(slash - at) : strlen(at);

        if (part_bytes == 0 || (part_bytes == 1 && at[0] == '.') ||
            (part_bytes == 2 && at[0] == '.' && at[1] == '.'))
            return false;
        at = slash ? slash + 1 : NULL;
    }
    for (size_t i = 0; i < bytes; i++)
        if ((uint8_t)name[i] < 0x20 || name[i] == 0x7f)
            return false;
    return true;
}

/* What a name of the place is called in messages. */
static const char *
spoken(const struct cairn_place *place, const char *name, char *out, size_t out_bytes)
{
    (void)snprintf(out, out_bytes, "%s%s%s", place->path, name[0] ? "/" : "", name);
    return out;
}

/* Opens a name of the place, and refuses what a link led to elsewhere. CAIRN_NOT_FOUND is not
 * complained about. */
static cairn_err
open_below(const struct cairn_place *place, const char *name, enum cairn_file_mode mode, int *fd,
           struct cairn_complaint *complaint)
{
    char shown[CAIRN_FILE_PATH_BYTES_MAX], found[CAIRN_FILE_PATH_BYTES_MAX];
    const char *opened = name[0] ? name : place->name ? place->name : ".";
    int at = -1;
    cairn_err err = cairn_file_open(place->dir_fd, opened, mode, &at);

    if (err == CAIRN_NOT_FOUND)
        return err;
    (void)spoken(place, name, shown, sizeof(shown));
    if (err == CAIRN_CORRUPT)
        return cairn_complain(complaint, err, "%s: not a regular file", shown);
    if (err)
        return cairn_complain_failed(complaint, err, "%s: cannot be opened", shown);
    if (place->root && !cairn_file_is_below(at, place->root)) {
        cairn_file_path(at, NULL, found);
        (void)cairn_file_close(at);
        return cairn_complain(
            complaint, CAIRN_CORRUPT,
            "%s: the link leads out of the checkpoint, to %s; if you trust it, add --follow-links",
            shown, found);
    }
    *fd = at;
    return CAIRN_OK;
}

cairn_err
cairn_place_open_file(const struct cairn_place *place, const char *name, int *fd,
                      struct cairn_complaint *complaint)
{
    if ((!name[0] && !place->name) || (name[0] && !cairn_place_name_check(name)))
        return cairn_complain(complaint, CAIRN_CORRUPT,
                              "%s: names a file outside itself: \"%.200s\"; take another copy",
                              place->path, name);
    if (name[0] && place->name)
        return CAIRN_NOT_FOUND; /* a single file has nothing below it */
    return open_below(place, name, CAIRN_FILE_READ_LINKED, fd, complaint);
}

bool
cairn_place_has_file(const struct cairn_place *place, const char *name)
{
    struct stat stat_of;

    return !place->name && cairn_place_name_check(name) &&
           fstatat(place->dir_fd, name, &stat_of, 0) == 0 && S_ISREG(stat_of.st_mode);
}

cairn_err
cairn_place_load(const struct cairn_place *place, const char *name, size_t bytes_max,
                 uint8_t **bytes, size_t *bytes_len, struct cairn_complaint *complaint)
{
    char shown[CAIRN_FILE_PATH_BYTES_MAX];
    uint8_t *buffer = NULL;
    uint64_t size = 0;
    size_t got = 0;
    int fd = -1;
    cairn_err err;

    err = cairn_place_open_file(place, name, &fd, complaint);
    if (err)
        return err;
    (void)spoken(place, name, shown, sizeof(shown));
    err = cairn_file_size(fd, &size);
    if (!err && size > bytes_max)
        err = cairn_complain(complaint, CAIRN_CORRUPT,
                             "%s: has %" PRIu64
                             " bytes, and at most %zu are believable here; is it damaged?",
                             shown, size, bytes_max);
    if (!err && !(buffer = malloc((size_t)size + 1)))
        err = CAIRN_NOMEM;
    if (!err)
        err = cairn_file_read_at(fd, 0, buffer, (size_t)size, &got);
    (void)cairn_file_close(fd); /* only read */
    if (err) {
        free(buffer);
        return cairn_complain_failed(complaint, err, "%s: cannot be read", shown);
    }
    buffer[got] = 0;
    *bytes = buffer;
    *bytes_len = got;
    return CAIRN_OK;
}

cairn_err
cairn_place_list(const struct cairn_place *place, const char *name, char ***names, size_t *count,
                 struct cairn_complaint *complaint)
{
    char shown[CAIRN_FILE_PATH_BYTES_MAX];
    int fd = -1;
    cairn_err err;

    if (place->name || (name[0] && !cairn_place_name_check(name)))
        return CAIRN_NOT_FOUND;
    err = cairn_file_open(place->dir_fd, name[0] ? name : ".", CAIRN_FILE_DIRECTORY, &fd);
    if (!err)
        err = cairn_dir_list(fd, names, count);
    (void)cairn_file_close(fd); /* only read; -1 is allowed */
    if (err && err != CAIRN_NOT_FOUND)
        (void)cairn_complain_failed(complaint, err, "%s: cannot be listed",
                                    spoken(place, name, shown, sizeof(shown)));
    return err;
}

cairn_err
cairn_file_mark_take(int fd, struct cairn_file_mark *out)
{
    struct stat found;

    if (fstat(fd, &found) != 0)
        return CAIRN_IO;
    if (!S_ISREG(found.st_mode))
        return CAIRN_CORRUPT;
    out->bytes = (uint64_t)found.st_size;
    out->modified_ns =
        (uint64_t)found.st_mtim.tv_sec * 1000000000u + (uint64_t)found.st_mtim.tv_nsec;
    out->changed_ns =
        (uint64_t)found.st_ctim.tv_sec * 1000000000u + (uint64_t)found.st_ctim.tv_nsec;
    return CAIRN_OK;
}

bool
cairn_file_mark_equal(const struct cairn_file_mark *a, const struct cairn_file_mark *b)
{
    return a->bytes == b->bytes && a->modified_ns == b->modified_ns &&
           a->changed_ns == b->changed_ns;
}
