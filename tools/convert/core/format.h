/*
 * tools/convert/core/format.h - one row of the table of formats (formats.h).
 *
 * A format reads metadata into a checkpoint (core/checkpoint.h) and lays a checkpoint out as an
 * output (core/output.h). Both are a layout of snapshot/layout.h plus its containers. So one engine
 * (snapshot/reshard.h) works between any two formats, and no format ever moves a tensor's bytes:
 * the executor (engine/execute.h) does.
 *
 *     place --probe/read--> checkpoint --(map)--> checkpoint --plan--> output
 *                                 \__ reshard, tiles, sums, fingerprints __/ --finish--> marker
 */
#ifndef CAIRN_TOOLS_CONVERT_CORE_FORMAT_H
#define CAIRN_TOOLS_CONVERT_CORE_FORMAT_H

#include "tools/convert/core/output.h"

struct cairn_format {
    const char *name;    /* as in --to: "dcp" */
    const char *about;   /* one line, for `cairn convert --help` */
    bool target_is_file; /* DST is one file unless it is a directory or ends in '/' */

    /* True if names and the first bytes of few files look like this format. Never complains. */
    bool (*probe)(const struct cairn_place *place);

    /* Reads all metadata into a checkpoint whose place and layout are set. Errors, each complained
     * about: CAIRN_CORRUPT, CAIRN_VERSION, CAIRN_NOT_FOUND (a file of the checkpoint), CAIRN_INVAL
     * (it needs a flag to be read), CAIRN_NOMEM, CAIRN_IO. cairn_checkpoint_close frees what it
     * leaves, also after an error. */
    cairn_err (*read)(struct cairn_checkpoint *checkpoint);

    /* Adds what the target keeps apart and the source does not: opaque state, and aliases. Called
     * before the source is proved complete. May be NULL. Errors as `plan`. */
    cairn_err (*prepare)(struct cairn_checkpoint *checkpoint,
                         const struct cairn_output_options *options);

    /* Lays the checkpoint out, which lives until cairn_output_fini. Each tensor of the source is in
     * the output's layout, or carried, or refused by name (CAIRN_INVAL). Deterministic: a killed
     * run is continued by planning again. */
    cairn_err (*plan)(const struct cairn_checkpoint *checkpoint,
                      const struct cairn_output_options *options, struct cairn_output *output);

    /* Called when all sums are set: adds the literals that depend on them, and the small files. May
     * be NULL. */
    cairn_err (*finish)(const struct cairn_checkpoint *checkpoint, struct cairn_output *output);

    void (*release)(void *state); /* NULL if `state` is never set */
};

/* The rows, each defined in format.c of its room; tools/convert/formats.c makes a table of them. */
extern const struct cairn_format cairn_format_universal, cairn_format_ds_universal,
    cairn_format_deepspeed, cairn_format_megatron, cairn_format_safetensors,
    cairn_format_megatron_dist, cairn_format_dcp, cairn_format_torch;

/* Reads a place as `format`, on at most thread_count threads (0: the reader's choice). The caller
 * ends *out with cairn_checkpoint_close; until then `complaint` lives, or out->complaint is set to
 * another one. CAIRN_NOT_FOUND if there is no such place; else the errors of `read`. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_open(const char *path,
                                                 const struct cairn_format *format,
                                                 uint32_t thread_count,
                                                 struct cairn_checkpoint *out,
                                                 struct cairn_complaint *complaint);

/* The same with the first of `formats` (ended by NULL) that recognizes the place. CAIRN_NOT_FOUND
 * also if none does. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_detect(const char *path,
                                                   const struct cairn_format *const formats[],
                                                   uint32_t thread_count,
                                                   struct cairn_checkpoint *out,
                                                   struct cairn_complaint *complaint);

#endif
