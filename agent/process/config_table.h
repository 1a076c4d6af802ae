/*
 * agent/process/config_table.h - the table of options behind agent/process/config.h, for the files
 * that read it.
 *
 * There are two: the options of the file, and those of each entry of `nodes`. Every text about an
 * option (its bounds in an error, its line in the help, its row in docs/CONFIG.md) comes from its
 * row here.
 */
#ifndef CAIRN_AGENT_PROCESS_CONFIG_TABLE_H
#define CAIRN_AGENT_PROCESS_CONFIG_TABLE_H

#include "agent/process/config.h"

enum cairn_option_type {
    CAIRN_OPTION_TEXT,   /* char[max + 1] */
    CAIRN_OPTION_PATH,   /* char[max + 1], absolute; may be empty only if min is 0 */
    CAIRN_OPTION_U32,    /* uint32_t */
    CAIRN_OPTION_BYTES,  /* uint64_t */
    CAIRN_OPTION_BOOL,   /* bool */
    CAIRN_OPTION_CHOICE, /* uint32_t, an index into choices */
    CAIRN_OPTION_NODES,  /* the list of nodes */
    CAIRN_OPTION_COMMAND /* struct cairn_config_command, a list of texts */
};

struct cairn_option {
    const char *name; /* with its unit */
    enum cairn_option_type type;
    uint64_t min, max;          /* of the number, or of the text's length */
    const char *fallback;       /* the default, as the file would write it; NULL: built in */
    size_t offset;              /* in struct cairn_config or struct cairn_config_node */
    const char *const *choices; /* ended by NULL */
    const char *sample;         /* the sample file's value; NULL: the default, commented out */
    const char *help;           /* one line */
};

extern const struct cairn_option cairn_options[];
extern const uint32_t cairn_option_count;
extern const struct cairn_option cairn_node_options[];
extern const uint32_t cairn_node_option_count;

/* The option of a name, NULL where there is none. */
const struct cairn_option *cairn_option_find(const struct cairn_option *options, uint32_t count,
                                             const char *name);

/* The option whose name takes the fewest edits to reach from `name`; never NULL. */
const struct cairn_option *cairn_option_nearest(const struct cairn_option *options, uint32_t count,
                                                const char *name);

/* Sets the option's field in the struct at `base` from a text. False: why[why_bytes] gives the
 * rule, as in "must be a whole number from 1 to 9". Not for lists: CAIRN_OPTION_NODES,
 * CAIRN_OPTION_COMMAND. */
bool cairn_option_set(const struct cairn_option *option, const char *text, void *base, char *why,
                      size_t why_bytes);

/* Describes the values an option takes, as in "a whole number from 1 to 9". */
void cairn_option_describe(const struct cairn_option *option, char *out, size_t out_bytes);

#endif
