/* tools/convert/engine/memory_limit.c - see memory_limit.h. */
#include "tools/convert/engine/memory_limit.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"

enum {
    TILE_BYTES_MIN = 256 * 1024,
    TILE_UNIT_BYTES = 64 * 1024,
    /* What malloc and the C library keep beyond what is asked for: measured below 3 MiB. */
    SLACK_BYTES = 6 << 20,
    /* A box, its place in the index, pointers, a move, and what sorting copies of them. */
    PLAN_BYTES_PER_PIECE = 480
};

/* Bytes of the process that are in memory now. */
static cairn_err
resident_bytes(uint64_t *bytes, struct cairn_complaint *complaint)
{
    unsigned long long total = 0, resident = 0;
    char text[128];
    size_t got = 0;
    cairn_err err;
    int fd = -1;

    err = cairn_file_open(AT_FDCWD, "/proc/self/statm", CAIRN_FILE_READ, &fd);
    if (!err)
        err = cairn_file_read_at(fd, 0, text, sizeof(text) - 1, &got);
    (void)cairn_file_close(fd); /* only read; -1 is allowed */
    text[got] = '\0';
    if (!err && sscanf(text, "%llu %llu", &total, &resident) != 2)
        err = CAIRN_IO;
    if (err)
        return cairn_complain(
            complaint, CAIRN_IO,
            "/proc/self/statm cannot be read, so the memory limit cannot be held; mount /proc");
    *bytes = (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
    return CAIRN_OK;
}

uint64_t
cairn_memory_limit_plan_bytes(size_t source_pieces, size_t target_pieces)
{
    return ((uint64_t)source_pieces + (uint64_t)target_pieces) * PLAN_BYTES_PER_PIECE;
}

cairn_err
cairn_memory_limit_check(uint64_t limit_bytes, uint64_t wanted_bytes, const char *what,
                         struct cairn_complaint *complaint)
{
    char limit[CAIRN_SHOWN_BYTES], have[CAIRN_SHOWN_BYTES], want[CAIRN_SHOWN_BYTES];
    uint64_t resident = 0;
    cairn_err err;

    err = resident_bytes(&resident, complaint);
    if (err)
        return err;
    if (resident + wanted_bytes + SLACK_BYTES <= limit_bytes)
        return CAIRN_OK;
    return cairn_complain(complaint, CAIRN_INVAL,
                          "%s: needs %s beside the %s that are taken by now, and the limit is %s; "
                          "give more with --memory-limit",
                          what, cairn_show_bytes(wanted_bytes, want),
                          cairn_show_bytes(resident, have), cairn_show_bytes(limit_bytes, limit));
}

cairn_err
cairn_memory_limit_fit(struct cairn_execution *execution, uint64_t limit_bytes,
                       uint64_t spare_per_tile, struct cairn_complaint *complaint)
{
    uint64_t resident = 0, each = 0, left;
    cairn_err err;

    err = resident_bytes(&resident, complaint);
    if (err)
        return err;
    left = resident + SLACK_BYTES < limit_bytes ? limit_bytes - resident - SLACK_BYTES : 0;
    execution->tile_bytes = CAIRN_TILE_BYTES_MAX;
    for (;;) {
        execution->spare_bytes = spare_per_tile * execution->tile_bytes;
        each = cairn_execute_thread_bytes(execution);
        if (each * execution->thread_count <= left)
            return CAIRN_OK;
        if (execution->tile_bytes > 4 * TILE_BYTES_MIN || execution->thread_count == 1)
            execution->tile_bytes = execution->tile_bytes / 2 / TILE_UNIT_BYTES * TILE_UNIT_BYTES;
        else
            execution->thread_count--;
        if (execution->tile_bytes < TILE_BYTES_MIN)
            return cairn_memory_limit_check(limit_bytes, each, "one thread", complaint);
    }
}
