/*
 * snapshot/catalog_state.c - the catalog's own record and its copy in the side file.
 *
 * The state record, CAIRN_CATALOG_STATE_BYTES bytes, little-endian:
 *   "CAIRNCAT", u32 version = 1, u64 id (random, made with the catalog), u64 counter of batches,
 *   per table from 1 on: u64 records, u64 digest (sum of the records' checksums mod 2^64),
 *   u64 CRC-64 of all before it.
 * It is the only record of the table `default` (key "state"), rewritten in every batch, and is
 * repeated in the side file <path>/SIDE: slot (counter mod 2) at byte 512 * slot, written and
 * synced after the batch. A write of a slot that is torn leaves the other.
 */
#include "snapshot/catalog_state.h"

#include <string.h>

#include "base/crc.h"
#include "base/file.h"
#include "base/log.h"
#include "base/wire.h"

enum { STATE_VERSION = 1, SIDE_SLOT_BYTES = 512, SIDE_BYTES = 2 * SIDE_SLOT_BYTES, CRC_BYTES = 8 };
_Static_assert((int)CAIRN_CATALOG_STATE_BYTES <= (int)SIDE_SLOT_BYTES,
               "a state record fits a slot, so a sector");

static const char state_magic[8] = {'C', 'A', 'I', 'R', 'N', 'C', 'A', 'T'};

void
cairn_catalog_state_pack(const struct cairn_catalog_state *state,
                         uint8_t bytes[CAIRN_CATALOG_STATE_BYTES])
{
    struct cairn_writer writer;

    cairn_writer_init(&writer, bytes, CAIRN_CATALOG_STATE_BYTES);
    cairn_write_bytes(&writer, state_magic, sizeof(state_magic));
    cairn_write_u32(&writer, STATE_VERSION);
    cairn_write_u64(&writer, state->id);
    cairn_write_u64(&writer, state->counter);
    for (int t = 1; t < CAIRN_TABLE_COUNT; t++) {
        cairn_write_u64(&writer, state->records[t]);
        cairn_write_u64(&writer, state->digest[t]);
    }
    cairn_write_u64(&writer, cairn_crc64(0, bytes, CAIRN_CATALOG_STATE_BYTES - CRC_BYTES));
}

cairn_err
cairn_catalog_state_unpack(const uint8_t *bytes, size_t bytes_len, struct cairn_catalog_state *out)
{
    struct cairn_reader reader;
    struct cairn_catalog_state state = {0};
    char magic[sizeof(state_magic)];
    uint32_t version;
    uint64_t crc;

    if (bytes_len != CAIRN_CATALOG_STATE_BYTES)
        return CAIRN_CORRUPT;
    cairn_reader_init(&reader, bytes, bytes_len);
    cairn_read_bytes(&reader, magic, sizeof(magic));
    version = cairn_read_u32(&reader);
    state.id = cairn_read_u64(&reader);
    state.counter = cairn_read_u64(&reader);
    for (int t = 1; t < CAIRN_TABLE_COUNT; t++) {
        state.records[t] = cairn_read_u64(&reader);
        state.digest[t] = cairn_read_u64(&reader);
    }
    crc = cairn_read_u64(&reader);
    if (cairn_reader_done(&reader) || memcmp(magic, state_magic, sizeof(magic)) != 0 ||
        crc != cairn_crc64(0, bytes, CAIRN_CATALOG_STATE_BYTES - CRC_BYTES))
        return CAIRN_CORRUPT;
    if (version != STATE_VERSION)
        return CAIRN_VERSION;
    *out = state;
    return CAIRN_OK;
}

cairn_err
cairn_catalog_side_read(int side_fd, const char *path, struct cairn_catalog_state *out, bool *known)
{
    uint8_t bytes[SIDE_BYTES];
    uint64_t newest = 0;
    size_t got = 0;
    bool found = false, newer = false;
    cairn_err err = cairn_file_read_at(side_fd, 0, bytes, sizeof(bytes), &got);

    if (err)
        return err;
    for (size_t slot = 0; slot < 2; slot++) {
        struct cairn_catalog_state state;
        cairn_err slot_err;

        if (got < slot * SIDE_SLOT_BYTES + CAIRN_CATALOG_STATE_BYTES)
            break;
        slot_err = cairn_catalog_state_unpack(bytes + slot * SIDE_SLOT_BYTES,
                                              CAIRN_CATALOG_STATE_BYTES, &state);
        newer = newer || slot_err == CAIRN_VERSION;
        if (slot_err || (found && state.counter <= newest))
            continue;
        found = true;
        newest = state.counter;
        *out = state;
    }
    if (!found && got > 0) {
        CAIRN_LOG_AT(ERROR, "catalog: the side file is %s path=%s/%s: %s",
                     newer ? "of another version" : "damaged", path, CAIRN_CATALOG_SIDE_NAME,
                     CAIRN_CATALOG_CURE);
        return newer ? CAIRN_VERSION : CAIRN_CORRUPT;
    }
    *known = found;
    return CAIRN_OK;
}

cairn_err
cairn_catalog_side_write(int side_fd, const struct cairn_catalog_state *state)
{
    uint8_t slot[SIDE_SLOT_BYTES] = {0};
    cairn_err err;

    if (side_fd < 0)
        return CAIRN_OK;
    cairn_catalog_state_pack(state, slot);
    err = cairn_file_write_at(side_fd, (state->counter & 1) * SIDE_SLOT_BYTES, slot, sizeof(slot));
    return err ? err : cairn_file_sync(side_fd);
}
