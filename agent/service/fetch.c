/* agent/service/fetch.c - the life of a fetcher, and the manifests that it gathers; see fetch.h. */
#include "agent/process/agent_state.h"
#include "agent/process/mail.h"
#include "agent/process/step.h"
#include "agent/service/fetch_state.h"

#include "base/file.h"
#include "base/log.h"
#include "base/worker.h"
#include "snapshot/spill.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t repair_pause_ns = 5 * CAIRN_NS_PER_S;

static void
fetcher_free(struct fetcher *fetcher)
{
    for (uint32_t c = 0; c < fetcher->container_count; c++) {
        cairn_manifest_fini(&fetcher->containers[c].manifest);
        free(fetcher->containers[c].packed);
    }
    free(fetcher->containers);
    free(fetcher->holders);
    cairn_universal_fini(&fetcher->universal);
    cairn_arena_destroy(fetcher->window);
    if (fetcher->dir_fd >= 0)
        close(fetcher->dir_fd);
    free(fetcher);
}

void
fetcher_hold(struct fetcher *fetcher)
{
    fetcher->users++;
}

void
fetcher_unhold(struct fetcher *fetcher)
{
    fetcher->users--;
    if (fetcher->ended && fetcher->users == 0)
        fetcher_free(fetcher);
}

cairn_err
fetch_open(struct cairn_agent *agent)
{
    agent->fetches = calloc(1, sizeof *agent->fetches);
    return agent->fetches ? CAIRN_OK : CAIRN_NOMEM;
}

/* ---- lookups ---- */

bool
fetch_find_part(const struct cairn_agent *agent, struct cairn_generation_id generation,
                uint32_t member, uint32_t *index, struct cairn_part_view *out)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        if (cairn_core_look_part(agent->core, i, out) && out->state == CAIRN_PART_COMPLETE &&
            out->member == member &&
            cairn_generation_id_compare(out->generation, generation) == 0) {
            *index = i;
            return true;
        }
    return false;
}

void
fetch_ask_for_repair(struct cairn_agent *agent)
{
    struct cairn_event event = {.type = CAIRN_EVENT_OPERATOR,
                                .as.op = {.operation = CAIRN_OP_VERIFY}};
    uint64_t now_ns = agent_now_ns(agent);

    if (agent->fetches->repair_ns && now_ns - agent->fetches->repair_ns < repair_pause_ns)
        return;
    agent->fetches->repair_ns = now_ns;
    CAIRN_LOG_AT(ERROR, "fetch: damaged blocks were found while a generation is read: the job's "
                        "memory is verified and repaired");
    agent_step(agent, &event, NULL);
}

/* ---- manifests ---- */

bool
fetch_gathered(struct fetcher *fetcher)
{
    for (uint32_t c = 0; c < fetcher->container_count; c++)
        if (!fetcher->containers[c].whole)
            return false;
    if (fetcher->is_opening || fetcher->is_ready || fetcher->is_failed)
        return false;
    fetcher->is_ready = true;
    fetcher->ready(fetcher->context, CAIRN_OK, "");
    return true;
}

cairn_err
fetch_take_manifest(struct fetcher *fetcher, uint32_t index, const uint8_t *packed, size_t len)
{
    struct container *container = &fetcher->containers[index];
    cairn_err err = cairn_manifest_unpack(packed, len, &container->manifest);

    if (!err && (container->manifest.container != index ||
                 (!fetcher->from_files &&
                  (container->manifest.generation.epoch != fetcher->generation.epoch ||
                   container->manifest.generation.step != fetcher->generation.step)))) {
        cairn_manifest_fini(&container->manifest);
        err = CAIRN_CORRUPT;
    }
    container->whole = !err;
    if (err) { /* from its first byte again */
        free(container->packed);
        container->packed = NULL;
        container->packed_len = container->received = 0;
    }
    return err;
}

/* Takes a member's manifest from the seals of an own part of its group, if there is one. */
static bool
manifest_from_own(struct fetcher *fetcher, uint32_t member)
{
    struct container *container = &fetcher->containers[member];

    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        struct cairn_part_view view;
        const uint8_t *packed;
        size_t len = 0;

        if (!cairn_core_look_part(fetcher->agent->core, i, &view) ||
            view.state != CAIRN_PART_COMPLETE ||
            cairn_generation_id_compare(view.generation, fetcher->generation) != 0)
            continue;
        packed = cairn_core_peer_manifest(fetcher->agent->core, i, member, &len);
        if (!packed)
            continue;
        container->packed = malloc(len);
        if (!container->packed)
            return false;
        memcpy(container->packed, packed, len);
        container->packed_len = container->received = len;
        return fetch_take_manifest(fetcher, member, container->packed, len) == CAIRN_OK;
    }
    return false;
}

