/* agent/agent.c - one agent's life: open everything, run the loop, close everything. */
#include "agent/agent.h"

#include "agent/dispatch.h"
#include "agent/process/agent_state.h"
#include "agent/process/codes.h"
#include "agent/process/fleet.h"
#include "agent/process/keeper.h"
#include "agent/process/keeping.h"
#include "agent/process/mail.h"
#include "agent/process/memory.h"
#include "agent/process/part_file.h"
#include "agent/process/recorder.h"
#include "agent/process/reload.h"
#include "agent/process/scratch.h"
#include "agent/process/session_socket.h"
#include "agent/process/sizes.h"
#include "agent/process/step.h"
#include "agent/service/drill.h"
#include "agent/service/enforcing.h"
#include "agent/service/fetch.h"
#include "agent/service/history.h"
#include "agent/service/local.h"
#include "agent/service/operator.h"
#include "agent/service/placing.h"
#include "agent/service/probe.h"
#include "agent/service/replanning.h"
#include "agent/service/scrub.h"
#include "agent/service/scrub_files.h"
#include "agent/service/scrub_spilled.h"
#include "agent/service/spill.h"
#include "agent/service/timing.h"
#include "base/crc.h"
#include "base/log.h"
#include "base/wire.h"
#include "base/worker.h"
#include "snapshot/catalog.h"
#include "snapshot/copy.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { REBUILD_NS_PER_BYTE = 8 };

/* ---- timers and signals ---- */

static void
on_tick(void *context)
{
    struct cairn_agent *agent = context;
    struct cairn_event event = {.type = CAIRN_EVENT_TICK};

    agent_step(agent, &event, NULL);
    fetch_tick(agent);
    spill_tick(agent);
    local_tick(agent);
    drill_tick(agent);
    probe_tick(agent);
    operator_tick(agent);
    mail_tick(agent);
    history_tick(agent);
    recorder_tick(agent);
    mail_deliver_self(agent);
    keeping_tick(agent);
    sessions_tick(agent);
    if (!agent->stopping)
        cairn_timer_start(agent->loop, &agent->tick_timer, cairn_core_deadline(agent->core));
}

static void
on_signal(void *context, int signal_number)
{
    struct cairn_agent *agent = context;

    if (agent->unkept)
        CAIRN_LOG_AT(WARN,
                     "agent: stops signal=%d; no keeper holds its memory, which is gone with it",
                     signal_number);
    else
        CAIRN_LOG_AT(INFO, "agent: stops signal=%d; its memory stays with the keeper",
                     signal_number);
    recorder_stopped(agent, signal_number == SIGTERM ? "SIGTERM" : "SIGINT");
    agent->stopping = true;
    cairn_loop_stop(agent->loop);
}

static void
on_reload(void *context, int signal_number)
{
    (void)signal_number;
    reload_start(context);
}

/* ---- opening ---- */

