/*
 * client/snapshot.c - begin and fence, the capture between them, and the reports to the agent.
 *
 * Invariants:
 *   1. The engine is busy from a GRANT that was accepted until client_capture_ended; the tensors
 *      and the slot are not touched otherwise.
 *   2. A fence returns CAIRN_OK of a running snapshot only when the watermark has passed the slice,
 *      a fence of all only when the copy has ended.
 *      Until engine_started the watermark is that of the capture before, and means nothing.
 *   3. DONE is queued only after every PIECE, and only when the copy ended with CAIRN_OK and nobody
 *      gave the snapshot up; in every other case CANCEL, once the copy has ended.
 *   4. Of a held snapshot DONE is queued only after the trainer's confirmation. If the trainer
 *      refuses it or never confirms, it ends in CANCEL.
 */
#include "cairn/client.h"

#include "client/state.h"

#include "base/array.h"
#include "base/clock.h"
#include "base/limits.h"

#include <stdio.h>
#include <string.h>

/* From the last try to stop a copy to the fence's deadline: a copy on the host stops in one. */
#define STOP_MARGIN_NS (100 * CAIRN_NS_PER_MS)

/*
 * Pieces are reported after about a millisecond of copying. If training fills all cores, each
 * report costs it a core twice, for our service thread and for the agent. Earlier reports do not
 * help folding: it reads from memory either way, not from a cache.
 */
#define REPORT_BLOCKS 128

static void
count_outcome(struct cairn_client *client, cairn_err result)
{
    if (result == CAIRN_OK) {
        client->stats.snapshots_captured++;
        client->stats.captured_bytes += client->tensors->share_bytes;
    } else if (result == CAIRN_AGAIN) {
        client->stats.snapshots_skipped++;
    } else {
        client->stats.snapshots_failed++;
    }
}

static void
end_snapshot(struct cairn_client *client, cairn_err result)
{
    client->snapshot.state = CLIENT_SNAPSHOT_ENDED;
    client->snapshot.result = result;
    count_outcome(client, result);
    pthread_cond_broadcast(&client->changed);
}

void
client_give_up(struct cairn_client *client, cairn_err err, enum cairn_session_reason reason)
{
    struct client_snapshot *snapshot = &client->snapshot;

    if (snapshot->state == CLIENT_SNAPSHOT_COPYING && !snapshot->stop_err) {
        snapshot->stop_err = err;
        snapshot->stop_reason = reason;
        client_wake(client);
    }
    if (snapshot->state != CLIENT_SNAPSHOT_ASKED)
        return;
    if (!snapshot->begin_wanted && client->link == CLIENT_LINK_ATTACHED) {
        struct cairn_session_cancel cancel = {snapshot->step, reason};

        if (cairn_session_put_cancel(&client->writer, &cancel))
            client->broken = true;
        client_wake(client);
    }
    snapshot->begin_wanted = false;
    end_snapshot(client, err);
}

/* ---- the engine's callbacks, on its own thread ---- */

static void
blocks_captured(void *context, uint64_t first_block, uint32_t count, const uint64_t *crcs)
{
    struct cairn_client *client = context;

    pthread_mutex_lock(&client->lock);
    memcpy(client->tensors->crcs + first_block, crcs, count * sizeof *crcs);
    client->report.ready_blocks = first_block + count;
    if (client->report.ready_blocks - client->report.sent_blocks >= REPORT_BLOCKS)
        client_wake(client);
    pthread_mutex_unlock(&client->lock);
}

/* Also called by the service thread for a capture that could not be started. */
static void
capture_ended(void *context, cairn_err err)
{
    struct cairn_client *client = context;
    struct client_snapshot *snapshot = &client->snapshot;
    struct client_report *report = &client->report;
    bool say_failed = false, say_works = false, say_poisoned = false;
    char name[CAIRN_NAME_BYTES_MAX];
    uint64_t step;

    pthread_mutex_lock(&client->lock);
    if (err == CAIRN_DEVICE && client->tensors->device_count)
        say_failed = client_devices_fail(client);
    pthread_mutex_unlock(&client->lock);
    if (say_failed) /* before a fence returns that error */
        client_devices_say_failed(client);
    pthread_mutex_lock(&client->lock);
    step = report->generation.step;
    client->engine_busy = false;
    if (err == CAIRN_OK && report->ready_blocks != client->tensors->block_count)
        err = CAIRN_INTERNAL;
    if (snapshot->stop_err) /* the copy may have reached its end all the same: it was given up */
        err = snapshot->stop_err;
    if (err == CAIRN_OK && client->tensors->device_count)
        say_works = client_devices_work(client);
    if (err == CAIRN_OK) {
        client->stats.capture_ns += client_now_ns() - client->capture_start_ns;
        say_poisoned = client_poison_find(client, name);
    }
    report->ended = true;
    report->result = err;
    report->reason = snapshot->stop_err ? snapshot->stop_reason : CAIRN_REASON_DEVICE;
    if (snapshot->state == CLIENT_SNAPSHOT_COPYING)
        end_snapshot(client, err);
    else
        pthread_cond_broadcast(&client->changed);
    client_wake(client);
    pthread_mutex_unlock(&client->lock);
    if (say_works)
        client_say(client, CAIRN_LOG_WARN,
                   "client: the device answers again, and a snapshot was copied");
    if (say_poisoned)
        client_poison_say(client, step, name);
}

