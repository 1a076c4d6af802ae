/*
 * snapshot/spill_dir.c - the directory of spilled generations: names, list, retention.
 *
 * A generation is the subdirectory "e<epoch>-s<step>", both in decimal without leading zeros.
 * Removal takes COMMIT first and syncs that: a crash in the middle leaves an incomplete generation,
 * never a committed one with files missing.
 */
#include "snapshot/spill.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

enum { COMMIT_BYTES_MAX = 128, KEPT_MAX = 1000 };

void
cairn_spill_dir_name(struct cairn_generation_id generation, char name[CAIRN_SPILL_DIR_NAME_BYTES])
{
    (void)snprintf(name, CAIRN_SPILL_DIR_NAME_BYTES, "e%" PRIu64 "-s%" PRIu64, generation.epoch,
                   generation.step);
}

/* Reads decimal digits after `letter`; NULL where there are none or too many. */
static const char *
parse_number(const char *text, char letter, uint64_t *out)
{
    uint64_t value = 0;
    const char *at = text + 1;

    if (*text != letter)
        return NULL;
    for (; *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value))
            return NULL;
    *out = value;
    return at == text + 1 ? NULL : at;
}

bool
cairn_spill_dir_parse(const char *name, struct cairn_generation_id *out)
{
    struct cairn_generation_id generation = {0};
    char again[CAIRN_SPILL_DIR_NAME_BYTES];
    const char *at = parse_number(name, 'e', &generation.epoch);

    if (at && *at == '-')
        at = parse_number(at + 1, 's', &generation.step);
    else
        at = NULL;
    if (!at || *at != '\0')
        return false;
    cairn_spill_dir_name(generation, again); /* one generation, one name */
    if (strcmp(name, again) != 0)
        return false;
    *out = generation;
    return true;
}

/* Whether the subdirectory has a COMMIT that names an index.json of the size that is there, and
 * since when. CAIRN_NOT_FOUND: no directory. */
static cairn_err
look_at_commit(int spill_fd, const char *name, struct cairn_spilled *out)
{
    struct stat status;
    uint8_t *commit = NULL;
    size_t commit_bytes = 0;
    uint64_t index_bytes = 0, named_bytes = 0;
    int dir_fd = -1, index_fd = -1;
    cairn_err err;

    out->committed = false;
    out->committed_ns = 0;
    err = cairn_file_open(spill_fd, name, CAIRN_FILE_DIRECTORY, &dir_fd);
    if (err)
        return err;
    err = cairn_file_load(dir_fd, "COMMIT", COMMIT_BYTES_MAX, &commit, &commit_bytes);
    if (err)
        goto done;
    err = cairn_file_open(dir_fd, "index.json", CAIRN_FILE_READ, &index_fd);
    if (err)
        goto done;
    err = cairn_file_size(index_fd, &index_bytes);
    if (err)
        goto done;
    out->committed = sscanf((const char *)commit, "cairn-universal %*u index.json bytes=%" SCNu64,
                            &named_bytes) == 1 &&
                     named_bytes == index_bytes;
    if (out->committed && fstatat(dir_fd, "COMMIT", &status, AT_SYMLINK_NOFOLLOW) == 0)
        out->committed_ns =
            (uint64_t)status.st_mtim.tv_sec * CAIRN_NS_PER_S + (uint64_t)status.st_mtim.tv_nsec;
done:
    (void)cairn_file_close(index_fd);
    (void)cairn_file_close(dir_fd);
    free(commit);
    if (err == CAIRN_NOT_FOUND || err == CAIRN_CORRUPT || err == CAIRN_INVAL)
        err = CAIRN_OK; /* it is incomplete, and that is the answer */
    return err;
}

static int
newest_first(const void *a, const void *b)
{
    const struct cairn_spilled *x = a, *y = b;

    return cairn_generation_id_compare(y->generation, x->generation);
}