static cairn_err
open_memory(struct cairn_agent *agent, struct cairn_sizes *sizes)
{
    const struct cairn_config *config = &agent->config;
    struct cairn_memory_options options = {.slots = config->slots,
                                           .parts = CAIRN_PARTS_MAX,
                                           .hugepages =
                                               config->hugepages == CAIRN_CONFIG_HUGEPAGES_AUTO,
                                           .keeper = agent->keeper};
    char report[1024] = "";
    bool adopted = false;
    cairn_err err;

    err = cairn_sizes_of(config, sizes);
    if (err)
        return err;
    options.slot_blocks = sizes->slot_blocks;
    options.parity_blocks = sizes->parity_blocks;
    options.data_count = sizes->data_count;
    options.parity_count = sizes->parity_count;
    options.record_bytes = sizes->record_bytes;
    options.ring_bytes = sizes->ring_bytes;
    agent->regions.layout_bytes_max = sizes->layout_bytes_max;
    agent->mail.seal_bytes_max = sizes->seal_bytes_max;
    err = cairn_memory_open(&options, &agent->memory, &adopted, report, sizeof report);
    if (err) {
        CAIRN_LOG_AT(ERROR, "memory: cannot reserve: %s", report[0] ? report : cairn_err_text(err));
        return err;
    }
    agent->memory_adopted = adopted;
    agent->parity_blocks = sizes->parity_blocks;
    if (!adopted && config->local_dir[0])
        part_files_load(config->local_dir, agent->job_id, agent->memory, config->slots,
                        sizes->parity_blocks, &agent->local_loaded);
    err = ring_open(&agent->ring, sizes->ring_lines, sizes->ring_bytes);
    if (err) {
        CAIRN_LOG_AT(ERROR, "memory: cannot reserve room for parity on its way: %s",
                     cairn_err_text(err));
        return err;
    }
    CAIRN_LOG_AT(INFO, "memory: %s reserved_bytes=%" PRIu64 " slots=%u state_bytes=%" PRIu64,
                 adopted ? "adopted from the keeper" : "reserved",
                 cairn_memory_reserved_bytes(agent->memory), config->slots, config->state_bytes);
    return CAIRN_OK;
}

static cairn_err
open_catalog(struct cairn_agent *agent)
{
    char path[CAIRN_CONFIG_PATH_BYTES_MAX + 16];
    struct stat status;

    if (mkdir(agent->config.dir, 0700) != 0 && errno != EEXIST) {
        CAIRN_LOG_AT(ERROR,
                     "agent: cannot make the state directory %s: %s; make the folder above it, "
                     "writable for this "
                     "user, or set `dir` to another path",
                     agent->config.dir, strerror(errno));
        return CAIRN_IO;
    }
    if (stat(agent->config.dir, &status) == 0 && !S_ISDIR(status.st_mode)) {
        CAIRN_LOG_AT(ERROR, "agent: dir: %s is not a directory; set `dir` to another path",
                     agent->config.dir);
        return CAIRN_CONFIG;
    }
    snprintf(path, sizeof path, "%s/catalog", agent->config.dir);
    return cairn_catalog_open(&cairn_store_rocksdb, path, &agent->catalog);
}

/*
 * Peers must see each start of this agent as a newer one, even if the wall clock was set back. Runs
 * and requests are numbered by the incarnation and a counter, so there is room between two.
 */
static cairn_err
take_incarnation(struct cairn_agent *agent)
{
    uint8_t *stored = NULL, bytes[8];
    size_t stored_len = 0;
    struct cairn_reader reader;
    struct cairn_writer writer;
    uint64_t before;
    cairn_err err = cairn_catalog_get(agent->catalog, CAIRN_TABLE_EPOCHS, "incarnation", 11,
                                      &stored, &stored_len);

    if (err && err != CAIRN_NOT_FOUND)
        return err;
    cairn_reader_init(&reader, stored, stored_len);
    before = cairn_read_u64(&reader);
    if (!err && !reader.failed && agent->incarnation < before + CAIRN_INCARNATION_STEP)
        agent->incarnation = before + CAIRN_INCARNATION_STEP;
    free(stored);
    cairn_writer_init(&writer, bytes, sizeof bytes);
    cairn_write_u64(&writer, agent->incarnation);
    return cairn_catalog_put(agent->catalog, CAIRN_TABLE_EPOCHS, "incarnation", 11, bytes,
                             sizeof bytes);
}

/* How long a repair waits without progress: the time a slow worker needs to compare a whole part.
 * An agent with hanging workers costs that long once. */
static uint64_t
rebuild_timeout_ns(const struct cairn_config *config)
{
    return 30 * CAIRN_NS_PER_S + REBUILD_NS_PER_BYTE * config->state_bytes;
}

static void
core_options(struct cairn_agent *agent, const struct cairn_sizes *sizes,
             struct cairn_core_options *out)
{
    const struct cairn_config *config = &agent->config;