/* ---- what the agent hears. Lock held, attached ---- */

/* Queues the next piece; false when there is none or no room. */
static bool
put_piece(struct cairn_client *client)
{
    struct client_report *report = &client->report;
    uint64_t waiting = report->ready_blocks - report->sent_blocks;
    struct cairn_session_piece *piece = &client->piece;
    cairn_err err;

    if (waiting == 0 || cairn_session_writer_queued(&client->writer) >= CLIENT_QUEUE_BYTES / 2)
        return false;
    piece->generation = report->generation;
    piece->first_block = report->sent_blocks;
    piece->count = waiting < CAIRN_SESSION_PIECE_BLOCKS_MAX ? (uint32_t)waiting
                                                            : CAIRN_SESSION_PIECE_BLOCKS_MAX;
    memcpy(piece->crcs, client->tensors->crcs + report->sent_blocks,
           piece->count * sizeof *piece->crcs);
    err = cairn_session_put_piece(&client->writer, piece);
    if (err && err != CAIRN_AGAIN)
        client->broken = true;
    if (err)
        return false;
    report->sent_blocks += piece->count;
    return true;
}

static cairn_err
put_end(struct cairn_client *client)
{
    const struct client_report *report = &client->report;

    bool is_poisoned = report->poisoned || report->rejected;

    if (report->result == CAIRN_OK && is_poisoned && client->takes_poison)
        return client_put_poison(client);
    if (report->result == CAIRN_OK && !is_poisoned) {
        struct cairn_session_done done = {report->generation};

        return cairn_session_put_done(&client->writer, &done);
    }
    struct cairn_session_cancel cancel = {report->generation.step,
                                          report->result ? report->reason : CAIRN_REASON_OTHER};

    return cairn_session_put_cancel(&client->writer, &cancel);
}

void
client_report_pump(struct cairn_client *client)
{
    struct client_report *report = &client->report;
    struct client_snapshot *snapshot = &client->snapshot;
    cairn_err err;

    while (report->active && (!report->ended || report->result == CAIRN_OK) && put_piece(client))
        ;
    if (report->active && report->ended &&
        (report->result != CAIRN_OK ||
         (!report->held && report->sent_blocks == report->ready_blocks))) {
        err = put_end(client);
        if (err && err != CAIRN_AGAIN)
            client->broken = true;
        if (!err) {
            report->active = false;
            if (report->result == CAIRN_OK && !report->poisoned && !report->rejected)
                client_poison_learn(client);
            pthread_cond_broadcast(&client->changed);
        }
    }
    if (!report->active && snapshot->begin_wanted && client->registration == CLIENT_REGISTER_DONE) {
        struct cairn_session_begin begin = {snapshot->step, snapshot->last};

        err = cairn_session_put_begin(&client->writer, &begin);
        if (err && err != CAIRN_AGAIN)
            client->broken = true;
        if (!err)
            snapshot->begin_wanted = false;
    }
}

/* ---- what the agent says. Service thread ---- */

/* True for the answer to a step that was given up before (by a fence, by register). */
static bool
is_awaited(const struct cairn_client *client, uint64_t step)
{
    return client->snapshot.state == CLIENT_SNAPSHOT_ASKED && !client->snapshot.begin_wanted &&
           client->snapshot.step == step;
}

/* Makes an awaited grant a job. Lock held. */
static void
accept_grant(struct cairn_client *client, const struct cairn_session_grant *grant,
             struct cairn_capture_job *job)
{
    const struct client_tensors *tensors = client->tensors;

