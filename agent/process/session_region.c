/*
 * agent/process/session_region.c - which blocks of the node's shard belong to which trainer; see
 * session_region.h.
 *
 * Each trainer's capture plan gets a run of blocks: the rank's earlier run of the same length, so
 * that its memory need not be cut again (cutting.h), else first fit. If a trainer returns smaller,
 * it leaves a hole behind its region; session.c fills holes with zero blocks, so that every block
 * of a shard has a checksum.
 */
#include "agent/process/session_region.h"

#include "agent/process/agent_state.h"
#include "agent/process/memory.h"
#include "agent/process/session.h"
#include "agent/process/sizes.h"
#include "agent/process/step.h"
#include "base/log.h"
#include "snapshot/layout.h"
#include "snapshot/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>

bool
session_is_rank(const struct session *session)
{
    return session->used && session->registered && !session->stale;
}

/* True if no other rank's region is in the way. */
static bool
is_free(const struct cairn_agent *agent, const struct session *self, uint64_t at, uint64_t blocks)
{
    uint64_t unit = cairn_memory_region_unit_blocks(agent->memory);
    uint64_t capacity = agent->config.state_bytes / CAIRN_BLOCK_BYTES;

    if (at % unit || at > capacity || blocks > capacity - at)
        return false;
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        const struct session *other = &agent->sessions[i];

        if (other != self && session_is_rank(other) && other->region_blocks &&
            at < other->region_block + (other->region_blocks + unit - 1) / unit * unit &&
            other->region_block < at + blocks)
            return false;
    }
    return true;
}

uint64_t
session_place_in_slot(const struct cairn_agent *agent, uint32_t slot, uint32_t rank,
                      uint64_t blocks)
{
    struct cairn_manifest manifest = {0};
    struct cairn_part_view view;
    const uint8_t *packed = NULL;
    uint64_t place = UINT64_MAX;
    size_t len = 0;

    if (cairn_core_look_part(agent->core, slot, &view) && view.state == CAIRN_PART_COMPLETE)
        packed = cairn_core_peer_manifest(agent->core, slot, view.member, &len);
    if (!packed || cairn_manifest_unpack(packed, len, &manifest) != CAIRN_OK)
        return UINT64_MAX;
    for (uint32_t i = 0; i < manifest.rank_count; i++)
        if (manifest.ranks[i].rank == rank &&
            manifest.ranks[i].region_bytes == blocks * CAIRN_BLOCK_BYTES)
            place = manifest.ranks[i].region_offset / CAIRN_BLOCK_BYTES;
    cairn_manifest_fini(&manifest);
    return place;
}

/* The rank's earlier region, if that place is free; UINT64_MAX: none. */
static uint64_t
former_place(const struct cairn_agent *agent, const struct session *self, uint64_t blocks)
{
    uint32_t rank = self->hello.rank;
    uint64_t place = cairn_memory_region_place(agent->memory, blocks, rank);

    for (uint32_t slot = 0; place == UINT64_MAX && slot < agent->config.slots; slot++)
        place = session_place_in_slot(agent, slot, rank, blocks);
    return place != UINT64_MAX && is_free(agent, self, place, blocks) ? place : UINT64_MAX;
}

/* The first place with room for `blocks` blocks between the regions of the other ranks, at a page
 * of the memory: no two ranks share one. */
static uint64_t
place_region(const struct cairn_agent *agent, const struct session *self, uint64_t blocks)
{
    uint64_t unit = cairn_memory_region_unit_blocks(agent->memory), at = UINT64_MAX;
    bool moved = true;

    if (blocks && !agent->regions.is_packed)
        at = former_place(agent, self, blocks);
    if (at != UINT64_MAX)
        return at;
    at = 0;
    while (moved) {
        moved = false;
        for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
            const struct session *other = &agent->sessions[i];

            if (other == self || !session_is_rank(other) || other->region_blocks == 0)
                continue;
            if (at < other->region_block + other->region_blocks &&
                other->region_block < at + blocks) {
                at = (other->region_block + other->region_blocks + unit - 1) / unit * unit;
                moved = true;
            }
        }
    }
    return at;
}