    for (uint32_t i = 0; i < config->node_count; i++) {
        agent->domains[i] = config->nodes[i].domain[0] ? config->nodes[i].domain : NULL;
        agent->spares[i] = config->nodes[i].spare;
    }
    *out = (struct cairn_core_options){.self = config->node,
                                       .agent_count = config->node_count,
                                       .domains = agent->domains,
                                       .spares = agent->spares,
                                       .parity = config->parity,
                                       .group_size = cairn_sizes_group(config),
                                       .slots = config->slots,
                                       .slot_blocks = sizes->slot_blocks,
                                       .parity_blocks = sizes->parity_blocks,
                                       .ring_lines = sizes->ring_lines,
                                       .every_steps = config->snapshot_every_steps,
                                       .incarnation = agent->incarnation,
                                       .heartbeat_interval_ns =
                                           config->heartbeat_interval_ms * CAIRN_NS_PER_MS,
                                       .dead_after_ns = config->dead_after_ms * CAIRN_NS_PER_MS,
                                       .repair_after_ns = config->repair_after_ms * CAIRN_NS_PER_MS,
                                       .claim_timeout_ns = config->dead_after_ms * CAIRN_NS_PER_MS,
                                       .rebuild_timeout_ns = rebuild_timeout_ns(config),
                                       .memory_is_new = !agent->memory_adopted};
}

/* Loads the records of all parts. CAIRN_VERSION: another version of Cairn wrote one, which may be
 * of a committed generation. A damaged one counts as lost. */
static cairn_err
load_records(struct cairn_agent *agent, uint8_t *buffers[CAIRN_PARTS_MAX],
             struct cairn_bytes records[CAIRN_PARTS_MAX])
{
    static const uint8_t damaged[] = "damaged";

    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        cairn_err err = cairn_memory_record_load(agent->memory, i, &buffers[i], &records[i].len);

        records[i].bytes = buffers[i];
        if (err) {
            CAIRN_LOG_AT(ERROR,
                         "memory: the record of slot %u is damaged: its generation counts as lost "
                         "here",
                         i);
            records[i] = (struct cairn_bytes){damaged, sizeof damaged}; /* the core must know */
        } else if (cairn_core_record_is_foreign(records[i])) {
            return CAIRN_VERSION;
        }
    }
    return CAIRN_OK;
}

static void
log_core_error(cairn_err err)
{
    if (err == CAIRN_VERSION)
        CAIRN_LOG_AT(ERROR,
                     "agent: another version of cairn wrote what is held here; run that "
                     "version, or end this node's keeper process (`cairn keeper`) and remove "
                     "its `dir` to give up the generations that it holds");
    else
        CAIRN_LOG_AT(ERROR, "agent: the stored epoch cannot be used: %s", cairn_err_text(err));
}

static cairn_err
open_core(struct cairn_agent *agent, const struct cairn_sizes *sizes)
{
    struct cairn_bytes records[CAIRN_PARTS_MAX] = {{0}};
    uint8_t *buffers[CAIRN_PARTS_MAX] = {0};
    struct cairn_core_options options;
    struct cairn_bytes epoch = {0};
    uint8_t *epoch_bytes = NULL;
    uint32_t dropped = 0;
    cairn_err err;

    agent->domains = calloc(agent->config.node_count, sizeof *agent->domains);
    agent->spares = calloc(agent->config.node_count, sizeof *agent->spares);
    if (!agent->domains || !agent->spares)
        return CAIRN_NOMEM;
    err =
        cairn_catalog_get(agent->catalog, CAIRN_TABLE_EPOCHS, "epoch", 5, &epoch_bytes, &epoch.len);
    if (err == CAIRN_NOT_FOUND)
        err = CAIRN_OK;
    epoch.bytes = epoch_bytes;
    if (!err)
        err = load_records(agent, buffers, records);
    core_options(agent, sizes, &options);
    if (!err)
        err = cairn_core_create(&options, agent_now_ns(agent), epoch, records, &dropped,
                                &agent->core);
    if (err)
        log_core_error(err);
    else if (dropped)
        CAIRN_LOG_AT(WARN, "memory: %u records are damaged: their generations count as lost here",
                     dropped);
    for (uint32_t i = agent->config.slots; !err && i < CAIRN_PARTS_MAX; i++) {
        struct cairn_part_view view;

        if (!cairn_core_look_part(agent->core, i, &view) || view.state == CAIRN_PART_FREE)
            cairn_memory_free(agent->memory, i); /* adopted, and unknown to the core */
    }
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        free(buffers[i]);
    free(epoch_bytes);
    return err;
}