/* The agent that holds a member's part now, or did when the fetcher started: a pinned generation
 * stays in place when another one becomes ready. */
uint32_t
fetch_holder_of(const struct fetcher *fetcher, uint32_t member)
{
    uint32_t holder = cairn_core_holder(fetcher->agent->core, fetcher->generation, member);

    return holder != UINT32_MAX ? holder : fetcher->holders[member];
}

void
fetch_ask_manifest(struct fetcher *fetcher, uint32_t member)
{
    struct cairn_agent *agent = fetcher->agent;
    uint32_t holder = fetch_holder_of(fetcher, member);
    struct cairn_service_message message = {.kind = CAIRN_SERVICE_FETCH,
                                            .from = agent->config.node,
                                            .to = holder,
                                            .generation = fetcher->generation,
                                            .item = member,
                                            .verb = ASK_MANIFEST,
                                            .offset = fetcher->containers[member].received};

    fetcher->containers[member].sent_ns = agent_now_ns(agent);
    if (holder < agent->config.node_count && holder != agent->config.node)
        mail_send_service(agent, &message, NULL, 0, UINT32_MAX);
}

/* The number of members of the generation, if it is the core's ready one, or an own part that is
 * pinned while newer generations are committed (its members' own agents hold the parts). Otherwise
 * 0. */
static uint32_t
count_members(const struct fetcher *fetcher, const struct cairn_roster **roster)
{
    struct cairn_core_view view;

    *roster = NULL;
    cairn_core_look(fetcher->agent->core, &view);
    if (!view.ready_from_files && cairn_generation_id_compare(view.ready, fetcher->generation) == 0)
        return view.ready_roster ? view.ready_roster->member_count : 0;
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        struct cairn_part_view part;

        if (cairn_core_look_part(fetcher->agent->core, i, &part) &&
            part.state == CAIRN_PART_COMPLETE &&
            cairn_generation_id_compare(part.generation, fetcher->generation) == 0 && part.roster) {
            *roster = part.roster;
            return part.roster->member_count;
        }
    }
    return 0;
}

cairn_err
fetch_start_memory(struct fetcher *fetcher)
{
    const struct cairn_roster *roster;
    uint32_t count = count_members(fetcher, &roster);

    if (count == 0)
        return CAIRN_NOT_FOUND;
    fetcher->containers = calloc(count, sizeof *fetcher->containers);
    fetcher->holders = calloc(count, sizeof *fetcher->holders);
    if (!fetcher->containers || !fetcher->holders)
        return CAIRN_NOMEM;
    fetcher->container_count = count;
    for (uint32_t m = 0; m < count; m++)
        fetcher->holders[m] = roster
                                  ? roster->members[m].agent
                                  : cairn_core_holder(fetcher->agent->core, fetcher->generation, m);
    for (uint32_t m = 0; m < count; m++)
        if (!manifest_from_own(fetcher, m))
            fetch_ask_manifest(fetcher, m);
    return CAIRN_OK;
}

/* A spilled checkpoint being opened, by a worker: its directory may be on storage that hangs. */
struct open_job {
    struct cairn_job job;
    struct fetcher *fetcher;
    char path[CAIRN_CONFIG_PATH_BYTES_MAX + 64];
    int dir_fd;
    struct cairn_universal universal;
    struct container *containers;
    uint32_t container_count;
    cairn_err err;
    char report[512];
};

static void
open_run(struct cairn_job *job)
{
    struct open_job *opening = (struct open_job *)job;
    cairn_err err =
        cairn_file_open(AT_FDCWD, opening->path, CAIRN_FILE_DIRECTORY, &opening->dir_fd);

    if (!err)
        err = cairn_universal_dir_open(opening->dir_fd, &opening->universal, opening->report,
                                       sizeof opening->report);
    if (!err) {
        opening->containers = calloc(opening->universal.file_count, sizeof *opening->containers);
        if (opening->containers)
            opening->container_count = opening->universal.file_count;
        else
            err = CAIRN_NOMEM;
    }
    for (uint32_t f = 0; !err && f < opening->container_count; f++) {
        struct container *container = &opening->containers[f];

        err = cairn_universal_manifest(&opening->universal, f, &container->manifest);
        if (!err)
            err = cairn_manifest_pack(&container->manifest, &container->packed,
                                      &container->packed_len);
        container->whole = !err;
    }
    opening->err = err;
}

