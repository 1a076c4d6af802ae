/*
 * tools/convert/core/place.h - where a checkpoint is: a directory or one file. Opens and lists its
 * files, and reads small ones.
 *
 * The path that the user named is followed if it is a symbolic link. Below it, links may lead to
 * files of the same folder only, so that a checkpoint of somebody else cannot name our files. In a
 * folder of Hugging Face's cache, models--X/snapshots/REVISION, they may lead to all of models--X:
 * the cache keeps the data in models--X/blobs. cairn_place_follow_links lifts this.
 */
#ifndef CAIRN_TOOLS_CONVERT_CORE_PLACE_H
#define CAIRN_TOOLS_CONVERT_CORE_PLACE_H

#include "base/complaint.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cairn_place {
    char *path; /* as the user gave it, for messages */
    int dir_fd; /* of the directory, or of the directory that holds the file */
    char *root; /* the directory that links may not leave; NULL: they may lead anywhere */
    char *name; /* of the file in dir_fd; NULL: the place is a directory */
};

/* Whether links of places that are opened from now on may lead anywhere; the default is false. */
void cairn_place_follow_links(bool follow);

/* Splits off the last name of a path: "a/b" is the directory "a" and the name "b". The caller frees
 * both, also after CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_place_split(const char *path, char **directory, char **name);

/* Opens a place. CAIRN_NOT_FOUND, CAIRN_DENIED, CAIRN_IO, CAIRN_NOMEM; complained about. */
CAIRN_MUST_CHECK cairn_err cairn_place_open(const char *path, struct cairn_place *out,
                                            struct cairn_complaint *complaint);
void cairn_place_close(struct cairn_place *place); /* an all-zero one is allowed */

/* True for a relative path of plain names ("a/b.pt"): no "..", no empty name, no leading '/', at
 * most 1023 bytes, UTF-8 without control characters. */
bool cairn_place_name_check(const char *name);

/* Opens a file of the place for reading; `name` "" is the place itself if it is a file. The caller
 * closes *fd. CAIRN_NOT_FOUND is not complained about; every other error is. */
CAIRN_MUST_CHECK cairn_err cairn_place_open_file(const struct cairn_place *place, const char *name,
                                                 int *fd, struct cairn_complaint *complaint);

/* True if the place is a directory with a regular file (or a link to one) of that name. */
bool cairn_place_has_file(const struct cairn_place *place, const char *name);

/* Reads a whole file of at most bytes_max bytes and adds a NUL (not counted). The caller frees
 * *bytes. Errors as cairn_place_open_file; CAIRN_CORRUPT if the file is longer. */
CAIRN_MUST_CHECK cairn_err cairn_place_load(const struct cairn_place *place, const char *name,
                                            size_t bytes_max, uint8_t **bytes, size_t *bytes_len,
                                            struct cairn_complaint *complaint);

/* The names in the directory `name` of the place ("": the place itself), sorted by bytes. The
 * caller frees them with cairn_dir_list_free (base/file.h). */
CAIRN_MUST_CHECK cairn_err cairn_place_list(const struct cairn_place *place, const char *name,
                                            char ***names, size_t *count,
                                            struct cairn_complaint *complaint);

/* Tells whether a file is still the one we opened. Nobody can set a ctime back. The inode number is
 * not compared: network and user-space file systems may change it at the next open. */
struct cairn_file_mark {
    uint64_t bytes;
    uint64_t modified_ns, changed_ns; /* since 1970 */
};

/* The mark of an open file, before reading. CAIRN_CORRUPT if it is not a regular file, CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err cairn_file_mark_take(int fd, struct cairn_file_mark *out);
bool cairn_file_mark_equal(const struct cairn_file_mark *a, const struct cairn_file_mark *b);

#endif