/* Trainers copy with the kernel that this agent uses. */
static cairn_err
choose_copy(const struct cairn_config *config)
{
    bool automatic = strcmp(config->copy_kernel, "auto") == 0;
    cairn_err err = CAIRN_OK;

    if (!automatic && !cairn_copy_use(config->copy_kernel)) {
        CAIRN_LOG_AT(
            WARN,
            "copy: this processor has no kernel %s, so the fastest of those that it has is "
            "used; `cairn doctor` lists them",
            config->copy_kernel);
        automatic = true;
    }
    if (automatic)
        err = cairn_copy_choose(NULL);
    if (!err)
        CAIRN_LOG_AT(INFO, "copy: kernel=%s chosen_by=%s", cairn_copy_name(),
                     automatic ? "measuring" : "configuration");
    return err;
}

static cairn_err
open_all(struct cairn_agent *agent)
{
    struct cairn_sizes sizes;
    bool was_marked = false;
    cairn_err err;

    err = sessions_lock(agent);
    if (!err)
        err = choose_copy(&agent->config);
    if (!err)
        err = cairn_loop_create(NULL, &agent->loop);
    if (!err)
        err = cairn_loop_signal_add(agent->loop, SIGTERM, on_signal, agent);
    if (!err)
        err = cairn_loop_signal_add(agent->loop, SIGINT, on_signal, agent);
    if (!err)
        err = cairn_loop_signal_add(agent->loop, SIGHUP, on_reload, agent);
    if (!err)
        err = open_catalog(agent);
    if (!err)
        err = take_incarnation(agent);
    if (!err)
        poison_open(agent);
    if (!err)
        err = recorder_open(agent);
    if (!err)
        err = keeping_open(agent);
    if (!err)
        err = keeping_mark_memory(agent, &was_marked);
    if (!err)
        err = open_memory(agent, &sizes);
    if (!err && agent->memory_adopted && !was_marked)
        err = keeping_memory_is_known(agent);
    agent->memory_adopted &= !was_marked;
    if (!err)
        keeping_started(agent);
    if (!err) {
        scratch_open(agent, agent->config.parity);
        err = open_core(agent, &sizes);
    }
    if (!err) {
        fleet_activated(agent);
        err = agent->stopping ? CAIRN_CONFIG : CAIRN_OK;
    }
    if (!err)
        err = cairn_workers_start(agent->loop, agent->config.workers, JOBS_MAX, &agent->workers);
    if (!err)
        err = mail_open(agent);
    if (err == CAIRN_IO && agent->workers && !agent->transport)
        agent->exit_code = 69; /* our address: what our peers would reach us at */
    if (!err)
        err = fetch_open(agent);
    if (!err)
        err = spill_open(agent);
    if (!err)
        err = local_open(agent);
    if (!err)
        err = scrub_open(agent);
    if (!err)
        err = scrub_files_open(agent);
    if (!err)
        err = scrub_spilled_open(agent);
    if (!err)
        err = timing_open(agent);
    if (!err)
        err = replanning_open(agent);
    if (!err)
        err = placing_open(agent);
    if (!err)
        err = enforcing_open(agent);
    if (!err)
        err = history_open(agent);
    if (!err)
        err = sessions_open(agent);
    if (!err)
        recorder_started(agent);
    return err;
}