cairn_err
cairn_spill_list(int spill_fd, struct cairn_spilled **list, size_t *count)
{
    struct cairn_spilled *found = NULL;
    char **names = NULL;
    size_t name_count = 0, used = 0;
    cairn_err err = cairn_dir_list(spill_fd, &names, &name_count);

    if (err)
        return err;
    found = calloc(name_count + 1, sizeof(*found));
    if (!found)
        err = CAIRN_NOMEM;
    for (size_t i = 0; err == CAIRN_OK && i < name_count; i++) {
        if (!cairn_spill_dir_parse(names[i], &found[used].generation))
            continue;
        err = look_at_commit(spill_fd, names[i], &found[used]);
        used += err == CAIRN_OK;
        if (err == CAIRN_NOT_FOUND)
            err = CAIRN_OK; /* a file of that name, or removed since */
    }
    cairn_dir_list_free(names, name_count);
    if (err) {
        free(found);
        return err;
    }
    qsort(found, used, sizeof(*found), newest_first);
    if (used == 0) {
        free(found);
        found = NULL;
    }
    *list = found;
    *count = used;
    return CAIRN_OK;
}

/* Removes COMMIT and makes that durable; none is fine. */
static cairn_err
uncommit(int dir_fd)
{
    cairn_err err = cairn_file_unlink(dir_fd, "COMMIT");

    if (err == CAIRN_NOT_FOUND)
        return CAIRN_OK;
    return err ? err : cairn_file_sync(dir_fd);
}

cairn_err
cairn_spill_dir_begin(int spill_fd, struct cairn_generation_id generation, int *dir_fd)
{
    char name[CAIRN_SPILL_DIR_NAME_BYTES];
    int fd = -1;
    cairn_err err;

    cairn_spill_dir_name(generation, name);
    err = cairn_dir_make(spill_fd, name);
    if (err)
        return err == CAIRN_NOT_FOUND ? CAIRN_IO : err;
    err = cairn_file_open(spill_fd, name, CAIRN_FILE_DIRECTORY, &fd);
    if (err)
        return err == CAIRN_NOT_FOUND ? CAIRN_IO : err;
    err = uncommit(fd);
    if (err) {
        (void)cairn_file_close(fd);
        return err;
    }
    *dir_fd = fd;
    return CAIRN_OK;
}

static cairn_err
remove_dir(int spill_fd, const char *name)
{
    char **names = NULL;
    size_t count = 0;
    int dir_fd = -1;
    cairn_err err;

    err = cairn_file_open(spill_fd, name, CAIRN_FILE_DIRECTORY, &dir_fd);
    if (err)
        return err;
    err = uncommit(dir_fd);
    if (err)
        goto done;
    err = cairn_dir_list(dir_fd, &names, &count);
    for (size_t i = 0; err == CAIRN_OK && i < count; i++) {
        err = cairn_file_unlink(dir_fd, names[i]);
        if (err == CAIRN_NOT_FOUND)
            err = CAIRN_OK; /* another agent removes the same */
    }
    if (err)
        goto done;
    err = cairn_dir_remove(spill_fd, name);
    if (err == CAIRN_NOT_FOUND)
        err = CAIRN_OK;
    if (err == CAIRN_OK)
        err = cairn_file_sync(spill_fd);
done:
    cairn_dir_list_free(names, count);
    (void)cairn_file_close(dir_fd);
    return err;
}

cairn_err
cairn_spill_remove(int spill_fd, struct cairn_generation_id generation)
{
    char name[CAIRN_SPILL_DIR_NAME_BYTES];

    cairn_spill_dir_name(generation, name);
    return remove_dir(spill_fd, name);
}

/* ---- those that are damaged ---- */

static const char bad_suffix[] = ".bad";

cairn_err
cairn_spill_mark_bad(int spill_fd, struct cairn_generation_id generation)
{
    char name[CAIRN_SPILL_DIR_NAME_BYTES], bad_name[sizeof name + sizeof bad_suffix];
    cairn_err err;

    cairn_spill_dir_name(generation, name);
    (void)snprintf(bad_name, sizeof bad_name, "%s%s", name, bad_suffix);
    err = cairn_file_rename(spill_fd, name, bad_name);
    if (err == CAIRN_AGAIN) { /* written again under its name since it was marked */
        err = remove_dir(spill_fd, bad_name);
        if (!err || err == CAIRN_NOT_FOUND)
            err = cairn_file_rename(spill_fd, name, bad_name);
    }
    return err ? err : cairn_file_sync(spill_fd);
}

