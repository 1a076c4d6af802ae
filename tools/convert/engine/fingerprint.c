/* tools/convert/engine/fingerprint.c - see fingerprint.h. */
#include "tools/convert/engine/fingerprint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/crc.h"
#include "base/crc_join.h"

struct cairn_fingerprint
cairn_fingerprint_of(const void *bytes, size_t bytes_len)
{
    return (struct cairn_fingerprint){cairn_crc64(0, bytes, bytes_len),
                                      cairn_crc64_jones(0, bytes, bytes_len)};
}

bool
cairn_fingerprint_equal(struct cairn_fingerprint a, struct cairn_fingerprint b)
{
    return a.ecma == b.ecma && a.jones == b.jones;
}

void
cairn_fingerprint_text(struct cairn_fingerprint fingerprint,
                       char text[CAIRN_FINGERPRINT_TEXT_BYTES])
{
    (void)snprintf(text, CAIRN_FINGERPRINT_TEXT_BYTES, "%016" PRIx64 "%016" PRIx64,
                   fingerprint.ecma, fingerprint.jones);
}

static struct cairn_fingerprint
factor_of(uint64_t bytes)
{
    return (struct cairn_fingerprint){cairn_crc_factor(CAIRN_CRC_ECMA, bytes),
                                      cairn_crc_factor(CAIRN_CRC_JONES, bytes)};
}

static struct cairn_fingerprint
times(struct cairn_fingerprint a, struct cairn_fingerprint factor)
{
    return (struct cairn_fingerprint){cairn_crc_multiply(CAIRN_CRC_ECMA, a.ecma, factor.ecma),
                                      cairn_crc_multiply(CAIRN_CRC_JONES, a.jones, factor.jones)};
}

static struct cairn_fingerprint
plus(struct cairn_fingerprint a, struct cairn_fingerprint b)
{
    return (struct cairn_fingerprint){a.ecma ^ b.ecma, a.jones ^ b.jones};
}

void
cairn_fingerprint_walk_init(struct cairn_fingerprint_walk *walk, uint64_t total_bytes)
{
    memset(walk, 0, sizeof(*walk));
    walk->total_bytes = total_bytes;
    walk->factor = factor_of(0);
}

static void
close_walk(struct cairn_fingerprint_walk *walk)
{
    if (walk->end < walk->total_bytes && (walk->open.ecma | walk->open.jones))
        walk->open = times(walk->open, factor_of(walk->total_bytes - walk->end));
    walk->closed = plus(walk->closed, walk->open);
    walk->open = (struct cairn_fingerprint){0, 0};
    walk->end = 0;
}

void
cairn_fingerprint_walk_add(struct cairn_fingerprint_walk *walk, struct cairn_fingerprint part,
                           uint64_t begin, uint64_t bytes)
{
    uint64_t distance;

    CAIRN_ASSERT(bytes <= walk->total_bytes && begin <= walk->total_bytes - bytes);
    if (begin < walk->end)
        close_walk(walk);
    distance = begin + bytes - walk->end;
    if (walk->open.ecma | walk->open.jones) {
        if (distance != walk->distance) {
            walk->distance = distance;
            walk->factor = factor_of(distance);
        }
        walk->open = times(walk->open, walk->factor);
    }
    walk->open = plus(walk->open, part);
    walk->end = begin + bytes;
}

struct cairn_fingerprint
cairn_fingerprint_walk_end(struct cairn_fingerprint_walk *walk)
{
    close_walk(walk);
    return walk->closed;
}
