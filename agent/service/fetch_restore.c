/* agent/service/fetch_restore.c - the restore of a trainer: sends it the manifests, makes its
 * window and fills it with blocks. */
#include "agent/process/agent_state.h"
#include "agent/process/cutting.h"
#include "agent/process/recorder.h"
#include "agent/process/session.h"
#include "agent/process/session_region.h"
#include "agent/process/step.h"
#include "agent/service/fetch.h"
#include "agent/service/fetch_state.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static struct session *
session_of(struct fetcher *fetcher)
{
    return fetcher->session->used && fetcher->session->serial == fetcher->session_serial
               ? fetcher->session
               : NULL;
}

static void
send_info(struct cairn_agent *agent, struct session *session,
          const struct cairn_session_restore_info *info, int window_fd)
{
    if (cairn_session_put_restore_info(&session->writer, info, window_fd) != CAIRN_OK)
        session->state = SESSION_CLOSING;
    session_flush(agent, session);
}

static void
refuse_restore(struct cairn_agent *agent, struct session *session, uint32_t request, cairn_err err,
               const char *text)
{
    struct cairn_session_restore_info info = {.request = request, .err = err};

    snprintf(info.text, sizeof info.text, "%s", text);
    info.own_container = 0;
    send_info(agent, session, &info, -1);
}

/* The slot in which this node's part of the generation lies, if the rank's own region is in the
 * trainer's file: it can read that without a copy. */
static void
find_own_region(const struct fetcher *fetcher, const struct session *session,
                struct cairn_session_restore_info *info)
{
    info->own_container = CAIRN_CONTAINER_NONE;
    for (uint32_t i = 0; !fetcher->from_files && i < fetcher->agent->config.slots; i++) {
        struct cairn_part_view view;

        if (!cairn_core_look_part(fetcher->agent->core, i, &view) ||
            view.state != CAIRN_PART_COMPLETE ||
            cairn_generation_id_compare(view.generation, fetcher->generation) != 0)
            continue;
        if (session_is_rank(session) && session->is_answered &&
            cutting_is_whole(fetcher->agent, session, i))
            info->own_slot = CAIRN_SLOT_OF_REGION + i;
        return;
    }
}

/*
 * The trainer waits while the window's pages are made. If all blocks are in its own region, only
 * damaged blocks come through the window, so it is small.
 */
static uint32_t
window_blocks(const struct fetcher *fetcher, const struct cairn_session_restore_info *info)
{
    bool all_here = fetcher->container_count == 1 && info->own_slot &&
                    fetcher->containers[0].manifest.rank_count == 1;

    return all_here ? REPAIR_WINDOW_BLOCKS : RESTORE_WINDOW_BLOCKS;
}

static void
restore_ready(void *context, cairn_err err, const char *text)
{
    struct fetcher *fetcher = context;
    struct cairn_agent *agent = fetcher->agent;
    struct session *session = session_of(fetcher);
    struct cairn_session_restore_info info = {.request = fetcher->request};
    struct cairn_arena_options options = {.hugepages = CAIRN_HUGEPAGES_NEVER};
    char report[CAIRN_ARENA_REPORT_BYTES] = "";

    if (!session)
        return;
    if (!err) {
        find_own_region(fetcher, session, &info);
        info.window_bytes = (uint64_t)window_blocks(fetcher, &info) * CAIRN_BLOCK_BYTES;
        err = cairn_arena_create("cairn-window", info.window_bytes, &options, &fetcher->window,
                                 report, sizeof report);
    }
    info.manifests = err ? NULL : calloc(fetcher->container_count, sizeof *info.manifests);
    if (!err && !info.manifests)
        err = CAIRN_NOMEM;
    if (err) {
        refuse_restore(agent, session, fetcher->request, err, report[0] ? report : text);
        return;
    }
    info.generation = fetcher->generation;
    info.source = fetcher->from_files ? CAIRN_SOURCE_FILES : CAIRN_SOURCE_MEMORY;
    info.count = fetcher->container_count;
    for (uint32_t c = 0; c < fetcher->container_count; c++) {
        info.manifests[c].bytes = fetcher->containers[c].packed;
        info.manifests[c].bytes_len = fetcher->containers[c].packed_len;
    }
    send_info(agent, session, &info, cairn_arena_fd(fetcher->window));
    free(info.manifests);
}