    client->said_silent = false;
    client->snapshot.state = CLIENT_SNAPSHOT_COPYING;
    client->snapshot.stop_err = CAIRN_OK;
    client->engine_busy = true;
    client->capture_start_ns = client_now_ns();
    memset(&client->report, 0, sizeof client->report);
    client->report.active = true;
    client->report.generation = grant->generation;
    client->report.held = client->snapshot.held;
    for (uint32_t r = 0; r < tensors->run_count; r++)
        atomic_store_explicit(&tensors->failing[r], false, memory_order_relaxed);
    memset(job, 0, sizeof *job);
    job->runs = tensors->runs;
    job->run_count = tensors->run_count;
    job->failing = tensors->failing;
    job->region = client->slots[grant->slot].region;
    job->region_is_new = !client->slots[grant->slot].is_written;
    client->slots[grant->slot].is_written = true;
    job->region_bytes = tensors->region_bytes;
    if (client->snapshot.last) /* training stands still */
        job->helpers = client_core_share(client) - 1;
    job->on_blocks = blocks_captured;
    job->on_done = capture_ended;
    job->context = client;
}

cairn_err
client_take_grant(struct cairn_client *client, const struct cairn_session_grant *grant)
{
    struct cairn_capture_job job;
    bool awaited, possible;
    cairn_err opened = CAIRN_OK, err;

    if (grant->slot < client->slot_count) /* only this thread changes it */
        opened = client_slot_open(client, grant->slot);
    pthread_mutex_lock(&client->lock);
    awaited = is_awaited(client, grant->step);
    possible = awaited && grant->slot < client->slot_count;
    if (possible)
        accept_grant(client, grant, &job);
    pthread_mutex_unlock(&client->lock);
    if (!possible)
        return awaited ? CAIRN_CORRUPT : CAIRN_OK;
    if (opened) {
        capture_ended(client, CAIRN_DEVICE);
        return CAIRN_OK;
    }
    if (job.region_bytes == 0) { /* this rank captures nothing */
        capture_ended(client, CAIRN_OK);
        return CAIRN_OK;
    }
    /* The last one has called capture_ended, and may be a few instructions from its own end. */
    err = cairn_capture_finish(client->capture, client_now_ns() + CAIRN_NS_PER_S);
    if (err != CAIRN_TIMEOUT)
        err = cairn_capture_start(client->capture, &job);
    if (err) {
        client_say(client, err == CAIRN_DEVICE ? CAIRN_LOG_DEBUG : CAIRN_LOG_WARN,
                   "client: capture of step=%llu could not start: %s",
                   (unsigned long long)grant->step, cairn_err_text(err));
        capture_ended(client, err == CAIRN_TIMEOUT ? CAIRN_TIMEOUT : CAIRN_DEVICE);
        return CAIRN_OK;
    }
    pthread_mutex_lock(&client->lock);
    client->engine_started = true;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
    client_slots_map_next(client);
    return CAIRN_OK;
}

void
client_take_skip(struct cairn_client *client, const struct cairn_session_skip *skip)
{
    struct client_snapshot *snapshot = &client->snapshot;
    bool mine, say_it;

    pthread_mutex_lock(&client->lock);
    mine = is_awaited(client, skip->step);
    /* late or not, it is so */
    if (skip->reason != CAIRN_REASON_NOT_DUE)
        memcpy(client->skip_text, skip->text, sizeof client->skip_text);
    say_it = skip->reason == CAIRN_REASON_OTHER && skip->text[0] && !client->said_refused;
    client->said_refused |= say_it;
    if (mine) {
        client->said_silent = false;
        if (skip->reason == CAIRN_REASON_NOT_DUE) { /* as it should be: nothing was missed */
            snapshot->state = CLIENT_SNAPSHOT_NONE;
            pthread_cond_broadcast(&client->changed);
        } else {
            end_snapshot(client, CAIRN_AGAIN);
        }
    }
    pthread_mutex_unlock(&client->lock);
    if (say_it)
        client_say(client, CAIRN_LOG_WARN, "client: this training is not protected: %s",
                   skip->text);
    else if (mine && skip->reason != CAIRN_REASON_NOT_DUE)
        client_say(client, CAIRN_LOG_DEBUG,
                   "client: snapshot of step=%llu skipped by the agent: %s",
                   (unsigned long long)skip->step, skip->text);
}

