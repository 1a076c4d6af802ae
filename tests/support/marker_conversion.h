/*
 * tests/support/marker_conversion.h - a conversion of marker_format.h's checkpoint, between two
 * places below a temporary directory. Included after cmocka's own needs (setjmp.h, stdarg.h).
 */
#ifndef CAIRN_TESTS_MARKER_CONVERSION_H
#define CAIRN_TESTS_MARKER_CONVERSION_H

#include "tests/support/cmocka.h"
#include "tests/support/marker_format.h"
#include "tests/support/quiet_log.h"
#include "tests/support/folder.h"
#include "tools/convert/engine/conversion.h"

#include "base/file.h"
#include "base/log.h"

#include <sys/stat.h>

static char source[300], target[300];

/* For the set-up of a group of tests. */
static int
make_places(void **state)
{
    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    if (root_make("conversion"))
        return -1;
    (void)snprintf(source, sizeof(source), "%s/source", root);
    (void)snprintf(target, sizeof(target), "%s/target", root);
    return 0;
}

static int
remove_places(void **state)
{
    cairn_file_setup(NULL);
    return root_remove(state);
}

static struct cairn_conversion_options
options_of(uint32_t thread_count)
{
    return (struct cairn_conversion_options){.source = source,
                                             .target = target,
                                             .from = &marker_format,
                                             .to = &marker_format,
                                             .thread_count = thread_count,
                                             .memory_limit_bytes = 1 << 30};
}

/* report may be NULL. */
static cairn_err
convert_by(const struct cairn_conversion_options *options, struct cairn_conversion_report *report,
           struct cairn_complaint *complaint)
{
    struct cairn_conversion conversion;
    cairn_err err;

    complaint->text[0] = '\0';
    err = cairn_conversion_open(options, &conversion, complaint);
    if (!err)
        err = cairn_conversion_run(&conversion, complaint);
    if (report)
        *report = conversion.report;
    cairn_conversion_close(&conversion);
    return err;
}

static bool
is_there(const char *name)
{
    char path[400];
    struct stat found;

    (void)snprintf(path, sizeof(path), "%s/%s", target, name);
    return stat(path, &found) == 0;
}

#endif