void
session_forget_region(struct session *session)
{
    cairn_session_register_fini(&session->slices);
    free(session->entries);
    session->entries = NULL;
    session->registered = false;
    session->region_blocks = 0;
    session->begun = (struct cairn_begun_step){0};
}

/* By place: the region of a rank that registered again may lie behind that of an older session. */
static int
compare_regions(const void *left, const void *right)
{
    const struct cairn_manifest_rank *a = left, *b = right;

    if (a->region_offset != b->region_offset)
        return a->region_offset < b->region_offset ? -1 : 1;
    return (a->region_bytes > b->region_bytes) - (a->region_bytes < b->region_bytes);
}

static cairn_err
pack_manifest(const struct cairn_agent *agent, struct cairn_manifest *manifest, uint8_t **bytes,
              size_t *len)
{
    uint32_t entries = 0, ranks = 0;
    cairn_err err;

    for (uint32_t i = 0; i < SESSIONS_MAX; i++)
        if (session_is_rank(&agent->sessions[i])) {
            entries += agent->sessions[i].slices.count;
            ranks++;
        }
    manifest->ranks = calloc(ranks + 1u, sizeof *manifest->ranks);
    manifest->entries = calloc(entries + 1u, sizeof *manifest->entries);
    err = manifest->ranks && manifest->entries ? CAIRN_OK : CAIRN_NOMEM;
    for (uint32_t i = 0; !err && i < SESSIONS_MAX; i++) {
        const struct session *session = &agent->sessions[i];

        if (!session_is_rank(session))
            continue;
        manifest->ranks[manifest->rank_count++] = (struct cairn_manifest_rank){
            .rank = session->hello.rank,
            .world = session->hello.world,
            .region_offset = session->region_block * CAIRN_BLOCK_BYTES,
            .region_bytes = session->region_blocks * CAIRN_BLOCK_BYTES};
        for (uint32_t e = 0; e < session->slices.count; e++) {
            struct cairn_manifest_entry *entry = &manifest->entries[manifest->entry_count];

            /* A replica with an empty share is listed too: tiling.h needs its number. */
            if (cairn_slice_elements(&session->slices.slices[e]) == 0)
                continue;
            *entry = session->entries[e];
            entry->slice.address = NULL;
            entry->slice.device = -1;
            entry->offset_bytes += session->region_block * CAIRN_BLOCK_BYTES;
            entry->rank = session->hello.rank;
            manifest->entry_count++;
        }
    }
    if (!err) {
        qsort(manifest->ranks, manifest->rank_count, sizeof *manifest->ranks, compare_regions);
        err = cairn_manifest_pack(manifest, bytes, len);
    }
    free(manifest->ranks);
    free(manifest->entries);
    return err;
}

cairn_err
session_manifest(struct cairn_agent *agent, const struct cairn_action_part *seal, uint8_t **bytes,
                 size_t *len)
{
    struct cairn_part_view view;
    struct cairn_manifest manifest = {.job_id = agent->job_id,
                                      .generation = seal->generation,
                                      .container = seal->member,
                                      .container_bytes = seal->blocks * CAIRN_BLOCK_BYTES,
                                      .block_count = seal->blocks};

    if (!cairn_core_look_part(agent->core, seal->part, &view))
        return CAIRN_INTERNAL;
    manifest.container_count = view.roster->member_count;
    manifest.block_crcs = (uint64_t *)(uintptr_t)seal->crcs; /* borrowed, and only read */
    return pack_manifest(agent, &manifest, bytes, len);
}