void
client_take_drop(struct cairn_client *client, const struct cairn_session_drop *drop)
{
    bool mine, poisoned;

    pthread_mutex_lock(&client->lock);
    mine = cairn_generation_id_compare(client->report.generation, drop->generation) == 0;
    poisoned = mine && !client->report.active &&
               (drop->reason == CAIRN_REASON_POISONED || drop->reason == CAIRN_REASON_STOP);
    mine = mine && client->report.active;
    if (poisoned) { /* the answer to POISON: it is not kept */
        client->report.result = CAIRN_CORRUPT;
        client->stop_wanted |= drop->reason == CAIRN_REASON_STOP;
        pthread_cond_broadcast(&client->changed);
    }
    if (mine &&
        client->report.ended) { /* copied, but the pieces are not all sent: send none of them */
        client->report.result = CAIRN_AGAIN;
        client->report.reason = drop->reason;
    } else if (mine) {
        client_give_up(client, CAIRN_AGAIN, (enum cairn_session_reason)drop->reason);
    }
    pthread_mutex_unlock(&client->lock);
    if (mine)
        client_say(client, CAIRN_LOG_INFO, "client: the agent gave up the snapshot of step=%llu",
                   (unsigned long long)drop->generation.step);
}

void
client_snapshot_detach(struct cairn_client *client)
{
    client->report.active = false;
    if (client->snapshot.state == CLIENT_SNAPSHOT_ASKED) {
        client->snapshot.begin_wanted = false;
        end_snapshot(client, CAIRN_AGAIN);
    }
}

/* ---- the trainer's calls ---- */

/* A copy that ended well but must not count: the agent hears CANCEL. Lock held. */
static void
refuse_copied(struct cairn_client *client)
{
    struct client_report *report = &client->report;

    report->held = false;
    report->result = CAIRN_AGAIN;
    report->reason = CAIRN_REASON_OTHER;
    client->stats.snapshots_captured--;
    client->stats.captured_bytes -= client->tensors->share_bytes;
    client->stats.snapshots_failed++;
    client_wake(client);
}

static bool
is_held_copy(const struct client_report *report)
{
    return report->active && report->held && report->ended && report->result == CAIRN_OK;
}

/* The snapshot before is finished with, and an agent is there to take one. Lock held. */
static bool
may_begin(const struct cairn_client *client)
{
    enum client_snapshot_state state = client->snapshot.state;

    return state != CLIENT_SNAPSHOT_ASKED && state != CLIENT_SNAPSHOT_COPYING &&
           !client->engine_busy && client->link == CLIENT_LINK_ATTACHED &&
           client->registration == CLIENT_REGISTER_DONE && !client->device_failed;
}

static cairn_err
begin(struct cairn_client *client, uint64_t step, bool held, bool last)
{
    struct client_snapshot *snapshot;
    cairn_err ordered = CAIRN_OK, err = CAIRN_AGAIN;
    bool say_failed = false;

    if (!client_usable(client))
        return CAIRN_INVAL;
    snapshot = &client->snapshot;
    pthread_mutex_lock(&client->lock);
    if (is_held_copy(&client->report))
        refuse_copied(client);
    if (may_begin(client) && client->tensors->device_count) {
        pthread_mutex_unlock(&client->lock); /* no copy can start before this thread's begin */
        ordered = client_devices_order(client);
        pthread_mutex_lock(&client->lock);
        say_failed = ordered == CAIRN_DEVICE && client_devices_fail(client);
    }
    if (snapshot->state == CLIENT_SNAPSHOT_ASKED || snapshot->state == CLIENT_SNAPSHOT_COPYING ||
        client->engine_busy) {
        /* not fenced: the one before goes on */
    } else if (ordered || !may_begin(client)) {
        snapshot->state = CLIENT_SNAPSHOT_NONE;
        snapshot->step = step;
        snapshot->result = CAIRN_AGAIN;
        snapshot->last = last;
        snapshot->committed = false;
        client->stats.snapshots_skipped++;
    } else {
        memset(snapshot, 0, sizeof *snapshot);
        client->engine_started = false; /* before anybody can see COPYING */
        snapshot->state = CLIENT_SNAPSHOT_ASKED;
        snapshot->step = step;
        snapshot->begin_wanted = true;
        snapshot->held = held;
        snapshot->last = last;
        client->stats.snapshots_begun++;
        client_wake(client);
        err = CAIRN_OK;
    }
    pthread_mutex_unlock(&client->lock);
    if (say_failed)
        client_devices_say_failed(client);
    return err;
}

cairn_err
cairn_snapshot_begin(struct cairn_client *client, uint64_t step)
{
    return begin(client, step, false, false);
}

