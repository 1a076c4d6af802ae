/* agent/service/scrub.c - see scrub.h. */
#include "agent/service/scrub.h"

#include "agent/process/agent_state.h"
#include "agent/process/memory.h"
#include "agent/service/scrub_plan.h"
#include "base/crc.h"
#include "base/log.h"
#include "base/worker.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    SLICE_BLOCKS = 64, /* read at once: 4 MiB, so that waking up costs little beside it */
    PART_EXTENTS = 1 + CAIRN_SHARDS_MAX, /* the data, and each parity slot */
    EXTENTS = CAIRN_PARTS_MAX * PART_EXTENTS
};

static const uint64_t RECORD = UINT64_MAX;             /* as a unit of a part's data: its record */
static const uint64_t look_ns = 200 * CAIRN_NS_PER_MS; /* between looks at damage */

/* Blocks that a worker compares with their checksums. */
struct slice {
    struct cairn_job job;
    struct cairn_agent *agent;
    struct cairn_generation_id generation;
    uint32_t part; /* held */
    struct scrub_run run;
    const uint8_t *bytes;
    uint64_t crcs[SLICE_BLOCKS];
    bool check_record;
    bool record_bad;
    uint64_t bad; /* a bit per block */
    uint64_t cpu_ns;
};

struct scrub_state {
    struct cairn_timer timer;
    struct scrub_course course;
    struct scrub_ledger ledger;
    uint64_t read_bytes;
};

/* ---- where blocks are ---- */

static uint32_t
part_of(uint32_t extent)
{
    return extent / PART_EXTENTS;
}

/* The part of an extent, if it is complete and of this generation. */
static bool
find_part(const struct cairn_agent *agent, struct cairn_generation_id generation, uint32_t extent,
          struct cairn_part_view *out)
{
    return cairn_core_look_part(agent->core, part_of(extent), out) &&
           out->state == CAIRN_PART_COMPLETE && out->stripes && out->block_crcs &&
           cairn_generation_id_compare(out->generation, generation) == 0;
}

/* Bytes and checksums of blocks of an extent; false: it has none there. */
static bool
find_blocks(const struct cairn_agent *agent, const struct cairn_part_view *view, uint32_t extent,
            uint64_t first, uint32_t count, const uint8_t **bytes, const uint64_t **crcs)
{
    uint32_t slot = extent % PART_EXTENTS;

    if (slot == 0) {
        *bytes = cairn_memory_data(agent->memory, part_of(extent), first, count);
        *crcs = view->block_crcs + first;
    } else {
        *bytes = cairn_memory_parity(agent->memory, part_of(extent), slot - 1,
                                     view->stripes->geometry.m, first, count);
        *crcs = view->parity_crcs[slot - 1] + first;
    }
    return *bytes != NULL;
}

/* The lengths of all that is scrubbed now: the parts of the ready generation. */
static void
list_extents(const struct cairn_agent *agent, const struct cairn_core_view *core,
             uint64_t extents[EXTENTS])
{
    struct cairn_part_view view;

    memset(extents, 0, EXTENTS * sizeof *extents);
    for (uint32_t part = 0; part < CAIRN_PARTS_MAX; part++) {
        uint64_t *lengths = extents + part * PART_EXTENTS;

        if (core->ready_from_files || !find_part(agent, core->ready, part * PART_EXTENTS, &view))
            continue;
        lengths[0] = view.data_blocks;
        for (uint32_t slot = 0; slot < view.stripes->geometry.m; slot++)
            lengths[1 + slot] = view.stripes->parity_blocks[cairn_slot_stripe(
                &view.stripes->geometry, view.position, slot)];
    }
}

/* ---- damage ---- */