/* Packs the layout of `blocks` blocks as a manifest: no generation, and no checksums. */
static cairn_err
pack_layout(const struct cairn_agent *agent, uint64_t blocks, uint8_t **bytes, size_t *len)
{
    struct cairn_manifest manifest = {.job_id = agent->job_id,
                                      .generation = {.epoch = 1, .step = 1},
                                      .container_count = 1,
                                      .block_count = blocks,
                                      .container_bytes = blocks * CAIRN_BLOCK_BYTES};
    cairn_err err = CAIRN_NOMEM;

    manifest.block_crcs = calloc(blocks + 1, sizeof *manifest.block_crcs);
    if (manifest.block_crcs)
        err = pack_manifest(agent, &manifest, bytes, len);
    free(manifest.block_crcs);
    return err;
}

void
session_tell_ranks(struct cairn_agent *agent)
{
    struct cairn_event event = {.type = CAIRN_EVENT_RANKS};
    struct cairn_event_ranks *ranks = &event.as.ranks;
    struct cairn_begun_step steps[SESSIONS_MAX];
    uint32_t count = 0, wanted = 0;
    uint8_t *manifest = NULL;
    uint64_t end = 0;
    cairn_err err;

    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        struct session *session = &agent->sessions[i];

        if (!session_is_rank(session))
            continue;
        steps[count] = session->begun;
        session->local_rank = count++;
        wanted = session->hello.local_ranks;
        ranks->world = session->hello.world;
        ranks->launch = session->slices.launch;
        if (session->region_block + session->region_blocks > end)
            end = session->region_block + session->region_blocks;
    }
    agent->regions.registered_ranks = count;
    agent->regions.shard_blocks = end;
    if (count > 0 && count == wanted) {
        err = pack_layout(agent, end, &manifest, &ranks->manifest_len);
        if (err)
            CAIRN_LOG_AT(ERROR, "session: the layout of this node's ranks cannot be packed: %s",
                         cairn_err_text(err));
        ranks->manifest = manifest;
        ranks->blocks = end;
        ranks->ranks = err ? 0 : count;
        ranks->steps = steps;
    }
    agent_step(agent, &event, NULL);
    free(manifest);
}

/* Writes to text which tensor the ranks of this node describe differently, and how. Leaves text
 * alone if all agree. */
static void
say_disagreement(const struct cairn_agent *agent, char *text, size_t text_bytes)
{
    struct cairn_layout *layout = NULL;
    const char *why = NULL;
    cairn_err err = cairn_layout_create(&layout);

    for (uint32_t i = 0; i < SESSIONS_MAX && !err; i++) {
        const struct session *session = &agent->sessions[i];

        for (uint32_t e = 0; session_is_rank(session) && e < session->slices.count && !err; e++) {
            const struct cairn_slice *slice = &session->entries[e].slice;

            err = cairn_layout_add(layout, session->hello.rank, slice, slice->flat_begin,
                                   slice->flat_end, 0, &why);
            if (err == CAIRN_INVAL)
                snprintf(text, text_bytes,
                         "%s: what rank %u registers does not fit another rank's of this node: %s",
                         slice->name, session->hello.rank, why ? why : cairn_err_text(err));
        }
    }
    cairn_layout_destroy(layout);
}

/* Checks now, not at the first snapshot, that a generation's record has room for the names and
 * shapes of all tensors. */
static cairn_err
check_record(struct cairn_agent *agent, struct session *session, char *text, size_t text_bytes)
{
    uint64_t blocks = session->region_block + session->region_blocks;
    uint8_t *bytes = NULL;
    uint64_t layout_bytes;
    size_t len = 0;
    cairn_err err;

    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        const struct session *other = &agent->sessions[i];

        if (session_is_rank(other) && other->region_block + other->region_blocks > blocks)
            blocks = other->region_block + other->region_blocks;
    }
    session->registered = true;
    err = pack_layout(agent, blocks, &bytes, &len);
    session->registered = false;
    free(bytes);
    if (err) {
        snprintf(text, text_bytes,
                 "the tensors of rank %u and of this node's other ranks do not go together: %s",
                 session->hello.rank, cairn_err_text(err));
        session->registered = true;
        say_disagreement(agent, text, text_bytes);
        session->registered = false;
        return err;
    }
    layout_bytes = len - 8 * blocks;
    if (layout_bytes <= agent->regions.layout_bytes_max)
        return CAIRN_OK;
    snprintf(text, text_bytes,
             "the names and shapes of the %u tensors of rank %u, with those of this node's other "
             "ranks, take %.1f KiB; "
             "records have room for %.1f KiB; set state_bytes to at least %.0fMiB, or register "
             "fewer and larger tensors",
             session->slices.count, session->hello.rank, (double)layout_bytes / 1024.0,
             (double)agent->regions.layout_bytes_max / 1024.0,
             (double)layout_bytes * CAIRN_LAYOUT_SHARE / 1048576.0 + 1);
    return CAIRN_NOMEM;
}