cairn_err
cairn_snapshot_begin_held(struct cairn_client *client, uint64_t step)
{
    return begin(client, step, true, false);
}

cairn_err
cairn_snapshot_begin_last(struct cairn_client *client, uint64_t step)
{
    return begin(client, step, true, true);
}

cairn_err
cairn_snapshot_confirm(struct cairn_client *client, bool good)
{
    struct client_snapshot *snapshot;
    cairn_err err = CAIRN_OK;

    if (!client_usable(client))
        return CAIRN_INVAL;
    snapshot = &client->snapshot;
    pthread_mutex_lock(&client->lock);
    if (is_held_copy(&client->report)) {
        if (!good)
            refuse_copied(client);
        client->report.held = false;
        client_wake(client);
    } else if (snapshot->held && (snapshot->state == CLIENT_SNAPSHOT_ASKED ||
                                  snapshot->state == CLIENT_SNAPSHOT_COPYING)) {
        snapshot->held = false;
        client->report.held = false; /* that of this snapshot, where it is granted */
        if (!good)
            client_give_up(client, CAIRN_INVAL, CAIRN_REASON_OTHER);
    } else {
        err = CAIRN_NOT_FOUND;
    }
    pthread_mutex_unlock(&client->lock);
    return err;
}

/* Why the last step can no longer be committed; CAIRN_OK: it can. Lock held. */
static cairn_err
find_obstacle(const struct cairn_client *client, const char **why)
{
    const struct client_snapshot *snapshot = &client->snapshot;
    const struct client_report *report = &client->report;
    enum client_snapshot_state state = snapshot->state;

    if (client->link != CLIENT_LINK_ATTACHED) {
        *why = "no agent serves this process";
        return CAIRN_PEER;
    }
    if ((state == CLIENT_SNAPSHOT_NONE || state == CLIENT_SNAPSHOT_ENDED) && snapshot->result) {
        *why = client->registration != CLIENT_REGISTER_DONE ? "its tensors are not registered"
               : client->device_failed                      ? "a device cannot be read"
               : client->skip_text[0]                       ? client->skip_text
                                                            : "the agents did not take it in time";
        return snapshot->result;
    }
    if (report->ended && report->generation.step == snapshot->step && report->result) {
        *why = report->result == CAIRN_CORRUPT
                   ? "it is poisoned: it holds values that are not finite, or was rejected"
                   : "the agents gave it up, or the trainer did not confirm it";
        return report->result;
    }
    return CAIRN_OK;
}

cairn_err
cairn_snapshot_await_commit(struct cairn_client *client, uint32_t timeout_ms)
{
    uint64_t deadline_ns = client_now_ns() + timeout_ms * CAIRN_NS_PER_MS, step;
    const char *why =
        "it is copied, but not committed yet; `cairn status` shows what is waited for";
    char reason[CAIRN_SESSION_TEXT_BYTES];
    struct client_snapshot *snapshot;
    cairn_err err = CAIRN_OK;

    if (!client_usable(client))
        return CAIRN_INVAL;
    snapshot = &client->snapshot;
    pthread_mutex_lock(&client->lock);
    if (!snapshot->last)
        err = CAIRN_NOT_FOUND;
    while (!err && !snapshot->committed) {
        err = find_obstacle(client, &why);
        if (!err && !client_wait(client, deadline_ns))
            err = CAIRN_TIMEOUT;
    }
    step = snapshot->step;
    snprintf(reason, sizeof reason, "%s", why);
    pthread_mutex_unlock(&client->lock);
    if (err && err != CAIRN_NOT_FOUND)
        client_say(client, CAIRN_LOG_WARN, "client: the last step=%llu is not protected: %s",
                   (unsigned long long)step, reason);
    return err;
}

/*
 * Waits while the copy has not passed until_bytes; `ended`: until it has ended, too. The engine's
 * thread ends it after its last byte: the next begin, and the counters, would else find it running.
 * Releases the lock meanwhile. The state is COPYING, and no capture can start: that would take a
 * begin of this same thread.
 */