static void
close_all(struct cairn_agent *agent)
{
    agent->stopping = true;
    sessions_close(agent);
    operator_close(agent);
    history_close(agent);
    enforcing_close(agent);
    placing_close(agent);
    replanning_close(agent);
    timing_close(agent);
    scrub_files_close(agent);
    scrub_spilled_stop(agent);
    local_close(agent);
    spill_close(agent);
    scrub_spilled_close(agent);
    fetch_close(agent);
    if (agent->memory)
        cairn_memory_stop_moves(agent->memory);
    if (agent->workers)
        cairn_workers_stop(agent->workers);
    scrub_close(agent);
    drill_close(agent);
    probe_close(agent);
    keeping_close(agent);
    mail_close(agent);
    recorder_close(agent);
    cairn_core_destroy(agent->core);
    free(agent->domains);
    free(agent->spares);
    step_close(agent);
    codes_close(&agent->codes);
    scratch_close(agent);
    ring_close(&agent->ring);
    cairn_memory_close(agent->memory);
    cairn_keeper_close(agent->keeper);
    cairn_catalog_close(agent->catalog);
    if (agent->loop)
        cairn_timer_stop(agent->loop, &agent->tick_timer);
    cairn_loop_destroy(agent->loop);
    sessions_unlock(agent);
}

static int
exit_code_of(cairn_err err)
{
    switch (err) {
    case CAIRN_OK:
        return 0;
    case CAIRN_CONFIG:
    case CAIRN_INVAL:
        return 78;
    case CAIRN_DENIED:
        return 77;
    case CAIRN_AGAIN:
        return 75;
    case CAIRN_PEER:
        return 69;
    case CAIRN_IO:
    case CAIRN_FULL:
    case CAIRN_CORRUPT:
        return 74;
    default:
        return 1;
    }
}

int
cairn_agent_run(const struct cairn_config *config, const char *executable)
{
    struct cairn_agent *agent = calloc(1, sizeof *agent);
    char tag[32];
    cairn_err err;
    int exit_code;

    if (!agent)
        return 1;
    agent->config = *config; /* nodes stay the caller's */
    agent->handlers = &cairn_agent_handlers;
    agent->socket.listen_fd = -1;
    agent->socket.lock_fd = -1;
    agent->clock = cairn_clock_system();
    agent->started_wall_ns = cairn_clock_wall_ns(&agent->clock);
    agent->incarnation = agent->started_wall_ns;
    agent->job_id = cairn_crc64(0, config->job, strlen(config->job));
    snprintf(agent->executable, sizeof agent->executable, "%s", executable);
    snprintf(tag, sizeof tag, "node %u", config->node);
    cairn_log_tag(tag);
    signal(SIGPIPE, SIG_IGN);
    err = open_all(agent);
    if (err) {
        exit_code = agent->exit_code ? agent->exit_code : exit_code_of(err);
        CAIRN_LOG_AT(
            ERROR, "agent: cannot start: %s",
            exit_code == 69
                ? "it cannot listen at its address; end what uses it, or mend `node` and `nodes`"
                : cairn_err_text(err));
        close_all(agent);
        free(agent);
        return exit_code;
    }
    cairn_timer_init(&agent->tick_timer, on_tick, agent);
    cairn_timer_start(agent->loop, &agent->tick_timer, 0);
    CAIRN_LOG_AT(INFO, "agent: serves job=%s node=%u of %u socket=%s%s", config->job, config->node,
                 config->node_count, config->socket,
                 cairn_config_has_credentials(config) ? "" : " (no key: loopback only)");
    err = cairn_loop_run(agent->loop);
    exit_code = agent->exit_code ? agent->exit_code : exit_code_of(err);
    close_all(agent);
    free(agent);
    return exit_code;
}