/* True if the regions would all fit, had the others no holes between them. */
static bool
fits_packed(const struct cairn_agent *agent, const struct session *self)
{
    uint64_t unit = cairn_memory_region_unit_blocks(agent->memory), sum = self->region_blocks;

    for (uint32_t i = 0; i < SESSIONS_MAX; i++)
        if (&agent->sessions[i] != self && session_is_rank(&agent->sessions[i]))
            sum += (agent->sessions[i].region_blocks + unit - 1) / unit * unit;
    return sum <= agent->config.state_bytes / CAIRN_BLOCK_BYTES;
}

cairn_err
session_plan_region(struct cairn_agent *agent, struct session *session, char *text,
                    size_t text_bytes)
{
    uint64_t capacity = 0, region_bytes = 0;
    const char *why = NULL;
    cairn_err err;

    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        const struct session *other = &agent->sessions[i];

        if (other != session && session_is_rank(other) &&
            (other->hello.local_ranks != session->hello.local_ranks ||
             other->hello.world != session->hello.world)) {
            snprintf(text, text_bytes,
                     "rank %u says %u ranks on this node of %u in all, rank %u says %u of %u: a "
                     "job has one shape; end the "
                     "left-over",
                     session->hello.rank, session->hello.local_ranks, session->hello.world,
                     other->hello.rank, other->hello.local_ranks, other->hello.world);
            return CAIRN_INVAL;
        }
    }
    session->entries = calloc(session->slices.count + 1u, sizeof *session->entries);
    if (!session->entries)
        return CAIRN_NOMEM;
    err = cairn_capture_plan(session->slices.slices, session->slices.count, session->entries,
                             &region_bytes, &why);
    if (err) {
        snprintf(text, text_bytes, "a registered tensor is wrong: %s",
                 why ? why : cairn_err_text(err));
        return err;
    }
    session->region_blocks = region_bytes / CAIRN_BLOCK_BYTES;
    session->region_block = place_region(agent, session, session->region_blocks);
    capacity = agent->config.state_bytes / CAIRN_BLOCK_BYTES;
    if (session->region_block + session->region_blocks <= capacity)
        return check_record(agent, session, text, text_bytes);
    if (!agent->regions.is_packed && fits_packed(agent, session)) {
        agent->regions.is_packed = true;
        snprintf(text, text_bytes,
                 "rank %u has no room between the former regions of this node's other ranks: all "
                 "of them register again",
                 session->hello.rank);
        return CAIRN_AGAIN; /* the trainer tries again */
    }
    snprintf(text, text_bytes,
             "rank %u registers %.1f MiB to capture, %.1f MiB of this node's state_bytes (%.1f "
             "MiB) are taken by its other "
             "ranks; set state_bytes to at least %.0fMiB",
             session->hello.rank, (double)region_bytes / 1048576.0,
             (double)session->region_block * CAIRN_BLOCK_BYTES / 1048576.0,
             (double)agent->config.state_bytes / 1048576.0,
             (double)(session->region_block + session->region_blocks) * CAIRN_BLOCK_BYTES /
                     1048576.0 +
                 1);
    return CAIRN_NOMEM;
}
