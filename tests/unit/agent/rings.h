/*
 * tests/unit/agent/rings.h - rings of timing records for a whole agent (one_agent.h), and
 * its status about them.
 */
#ifndef RINGS_H
#define RINGS_H

#include "tests/unit/agent/one_agent.h"

#include "base/ring.h"
#include "cairn/timing.h"

#include <sys/mman.h>

#define HELPER __attribute__((unused)) static

enum { RECORDS = 256 };

/* ---- rings ---- */

struct ring_file {
    int fd;
    void *memory;
    size_t bytes;
    struct cairn_ring ring;
};

HELPER int
make_file(size_t bytes, int seals)
{
    int fd = memfd_create("cairn-timing", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    if (seals)
        assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

HELPER struct ring_file
make_ring(void)
{
    struct ring_file file = {.bytes = cairn_ring_bytes(RECORDS)};

    file.fd = make_file(file.bytes, F_SEAL_SHRINK | F_SEAL_GROW);
    file.memory = mmap(NULL, file.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
    assert_ptr_not_equal(file.memory, MAP_FAILED);
    assert_int_equal(cairn_ring_format(file.memory, file.bytes, RECORDS), CAIRN_OK);
    assert_int_equal(cairn_ring_open(file.memory, file.bytes, &file.ring), CAIRN_OK);
    return file;
}

HELPER void
end_ring(struct ring_file *file)
{
    munmap(file->memory, file->bytes);
    close(file->fd);
}

HELPER void
hand_over(struct trainer *trainer, int fd)
{
    struct cairn_session_timing timing = {.index = 0};

    assert_int_equal(cairn_session_put_timing(&trainer->writer, &timing, fd), CAIRN_OK);
    assert_int_equal(cairn_session_writer_send(&trainer->writer, trainer->fd), CAIRN_OK);
}

/* ---- the status ---- */

HELPER void
ask_status(const struct node *node, char *text, size_t text_bytes)
{
    ask(node, "{\"verb\":\"status\"}", text, text_bytes);
}

HELPER void
await_status(const struct node *node, const char *part)
{
    static char text[1 << 16];

    for (uint64_t end = now_ms() + TIMEOUT_MS; now_ms() < end; usleep(20000)) {
        ask_status(node, text, sizeof text);
        if (strstr(text, part))
            return;
    }
    fail_msg("the status never says: %s\n%s", part, text);
}

#undef HELPER
#endif
