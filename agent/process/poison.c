/* agent/process/poison.c - see poison.h. */
#include "agent/process/poison.h"

#include "agent/process/agent_state.h"
#include "agent/process/recorder.h"
#include "base/log.h"
#include "base/wire.h"
#include "snapshot/catalog.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/*
 * The record in the catalog: u8 version, the first and the last generation (each u64 epoch, step
 * and run), u32 rank, u8 kept, u8 rejected, u32 tensors, the strings name and reason.
 */
enum {
    RECORD_VERSION = 1,
    RECORD_BYTES_MAX = 1 + 6 * 8 + 4 + 2 + 4 + 8 + CAIRN_NAME_BYTES_MAX + CAIRN_REASON_BYTES_MAX
};

static const char record_key[] = "poison";

static void
write_generation(struct cairn_writer *writer, struct cairn_generation_id generation)
{
    cairn_write_u64(writer, generation.epoch);
    cairn_write_u64(writer, generation.step);
    cairn_write_u64(writer, generation.run);
}

static struct cairn_generation_id
read_generation(struct cairn_reader *reader)
{
    struct cairn_generation_id generation;

    generation.epoch = cairn_read_u64(reader);
    generation.step = cairn_read_u64(reader);
    generation.run = cairn_read_u64(reader);
    return generation;
}

static void
store(const struct cairn_agent *agent)
{
    const struct poison *poison = &agent->poison;
    uint8_t bytes[RECORD_BYTES_MAX];
    struct cairn_writer writer;

    cairn_writer_init(&writer, bytes, sizeof bytes);
    cairn_write_u8(&writer, RECORD_VERSION);
    write_generation(&writer, poison->first.generation);
    write_generation(&writer, poison->last);
    cairn_write_u32(&writer, poison->rank);
    cairn_write_u8(&writer, poison->is_kept);
    cairn_write_u8(&writer, poison->first.is_rejected);
    cairn_write_u32(&writer, poison->first.tensors);
    cairn_write_string(&writer, poison->first.name);
    cairn_write_string(&writer, poison->first.reason);
    if (cairn_writer_done(&writer) ||
        cairn_catalog_put(agent->catalog, CAIRN_TABLE_FACTS, record_key, sizeof record_key - 1,
                          bytes, writer.used_bytes))
        CAIRN_LOG_AT(WARN, "catalog: the poisoned step cannot be stored: an agent that starts "
                           "again does not name it");
}

static cairn_err
unpack(const uint8_t *bytes, size_t bytes_len, struct poison *out)
{
    struct poison poison = {0};
    struct cairn_reader reader;
    uint8_t version;
    cairn_err err;

    cairn_reader_init(&reader, bytes, bytes_len);
    version = cairn_read_u8(&reader);
    poison.first.generation = read_generation(&reader);
    poison.last = read_generation(&reader);
    poison.rank = cairn_read_u32(&reader);
    poison.is_kept = cairn_read_u8(&reader) == 1;
    poison.first.is_rejected = cairn_read_u8(&reader) == 1;
    poison.first.tensors = cairn_read_u32(&reader);
    cairn_read_string(&reader, poison.first.name, sizeof poison.first.name);
    cairn_read_string(&reader, poison.first.reason, sizeof poison.first.reason);
    err = cairn_reader_done(&reader);
    if (err || version != RECORD_VERSION)
        return CAIRN_CORRUPT;
    *out = poison;
    return CAIRN_OK;
}

void
poison_open(struct cairn_agent *agent)
{
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;

    if (cairn_catalog_get(agent->catalog, CAIRN_TABLE_FACTS, record_key, sizeof record_key - 1,
                          &bytes, &bytes_len) == CAIRN_OK &&
        unpack(bytes, bytes_len, &agent->poison) != CAIRN_OK)
        CAIRN_LOG_AT(WARN, "catalog: the stored poisoned step is damaged, or another version's: "
                           "it is forgotten");
    free(bytes);
}

static void
say(const struct poison *poison)
{
    const struct cairn_session_poison *first = &poison->first;

    CAIRN_LOG_AT(WARN, "poison: step=%" PRIu64 " rank=%u kept=%s tensors=%u first=\"%s\"%s%s",
                 first->generation.step, poison->rank, poison->is_kept ? "yes" : "no",
                 first->tensors, first->name, first->is_rejected ? " rejected: " : "",
                 first->reason);
}

static void
record(struct cairn_agent *agent, const struct poison *poison)
{
    const struct cairn_session_poison *first = &poison->first;
    struct history_event event = history_event_of(HISTORY_POISON);
    char text[CAIRN_NAME_BYTES_MAX + CAIRN_REASON_BYTES_MAX + 64];

    if (first->is_rejected)
        snprintf(text, sizeof text, "rejected: %s", first->reason);
    else
        snprintf(text, sizeof text, "%u tensors are not finite, the first is %s; it is %s",
                 first->tensors, first->name, poison->is_kept ? "kept" : "given up");
    event.generation = first->generation;
    event.rank = poison->rank;
    event.text = text;
    recorder_add(agent, &event);
}

/* True for the first generation of its run, or since one as late as the first was committed. */
static bool
is_first(const struct cairn_agent *agent, struct cairn_generation_id generation)
{
    struct cairn_generation_id first = agent->poison.first.generation;
    struct cairn_core_view view;

    cairn_core_look(agent->core, &view);
    return first.epoch != generation.epoch || first.run != generation.run ||
           cairn_generation_id_compare(view.committed, first) >= 0;
}

cairn_err
poison_take(struct cairn_agent *agent, uint32_t rank, const struct cairn_session_poison *found)
{
    enum cairn_on_poison policy = (enum cairn_on_poison)agent->config.on_poison;
    struct poison *poison = &agent->poison;
    /* what a rank rejects itself is never kept */
    bool is_kept = policy == CAIRN_POISON_ALLOW && !found->is_rejected;
    bool is_next = cairn_generation_id_compare(poison->last, found->generation) != 0;

    poison->is_kept = is_kept && (is_next || poison->is_kept);
    poison->last = found->generation;
    if (is_first(agent, found->generation)) {
        poison->first = *found;
        poison->rank = rank;
        say(poison);
        record(agent, poison);
    }
    store(agent);
    if (is_kept)
        return CAIRN_OK;
    return policy == CAIRN_POISON_STOP ? CAIRN_CORRUPT : CAIRN_AGAIN;
}
