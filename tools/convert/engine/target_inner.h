/* tools/convert/engine/target_inner.h - what target.c (part files) and target_commit.c share. */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_TARGET_INNER_H
#define CAIRN_TOOLS_CONVERT_ENGINE_TARGET_INNER_H

#include "tools/convert/engine/target.h"

#include <sys/types.h>

enum { CAIRN_TARGET_NAME_BYTES_MAX = 1280 };

struct cairn_target {
    const struct cairn_output *output;
    char *directory;
    char *name; /* of the single file in the directory, NULL: the output's own paths */
    int dir_fd;
    mode_t mask;  /* of the process, which the output's permissions follow */
    bool made;    /* the directory was made here */
    bool created; /* part files may be there */
    bool resumed;
    bool *named; /* [file_count]: a run that was killed while it finished gave the file its final
                   * name */
    bool *sized; /* [file_count]: the part file has its length; under the lock of `handles` */
    struct cairn_journal *journal;
    struct cairn_handles *handles;
};

/* The final name of a file below dir_fd. */
const char *cairn_target_final_name(const struct cairn_target *target, uint32_t file);

/* The journal's name below dir_fd. CAIRN_INVAL: it is too long. */
cairn_err cairn_target_journal_name(const struct cairn_target *target, char *name,
                                    size_t name_bytes);

/* Makes the directories that a name goes through. They are durable with the commit. */
CAIRN_MUST_CHECK cairn_err cairn_target_make_directories(const struct cairn_target *target,
                                                         const char *name);

#endif