/* Gives the opened files to the fetcher, which owns them from then on. */
static void
open_done(struct cairn_job *job)
{
    struct open_job *opening = (struct open_job *)job;
    struct fetcher *fetcher = opening->fetcher;
    char text[sizeof opening->path + sizeof opening->report + 32];

    fetcher->dir_fd = opening->dir_fd;
    fetcher->universal = opening->universal;
    fetcher->containers = opening->containers;
    fetcher->container_count = opening->container_count;
    fetcher->is_opening = false;
    if (opening->err && !fetcher->ended && !fetcher->is_failed) {
        snprintf(text, sizeof text, "%s cannot be opened here: %s", opening->path,
                 opening->report[0] ? opening->report : cairn_err_text(opening->err));
        fetcher->is_failed = true;
        fetcher->ready(fetcher->context, opening->err, text);
    } else if (!opening->err && !fetcher->ended) {
        fetch_gathered(fetcher);
    }
    free(opening);
    fetcher_unhold(fetcher);
}

cairn_err
fetch_start_files(struct fetcher *fetcher)
{
    struct open_job *opening = calloc(1, sizeof *opening);
    char name[CAIRN_SPILL_DIR_NAME_BYTES];
    cairn_err err;

    if (!opening)
        return CAIRN_NOMEM;
    cairn_spill_dir_name(fetcher->generation, name);
    snprintf(opening->path, sizeof opening->path, "%s/%s", fetcher->agent->config.spill_dir, name);
    opening->job = (struct cairn_job){.run = open_run, .done = open_done};
    opening->fetcher = fetcher;
    opening->dir_fd = -1;
    err = cairn_workers_submit(fetcher->agent->workers, &opening->job);
    if (err) {
        free(opening);
        return err;
    }
    fetcher->is_opening = true;
    fetcher_hold(fetcher);
    return CAIRN_OK;
}

cairn_err
fetcher_start(struct cairn_agent *agent, struct cairn_generation_id generation, bool from_files,
              fetcher_ready_fn *ready, void *context, struct fetcher **out)
{
    struct fetcher *fetcher = calloc(1, sizeof *fetcher);
    cairn_err err;

    if (!fetcher)
        return CAIRN_NOMEM;
    fetcher->agent = agent;
    fetcher->generation = generation;
    fetcher->from_files = from_files;
    fetcher->compares = true;
    fetcher->dir_fd = -1;
    fetcher->ready = ready;
    fetcher->context = context;
    fetcher->started_ns = agent_now_ns(agent);
    fetcher->next = agent->fetches->fetchers;
    agent->fetches->fetchers = fetcher;
    err = from_files ? fetch_start_files(fetcher) : fetch_start_memory(fetcher);
    if (err) {
        fetcher_end(fetcher);
        return err;
    }
    *out = fetcher;
    fetch_gathered(fetcher);
    return CAIRN_OK;
}

void
fetcher_end(struct fetcher *fetcher)
{
    struct fetcher **link;

    if (!fetcher || fetcher->ended)
        return;
    for (link = &fetcher->agent->fetches->fetchers; *link; link = &(*link)->next)
        if (*link == fetcher) {
            *link = fetcher->next;
            break;
        }
    while (fetcher->reads) {
        struct read *read = fetcher->reads;

        mail_unplace(fetcher->agent, read->target, (size_t)read->count * CAIRN_BLOCK_BYTES);
        fetcher->reads = read->next;
        if (--read->batch->left == 0)
            free(read->batch);
        free(read);
    }
    fetcher->read_count = fetcher->in_flight = 0;
    fetcher->ended = true;
    if (fetcher->users == 0)
        fetcher_free(fetcher);
}

void
fetch_close(struct cairn_agent *agent)
{
    if (!agent->fetches)
        return;
    while (agent->fetches->fetchers)
        fetcher_end(agent->fetches->fetchers);
    free(agent->fetches);
    agent->fetches = NULL;
}

uint32_t
fetcher_container_count(const struct fetcher *fetcher)
{
    return fetcher->container_count;
}

const struct cairn_manifest *
fetcher_manifest(const struct fetcher *fetcher, uint32_t container)
{
    return &fetcher->containers[container].manifest;
}