static enum scrub_fate
look_at(const struct cairn_agent *agent, struct cairn_generation_id generation, uint32_t extent,
        uint64_t unit)
{
    struct cairn_part_view view;
    const uint8_t *bytes;
    const uint64_t *crc;

    if (!find_part(agent, generation, extent, &view))
        return SCRUB_GONE;
    if (unit == RECORD)
        return cairn_memory_record_is_whole(agent->memory, part_of(extent)) ? SCRUB_GOOD
                                                                            : SCRUB_STILL;
    if (!find_blocks(agent, &view, extent, unit, 1, &bytes, &crc))
        return SCRUB_GONE;
    return cairn_crc64(0, bytes, CAIRN_BLOCK_BYTES) == *crc ? SCRUB_GOOD : SCRUB_STILL;
}

static void
found(struct cairn_agent *agent, const struct slice *slice, uint64_t unit)
{
    uint32_t extent = slice->run.extent;

    if (look_at(agent, slice->generation, extent, unit) != SCRUB_STILL ||
        !scrub_ledger_add(&agent->scrub->ledger, slice->generation, extent, unit))
        return;
    if (unit == RECORD)
        CAIRN_LOG_AT(ERROR, "scrub: damaged record step=%" PRIu64 " part=%u: it is fixed",
                     slice->generation.step, slice->part);
    else
        CAIRN_LOG_AT(ERROR,
                     "scrub: damaged block step=%" PRIu64 " part=%u area=%s block=%" PRIu64
                     ": the job's memory is verified and repaired",
                     slice->generation.step, slice->part, extent % PART_EXTENTS ? "parity" : "data",
                     unit);
}

/* Checks all listed damage, and has it repaired. */
static void
mind_damage(struct cairn_agent *agent, const struct cairn_core_view *core)
{
    struct scrub_ledger *ledger = &agent->scrub->ledger;
    struct cairn_event event = {.type = CAIRN_EVENT_OPERATOR,
                                .as.op = {.operation = CAIRN_OP_VERIFY}};
    bool tried = ledger->asked;
    uint32_t unrepairable = scrub_ledger_unrepairable(ledger);
    uint64_t repaired = ledger->repaired;

    if (core->busy || core->fenced)
        return; /* a repair runs */
    for (uint32_t i = ledger->count; i-- > 0;)
        scrub_ledger_look(ledger, i,
                          look_at(agent, ledger->list[i].generation, ledger->list[i].extent,
                                  ledger->list[i].unit),
                          tried);
    if (ledger->repaired > repaired)
        CAIRN_LOG_AT(INFO, "scrub: repaired damaged=%" PRIu64, ledger->repaired - repaired);
    if (scrub_ledger_unrepairable(ledger) > unrepairable)
        CAIRN_LOG_AT(ERROR, "scrub: %u damaged blocks of this node cannot be repaired",
                     scrub_ledger_unrepairable(ledger));
    scrub_ledger_tried(ledger);
    if (scrub_ledger_ask(ledger, agent_now_ns(agent)))
        agent_step(agent, &event, NULL);
}

/* ---- reading ---- */

static void
slice_run(struct cairn_job *job)
{
    struct slice *slice = (struct slice *)job;
    uint64_t begun_ns = cairn_clock_thread_cpu_ns();

    for (uint32_t i = 0; i < slice->run.count; i++)
        if (cairn_crc64(0, slice->bytes + (size_t)i * CAIRN_BLOCK_BYTES, CAIRN_BLOCK_BYTES) !=
            slice->crcs[i])
            slice->bad |= UINT64_C(1) << i;
    if (slice->check_record)
        slice->record_bad = !cairn_memory_record_is_whole(slice->agent->memory, slice->part);
    slice->cpu_ns = cairn_clock_thread_cpu_ns() - begun_ns;
}

static void
slice_done(struct cairn_job *job)
{
    struct slice *slice = (struct slice *)job;
    struct cairn_agent *agent = slice->agent;
    struct scrub_state *state = agent->scrub;

    cairn_memory_unhold(agent->memory, slice->part);
    scrub_course_took(&state->course, slice->cpu_ns, agent_now_ns(agent));
    state->read_bytes += (uint64_t)slice->run.count * CAIRN_BLOCK_BYTES;
    for (uint32_t i = 0; i < slice->run.count; i++)
        if ((slice->bad >> i) & 1)
            found(agent, slice, slice->run.first + i);
    if (slice->record_bad)
        found(agent, slice, RECORD);
    free(slice);
    if (!agent->stopping)
        cairn_timer_start(agent->loop, &state->timer, 0);
}

