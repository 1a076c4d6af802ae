/* snapshot/tiling_audit.c - see tiling_audit.h. */
#include "snapshot/tiling_audit.h"

#include "base/wire.h"

#include <stdlib.h>
#include <string.h>

enum { PIECES_BYTES_MAX = 60000 };

cairn_err
cairn_tiling_audit_begin(struct cairn_tiling_audit *audit, uint64_t sum)
{
    memset(audit, 0, sizeof *audit);
    audit->asks = sum ? CAIRN_TILING_SUMS : CAIRN_TILING_ORIGINS;
    audit->sums = calloc(CAIRN_TILING_FAN, sizeof *audit->sums);
    return audit->sums ? CAIRN_OK : CAIRN_NOMEM;
}

void
cairn_tiling_audit_fini(struct cairn_tiling_audit *audit)
{
    free(audit->sums);
    free(audit->origins);
    cairn_tiling_pieces_fini(&audit->pieces);
    memset(audit, 0, sizeof *audit);
}

/* ---- a part's answer ---- */

size_t
cairn_tiling_answer(const struct cairn_tiling *tiling, enum cairn_tiling_question asks,
                    uint64_t prefix, uint8_t *out, bool *cut)
{
    uint64_t sums[CAIRN_TILING_FAN] = {0};
    const uint64_t *values = sums;
    size_t count = CAIRN_TILING_FAN;
    struct cairn_writer writer;

    *cut = false;
    if (asks == CAIRN_TILING_PIECES) {
        out[0] = 0;
        return tiling ? cairn_tiling_pack_pieces(tiling, prefix, out, PIECES_BYTES_MAX) : 1;
    }
    if (asks == CAIRN_TILING_ORIGINS) {
        count = 0;
        if (tiling)
            values = cairn_tiling_origins(tiling, &count);
        *cut = count > CAIRN_TILING_ORIGINS_OF_ONE;
    } else if (tiling) {
        cairn_tiling_sums(tiling, sums);
    }
    cairn_writer_init(&writer, out, CAIRN_TILING_ANSWER_BYTES_MAX);
    for (size_t i = 0; i < count && i < CAIRN_TILING_ORIGINS_OF_ONE; i++)
        cairn_write_u64(&writer, values[i]);
    return writer.used_bytes;
}

/* ---- all parts' answers ---- */

static cairn_err
take_sums(struct cairn_tiling_audit *audit, struct cairn_reader *reader, size_t count)
{
    if (count != CAIRN_TILING_FAN)
        return CAIRN_CORRUPT;
    for (size_t i = 0; i < count; i++)
        audit->sums[i] =
            cairn_tiling_add(audit->sums[i], cairn_read_u64(reader) % CAIRN_TILING_FIELD);
    return CAIRN_OK;
}

static cairn_err
take_origins(struct cairn_tiling_audit *audit, struct cairn_reader *reader, size_t count)
{
    if (audit->origin_count + count > CAIRN_TILING_ORIGINS_MAX) {
        audit->uncounted = true;
        return CAIRN_OK;
    }
    if (audit->origin_count + count > audit->origin_room) {
        size_t room = 2 * (audit->origin_count + count);
        uint64_t *origins = realloc(audit->origins, room * sizeof *origins);

        if (!origins)
            return CAIRN_NOMEM;
        audit->origins = origins;
        audit->origin_room = room;
    }
    for (size_t i = 0; i < count; i++)
        audit->origins[audit->origin_count++] = cairn_read_u64(reader);
    return CAIRN_OK;
}

cairn_err
cairn_tiling_audit_take(struct cairn_tiling_audit *audit, const uint8_t *bytes, size_t bytes_len,
                        bool cut)
{
    struct cairn_reader reader;

    if (audit->asks == CAIRN_TILING_PIECES) {
        cairn_err err = cairn_tiling_add_pieces(&audit->pieces, bytes, bytes_len);

        return err == CAIRN_NOMEM ? err : CAIRN_OK; /* what is damaged explains nothing */
    }
    if (bytes_len % 8 != 0)
        return CAIRN_CORRUPT;
    cairn_reader_init(&reader, bytes, bytes_len);
    if (audit->asks == CAIRN_TILING_SUMS)
        return take_sums(audit, &reader, bytes_len / 8);
    audit->uncounted |= cut;
    return audit->uncounted ? CAIRN_OK : take_origins(audit, &reader, bytes_len / 8);
}

static int
compare_keys(const void *left, const void *right)
{
    const uint64_t *a = left, *b = right;

    return (*a > *b) - (*a < *b);
}

static enum cairn_tiling_verdict
ask_pieces(struct cairn_tiling_audit *audit, uint64_t prefix)
{
    audit->asks = CAIRN_TILING_PIECES;
    audit->prefix = prefix;
    return CAIRN_TILING_OPEN;
}

enum cairn_tiling_verdict
cairn_tiling_audit_next(struct cairn_tiling_audit *audit, char *text, size_t text_bytes)
{
    if (audit->asks == CAIRN_TILING_ORIGINS) {
        if (audit->origin_count > 0)
            qsort(audit->origins, audit->origin_count, sizeof *audit->origins, compare_keys);
        for (size_t i = 1; i < audit->origin_count; i++)
            if (audit->origins[i] == audit->origins[i - 1])
                return ask_pieces(audit, cairn_tiling_prefix(audit->origins[i]));
        return CAIRN_TILING_GOOD;
    }
    for (uint64_t i = 0; audit->asks == CAIRN_TILING_SUMS && i < CAIRN_TILING_FAN; i++)
        if (audit->sums[i] != 0)
            return ask_pieces(audit, i);
    cairn_tiling_explain(&audit->pieces, text, text_bytes);
    return CAIRN_TILING_BAD;
}