static void
restore(struct cairn_agent *agent, struct session *session, uint32_t request)
{
    struct cairn_core_view view;
    struct fetcher *fetcher = NULL;
    cairn_err err;

    fetch_forget(agent, session);
    cairn_core_look(agent->core, &view);
    if (view.fenced) {
        refuse_restore(agent, session, request, CAIRN_AGAIN, "a restore of the job is under way");
        return;
    }
    if (view.ready.step == 0) {
        refuse_restore(agent, session, request, CAIRN_NOT_FOUND, "no generation is held ready");
        return;
    }
    fetcher = calloc(1, sizeof *fetcher);
    if (!fetcher) {
        refuse_restore(agent, session, request, CAIRN_NOMEM, "the agent is out of memory");
        return;
    }
    fetcher->agent = agent;
    fetcher->generation = view.ready;
    fetcher->from_files = view.ready_from_files;
    fetcher->dir_fd = -1;
    fetcher->ready = restore_ready;
    fetcher->context = fetcher;
    fetcher->started_ns = agent_now_ns(agent);
    fetcher->session = session;
    fetcher->session_serial = session->serial;
    fetcher->request = request;
    fetcher->next = agent->fetches->fetchers;
    agent->fetches->fetchers = fetcher;
    session->fetcher = fetcher;
    err = fetcher->from_files ? fetch_start_files(fetcher) : fetch_start_memory(fetcher);
    if (err) {
        session->fetcher = NULL;
        fetcher_end(fetcher);
        refuse_restore(agent, session, request, err,
                       "the generation that is held ready cannot be opened here");
        return;
    }
    fetch_gathered(fetcher);
}

static void
fetched(void *context, uint64_t tag, cairn_err err)
{
    struct fetcher *fetcher = context;
    struct session *session = session_of(fetcher);
    struct cairn_session_fetched answer = {.request = (uint32_t)tag, .err = err};

    if (!session)
        return;
    if (err)
        snprintf(answer.text, sizeof answer.text, "blocks could not be fetched: %s",
                 cairn_err_text(err));
    if (cairn_session_put_fetched(&session->writer, &answer) != CAIRN_OK)
        session->state = SESSION_CLOSING;
    session_flush(fetcher->agent, session);
}

/* The trainer compares what it gets itself, and asks again for what was damaged. */
static void
note_asked(struct fetcher *fetcher, const struct cairn_session_fetch_item *item)
{
    fetcher->compares |=
        item->container < fetcher->asked_container ||
        (item->container == fetcher->asked_container && item->first_block < fetcher->asked_block);
    fetcher->asked_container = item->container;
    fetcher->asked_block = item->first_block + item->block_count;
}

static void
read_blocks(struct session *session, const struct cairn_session_fetch *fetch)
{
    struct fetcher *fetcher = session->fetcher;
    struct fetcher_run runs[CAIRN_SESSION_FETCH_ITEMS_MAX];
    cairn_err err = fetcher && fetcher->window ? CAIRN_OK : CAIRN_INVAL;

    for (uint32_t i = 0; !err && i < fetch->count; i++) {
        const struct cairn_session_fetch_item *item = &fetch->items[i];
        uint64_t window_bytes = cairn_arena_bytes(fetcher->window);

        if (item->block_count > window_bytes / CAIRN_BLOCK_BYTES ||
            item->window_offset > window_bytes - (uint64_t)item->block_count * CAIRN_BLOCK_BYTES)
            err = CAIRN_INVAL;
        else
            note_asked(fetcher, item);
        if (!err)
            runs[i] = (struct fetcher_run){item->container, item->block_count, item->first_block,
                                           cairn_arena_base(fetcher->window) + item->window_offset};
    }
    if (!err)
        err = fetcher_read(fetcher, runs, fetch->count, fetch->request, fetched, fetcher);
    if (err && fetcher)
        fetched(fetcher, fetch->request, err);
    else if (err)
        session->state = SESSION_CLOSING;
}

void
fetch_forget(struct cairn_agent *agent, struct session *session)
{
    (void)agent;
    if (!session->fetcher)
        return;
    fetcher_end(session->fetcher);
    session->fetcher = NULL;
}

bool
fetch_frame(struct cairn_agent *agent, struct session *session, struct cairn_session_frame *frame)
{
    struct cairn_session_restore asked;
    struct cairn_session_restored restored;
    struct cairn_session_fetch *fetch;
    bool parsed;

    switch (frame->type) {
    case CAIRN_SESSION_RESTORE:
        parsed = cairn_session_take_restore(frame, &asked) == CAIRN_OK;
        if (parsed)
            restore(agent, session, asked.request);
        return parsed;
    case CAIRN_SESSION_RESTORED:
        if (cairn_session_take_restored(frame, &restored) != CAIRN_OK)
            return false;
        CAIRN_LOG_AT(INFO,
                     "restore: trainer rank=%u epoch=%" PRIu64 " step=%" PRIu64 " bytes=%" PRIu64
                     " result=\"%s\"",
                     session->hello.rank, cairn_epoch_number(restored.generation.epoch),
                     restored.generation.step, restored.bytes, cairn_err_text(restored.err));
        recorder_resumed(agent, restored.generation, restored.err);
        fetch_forget(agent, session);
        return true;
    default:
        fetch = malloc(sizeof *fetch);
        parsed = fetch && cairn_session_take_fetch(frame, fetch) == CAIRN_OK;
        if (parsed)
            read_blocks(session, fetch);
        free(fetch);
        return parsed;
    }
}