static cairn_err
remove_bad(int spill_fd)
{
    char **names = NULL;
    size_t count = 0;
    cairn_err err = cairn_dir_list(spill_fd, &names, &count);

    for (size_t i = 0; err == CAIRN_OK && i < count; i++) {
        char name[CAIRN_SPILL_DIR_NAME_BYTES];
        size_t length = strlen(names[i]), suffix = sizeof bad_suffix - 1;
        struct cairn_generation_id unused;

        if (length <= suffix || length - suffix >= sizeof name ||
            strcmp(names[i] + length - suffix, bad_suffix) != 0)
            continue;
        memcpy(name, names[i], length - suffix);
        name[length - suffix] = '\0';
        if (cairn_spill_dir_parse(name, &unused))
            err = remove_dir(spill_fd, names[i]);
        if (err == CAIRN_NOT_FOUND)
            err = CAIRN_OK; /* another agent removes the same */
    }
    cairn_dir_list_free(names, count);
    return err;
}

/* ---- retention ---- */

cairn_err
cairn_spill_keep_parse(const char *text, struct cairn_spill_keep *out)
{
    static const char *const names[] = {"last=", "hourly=", "daily="};
    uint32_t numbers[] = {1, 0, 0};
    bool given[3] = {false};
    const char *at = text;

    do {
        uint64_t number = 0;
        size_t rule = 0;
        const char *digits;

        at += at != text; /* the comma */
        while (rule < 3 && strncmp(at, names[rule], strlen(names[rule])) != 0)
            rule++;
        if (rule < 3)
            at += strlen(names[rule]);
        else if (at == text)
            rule = 0; /* a number alone */
        else
            return CAIRN_INVAL;
        for (digits = at; *at >= '0' && *at <= '9' && at - digits < 4; at++)
            number = number * 10 + (uint64_t)(*at - '0');
        if (at == digits || number > KEPT_MAX || given[rule] || (rule == 0 && number == 0))
            return CAIRN_INVAL;
        given[rule] = true;
        numbers[rule] = (uint32_t)number;
    } while (*at == ',');
    if (*at != '\0')
        return CAIRN_INVAL;
    *out = (struct cairn_spill_keep){numbers[0], numbers[1], numbers[2]};
    return CAIRN_OK;
}

/* Periods of one length, from the newest back: how many of them have kept a generation. */
struct periods {
    uint64_t length_ns;
    uint32_t left;   /* that may still keep one */
    uint64_t newest; /* number of the last one that did */
    bool any;
};

/* True if the period of this time keeps the generation: it is the first one met there. */
static bool
period_keeps(struct periods *periods, uint64_t committed_ns)
{
    uint64_t period = committed_ns / periods->length_ns;

    if (periods->left == 0 || (periods->any && period == periods->newest))
        return false;
    periods->any = true;
    periods->newest = period;
    periods->left--;
    return true;
}

cairn_err
cairn_spill_retain(int spill_fd, const struct cairn_spill_keep *keep, uint32_t *removed)
{
    struct periods hours = {.length_ns = 3600 * CAIRN_NS_PER_S, .left = keep->hourly};
    struct periods days = {.length_ns = 86400 * CAIRN_NS_PER_S, .left = keep->daily};
    struct cairn_spilled *list = NULL;
    size_t count = 0;
    uint32_t seen = 0, last = keep->last ? keep->last : 1, gone = 0;
    cairn_err err = cairn_spill_list(spill_fd, &list, &count);

    if (err)
        return err;
    for (size_t i = 0; err == CAIRN_OK && i < count; i++) {
        bool kept = seen == 0;

        if (list[i].committed) {
            bool hourly = period_keeps(&hours, list[i].committed_ns);
            bool daily = period_keeps(&days, list[i].committed_ns);

            kept = seen++ < last || hourly || daily;
        }
        if (kept)
            continue;
        err = cairn_spill_remove(spill_fd, list[i].generation);
        if (err == CAIRN_OK) {
            gone++;
            CAIRN_LOG_AT(INFO, "spill: removed epoch=%" PRIu64 " step=%" PRIu64 " committed=%d",
                         list[i].generation.epoch, list[i].generation.step, list[i].committed);
        }
    }
    free(list);
    if (err == CAIRN_OK)
        err = remove_bad(spill_fd);
    if (err == CAIRN_OK)
        *removed = gone;
    return err;
}