static cairn_err
wait_copied(struct cairn_client *client, uint64_t until_bytes, bool ended, uint64_t start_ns)
{
    struct client_snapshot *snapshot = &client->snapshot;
    uint64_t deadline_ns = start_ns + client->fence_timeout_ns;
    uint64_t margin_ns = client->fence_timeout_ns / 10 < STOP_MARGIN_NS
                             ? client->fence_timeout_ns / 10
                             : STOP_MARGIN_NS;
    cairn_err err = CAIRN_TIMEOUT;

    while (snapshot->state == CLIENT_SNAPSHOT_COPYING && !client->engine_started)
        if (!client_wait(client, deadline_ns - margin_ns))
            break;
    if (snapshot->state == CLIENT_SNAPSHOT_COPYING && client->engine_started) {
        pthread_mutex_unlock(&client->lock);
        err = cairn_capture_wait(client->capture, until_bytes, deadline_ns - margin_ns);
        pthread_mutex_lock(&client->lock);
        if (!err && !snapshot->stop_err && !ended)
            return CAIRN_OK;
    }
    if (err == CAIRN_TIMEOUT)
        client_give_up(client, CAIRN_TIMEOUT, CAIRN_REASON_TIMEOUT);
    while (snapshot->state == CLIENT_SNAPSHOT_COPYING)
        if (!client_wait(client, deadline_ns))
            end_snapshot(client,
                         CAIRN_TIMEOUT); /* a device hangs: what it still reads is discarded */
    return snapshot->result;
}

static void
count_fence(struct cairn_client *client, uint64_t waited_ns)
{
    struct cairn_client_stats *stats = &client->stats;

    client->fences_ns[stats->fence_count % CLIENT_FENCES_KEPT] = waited_ns;
    stats->fence_count++;
    stats->fence_ns_total += waited_ns;
    if (waited_ns > stats->fence_ns_max)
        stats->fence_ns_max = waited_ns;
}

cairn_err
cairn_snapshot_fence(struct cairn_client *client, uint32_t slice_index)
{
    bool all = slice_index == CAIRN_FENCE_ALL, say_silent = false;
    uint64_t start_ns, until_bytes = 0;
    struct client_snapshot *snapshot;
    cairn_err err = CAIRN_OK;

    if (!client_usable(client))
        return CAIRN_INVAL;
    snapshot = &client->snapshot;
    start_ns = client_now_ns();
    pthread_mutex_lock(&client->lock);
    if (!all && (!client->tensors || slice_index >= client->tensors->count)) {
        pthread_mutex_unlock(&client->lock);
        return CAIRN_INVAL;
    }
    if (client->tensors)
        until_bytes = all ? client->tensors->region_bytes : client->tensors->ends[slice_index];
    /* What this rank captures nothing of may be overwritten at any time. */
    if (snapshot->state == CLIENT_SNAPSHOT_ASKED && (all || until_bytes)) {
        say_silent = !snapshot->begin_wanted && !client->said_silent;
        client->said_silent = client->said_silent || say_silent;
        client_give_up(client, CAIRN_AGAIN, CAIRN_REASON_FENCE);
    }
    if (snapshot->state == CLIENT_SNAPSHOT_COPYING)
        err = wait_copied(client, until_bytes, all, start_ns);
    else if (snapshot->state == CLIENT_SNAPSHOT_ENDED)
        err = snapshot->result;
    if (all && snapshot->state == CLIENT_SNAPSHOT_ENDED)
        snapshot->state = CLIENT_SNAPSHOT_NONE;
    count_fence(client, client_now_ns() - start_ns);
    pthread_mutex_unlock(&client->lock);
    if (say_silent)
        client_say(
            client, CAIRN_LOG_INFO,
            "client: snapshot skipped: the agent did not answer before the fence (logged once)");
    return err;
}

/*
 * Without the lock: this thread's begin has set the state to ASKED and engine_started to false, so
 * a COPYING and started copy, and its watermark, are this snapshot's.
 */
uint32_t
cairn_snapshot_captured(const struct cairn_client *client)
{
    const struct client_tensors *tensors;
    enum client_snapshot_state state;
    uint64_t watermark;
    uint32_t low = 0, high;

    if (!client)
        return CAIRN_FENCE_ALL;
    state = client->snapshot.state;
    if (state == CLIENT_SNAPSHOT_NONE || state == CLIENT_SNAPSHOT_ENDED)
        return CAIRN_FENCE_ALL;
    if (state == CLIENT_SNAPSHOT_ASKED || !client->engine_started)
        return 0;
    watermark = cairn_capture_watermark(client->capture);
    tensors = client->tensors;
    if (watermark >= tensors->region_bytes)
        return CAIRN_FENCE_ALL;
    high = tensors->count;
    /* The first that reaches further than the watermark */
    CAIRN_BISECT(low, high, middle, tensors->reaches[middle] <= watermark);
    return low;
}