/* False: it cannot be read now. */
static bool
read_run(struct cairn_agent *agent, const struct cairn_core_view *core, const struct scrub_run *run)
{
    struct cairn_part_view view;
    struct slice *slice = calloc(1, sizeof *slice);
    const uint64_t *crcs;

    if (!slice || !find_part(agent, core->ready, run->extent, &view) ||
        !find_blocks(agent, &view, run->extent, run->first, run->count, &slice->bytes, &crcs))
        goto failed;
    slice->job = (struct cairn_job){.run = slice_run, .done = slice_done};
    slice->agent = agent;
    slice->generation = core->ready;
    slice->part = part_of(run->extent);
    slice->run = *run;
    slice->check_record = run->extent % PART_EXTENTS == 0 && run->first == 0;
    memcpy(slice->crcs, crcs, run->count * sizeof *crcs);
    if (cairn_workers_submit(agent->workers, &slice->job) != CAIRN_OK)
        goto failed;
    cairn_memory_hold(agent->memory, slice->part);
    return true;
failed:
    free(slice);
    return false;
}

static void
on_timer(void *context)
{
    struct cairn_agent *agent = context;
    struct scrub_state *state = agent->scrub;
    uint64_t extents[EXTENTS], now_ns = agent_now_ns(agent), due_ns = now_ns + CAIRN_NS_PER_S;
    struct cairn_core_view core;
    struct scrub_run run;

    cairn_core_look(agent->core, &core);
    if (state->ledger.count > 0 || state->ledger.asked) {
        mind_damage(agent, &core);
        cairn_core_look(agent->core, &core);
        due_ns = now_ns + look_ns;
    } else if (agent->config.scrub_interval_ms > 0 && !core.busy && !core.fenced) {
        list_extents(agent, &core, extents);
        if (scrub_course_next(&state->course, extents, EXTENTS, SLICE_BLOCKS,
                              agent->config.scrub_interval_ms * CAIRN_NS_PER_MS, now_ns, &run,
                              &due_ns)) {
            if (read_run(agent, &core, &run))
                return; /* its end starts the timer */
            scrub_course_took(&state->course, 0, now_ns);
            due_ns = now_ns + look_ns;
        }
    }
    if (due_ns > now_ns + CAIRN_NS_PER_S) /* the interval may be changed, and parts come and go */
        due_ns = now_ns + CAIRN_NS_PER_S;
    cairn_timer_start(agent->loop, &state->timer, due_ns);
}

/* ---- the service ---- */

cairn_err
scrub_open(struct cairn_agent *agent)
{
    struct scrub_state *state = calloc(1, sizeof *state);

    if (!state)
        return CAIRN_NOMEM;
    agent->scrub = state;
    scrub_course_init(&state->course, agent_now_ns(agent));
    cairn_timer_init(&state->timer, on_timer, agent);
    cairn_timer_start(agent->loop, &state->timer, 0);
    return CAIRN_OK;
}

void
scrub_close(struct cairn_agent *agent)
{
    if (!agent->scrub)
        return;
    cairn_timer_stop(agent->loop, &agent->scrub->timer);
    free(agent->scrub);
    agent->scrub = NULL;
}

void
scrub_read(const struct cairn_agent *agent, struct scrub_report *out)
{
    const struct scrub_state *state = agent->scrub;
    uint64_t now_ns = agent_now_ns(agent);

    *out = (struct scrub_report){.pass_age_ns = UINT64_MAX};
    if (!state)
        return;
    out->read_bytes = state->read_bytes;
    out->passes = state->course.passes;
    if (state->course.passes)
        out->pass_age_ns = now_ns - state->course.ended_ns;
    out->found = state->ledger.found;
    out->repaired = state->ledger.repaired;
    out->unrepairable = scrub_ledger_unrepairable(&state->ledger);
}
