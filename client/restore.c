/*
 * client/restore.c - cairn_client_restore: ask what there is, plan, fill, report.
 *
 * Memory: the manifests, the plan, and the agent's window. The tensors are not touched before the
 * plan has proved that the generation holds every element of them.
 */
#include "cairn/client.h"

#include "client/abi.h"
#include "client/fill.h"
#include "client/sink.h"
#include "client/state.h"

#include "base/clock.h"
#include "base/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { REPORT_BYTES = 512 };

struct restore {
    struct cairn_client *client;
    struct client_tensors *target; /* to be filled; NULL: none, only a list is wanted */
    struct cairn_slice *present;   /* [present_count] with the generation's bytes here */
    uint32_t present_count;
    uint64_t deadline_ns;
    struct cairn_session_restore_info info;
    struct cairn_manifest *manifests; /* [info.count], by container */
    struct cairn_moves moves;
    uint8_t *window;
    size_t window_map_bytes;
    uint8_t *own; /* mapped blocks [own_first_block, own_end_block) of info.own_container */
    size_t own_map_bytes;
    uint64_t own_first_block, own_end_block;
    atomic_bool *failing;     /* by slice */
    struct client_sink *hung; /* a device still reads both, NULL: none does */
};

/* What the caller is told. */
static struct cairn_generation
public_name(struct cairn_generation_id generation)
{
    return (struct cairn_generation){.epoch = generation.epoch, .step = generation.step};
}

/* ---- what the service thread hands over ---- */

cairn_err
client_take_restore_info(struct cairn_client *client, struct cairn_session_frame *frame)
{
    struct client_mail *mail = &client->mail;
    struct cairn_session_restore_info info = {0};
    cairn_err err = cairn_session_take_restore_info(frame, &info);
    uint8_t *payload;

    if (err)
        return err == CAIRN_NOMEM ? CAIRN_OK : err; /* the restore waits until its deadline */
    payload = malloc(frame->payload_bytes);
    if (payload)
        memcpy(payload, frame->payload, frame->payload_bytes);
    pthread_mutex_lock(&client->lock);
    if (mail->wanted && !mail->payload && info.request == mail->request) {
        mail->payload = payload;
        mail->payload_bytes = frame->payload_bytes;
        if (!payload)
            mail->err = CAIRN_NOMEM;
        if (frame->fd_count) {
            mail->window_fd = frame->fds[0];
            frame->fds[0] = -1;
        }
        if (!info.err && info.own_container == CAIRN_CONTAINER_NONE)
            info.own_slot -= CAIRN_SLOT_OF_REGION; /* where it is none, too large for an index */
        if (!info.err && info.own_slot < client->slot_count)
            mail->own_slot_fd = fcntl(client->slots[info.own_slot].fd, F_DUPFD_CLOEXEC, 0);
        mail->region_offset = client->region_offset;
        mail->region_bytes = client->tensors ? client->tensors->region_bytes : 0;
        payload = NULL;
        pthread_cond_broadcast(&client->changed);
    }
    pthread_mutex_unlock(&client->lock);
    free(payload); /* of a restore that gave up */
    cairn_session_restore_info_fini(&info);
    return CAIRN_OK;
}

void
client_take_fetched(struct cairn_client *client, const struct cairn_session_fetched *fetched)
{
    pthread_mutex_lock(&client->lock);
    for (uint32_t i = 0; client->mail.wanted && i < CLIENT_WINDOW_PARTS; i++) {
        if (client->mail.fetches[i].request != fetched->request || client->mail.fetches[i].answered)
            continue;
        client->mail.fetches[i].answered = true;
        client->mail.fetches[i].err = fetched->err;
        memcpy(client->mail.fetches[i].text, fetched->text, sizeof fetched->text);
        pthread_cond_broadcast(&client->changed);
    }
    pthread_mutex_unlock(&client->lock);
}

/* ---- asking. Lock held ---- */

static void
mail_close(struct client_mail *mail)
{
    free(mail->payload);
    if (mail->window_fd >= 0)
        close(mail->window_fd);
    if (mail->own_slot_fd >= 0)
        close(mail->own_slot_fd);
    memset(mail, 0, sizeof *mail);
    mail->window_fd = -1;
    mail->own_slot_fd = -1;
}

/* Waits until an agent serves us, with our slots mapped if it accepts our tensors. */
static cairn_err
wait_agent(struct cairn_client *client, uint64_t deadline_ns)
{
    uint64_t until_ns = client_now_ns() + client->connect_timeout_ns;

    if (until_ns > deadline_ns)
        until_ns = deadline_ns;
    while (client->link != CLIENT_LINK_ATTACHED || client->registration == CLIENT_REGISTER_WANTED ||
           client->registration == CLIENT_REGISTER_SENT) {
        if (client->link == CLIENT_LINK_CLOSED)
            return CAIRN_STALE;
        if (!client_wait(client, until_ns))
            return client->link == CLIENT_LINK_ATTACHED ? CAIRN_TIMEOUT : CAIRN_PEER;
    }
    return CAIRN_OK;
}

static cairn_err
ask(struct restore *restore)
{
    struct cairn_client *client = restore->client;
    struct client_mail *mail = &client->mail;
    struct cairn_session_restore request;
    cairn_err err = wait_agent(client, restore->deadline_ns);

    if (err)
        return err;
    mail_close(mail);
    request.request = client->next_request;
    client->next_request = client->next_request == UINT32_MAX ? 1 : client->next_request + 1;
    err = cairn_session_put_restore(&client->writer, &request);
    if (err)
        return err == CAIRN_AGAIN ? CAIRN_TIMEOUT : err; /* it has not read for long */
    mail->wanted = true;
    mail->request = request.request;
    client_wake(client);
    while (!mail->payload && !mail->err)
        if (!client_wait(client, restore->deadline_ns))
            return CAIRN_TIMEOUT;
    return mail->payload ? CAIRN_OK : mail->err;
}

static void
say_end(struct restore *restore, uint64_t bytes, cairn_err result)
{
    struct cairn_session_restored restored = {restore->info.generation, bytes, result};
    struct cairn_client *client = restore->client;

    pthread_mutex_lock(&client->lock);
    if (client->mail.wanted && !client->mail.err && client->link == CLIENT_LINK_ATTACHED &&
        cairn_session_put_restored(&client->writer, &restored))
        client->broken = true; /* the agent must not hold the generation for ever */
    mail_close(&client->mail);
    client_wake(client);
    pthread_mutex_unlock(&client->lock);
}

/* ---- planning ---- */

/* The payload is ours while the mail is wanted: the service thread writes it once. */
static cairn_err
unpack_answer(struct restore *restore)
{
    const struct client_mail *mail = &restore->client->mail;
    struct cairn_session_frame frame = {.type = CAIRN_SESSION_RESTORE_INFO,
                                        .payload = mail->payload,
                                        .payload_bytes = mail->payload_bytes,
                                        .fd_count = mail->window_fd >= 0 ? 1 : 0};
    cairn_err err = cairn_session_take_restore_info(&frame, &restore->info);

    return err ? err : restore->info.err;
}

/* Asks until the agent can say what is held ready. While a restore of the whole job runs it cannot;
 * a trainer that took that for "nothing" would start from the beginning. If the time ends before
 * the next answer, the last one counts. */
static cairn_err
ask_and_unpack(struct restore *restore)
{
    struct cairn_client *client = restore->client;
    const struct timespec pause = {.tv_nsec = 20 * CAIRN_NS_PER_MS};
    bool said = false;
    cairn_err err;

    for (;;) {
        pthread_mutex_lock(&client->lock);
        err = ask(restore);
        pthread_mutex_unlock(&client->lock);
        if (err == CAIRN_TIMEOUT && restore->info.err == CAIRN_AGAIN) {
            err = CAIRN_AGAIN;
            break;
        }
        if (err) {
            client_say(client, CAIRN_LOG_ERROR,
                       "client: restore failed, no answer from the agent: %s", cairn_err_text(err));
            return err;
        }
        err = unpack_answer(restore);
        if (err != CAIRN_AGAIN || client_now_ns() + (uint64_t)pause.tv_nsec > restore->deadline_ns)
            break;
        if (!said)
            client_say(client, CAIRN_LOG_INFO, "client: restore waits: %s", restore->info.text);
        said = true;
        nanosleep(&pause, NULL);
    }
    if (err)
        client_say(client, err == CAIRN_NOT_FOUND ? CAIRN_LOG_INFO : CAIRN_LOG_ERROR,
                   "client: nothing was restored: %s (%s)", cairn_err_text(err),
                   restore->info.text);
    return err;
}

static cairn_err
unpack_manifests(struct restore *restore)
{
    const struct cairn_session_restore_info *info = &restore->info;

    restore->manifests = calloc(info->count ? info->count : 1, sizeof *restore->manifests);
    if (!restore->manifests)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < info->count; i++) {
        struct cairn_manifest manifest = {0};
        cairn_err err = cairn_manifest_unpack(info->manifests[i].bytes,
                                              info->manifests[i].bytes_len, &manifest);

        if (err) {
            client_say(restore->client, CAIRN_LOG_ERROR, "client: manifest %u of %u is refused: %s",
                       i, info->count, cairn_err_text(err));
            return err;
        }
        if (manifest.container_count != info->count || manifest.container >= info->count ||
            restore->manifests[manifest.container].container_count != 0 ||
            manifest.generation.epoch != info->generation.epoch ||
            manifest.generation.step != info->generation.step) {
            cairn_manifest_fini(&manifest);
            client_say(restore->client, CAIRN_LOG_ERROR,
                       "client: manifest %u of %u does not belong to the generation", i,
                       info->count);
            return CAIRN_CORRUPT;
        }
        restore->manifests[manifest.container] = manifest;
    }
    return CAIRN_OK;
}

static uint32_t
cost_of(void *context, uint32_t source_container, uint32_t target_container)
{
    const struct restore *restore = context;

    (void)target_container;
    if (source_container >= restore->info.count)
        return 0;
    return source_container == restore->info.own_container ? 1 : 16;
}

static cairn_err
build_layouts(struct restore *restore, struct cairn_layout *source, struct cairn_layout *target)
{
    const struct client_tensors *tensors = restore->target;
    const char *why = "";
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < restore->info.count && !err; i++)
        err = cairn_manifest_add_to_layout(&restore->manifests[i], source, &why);
    if (err) {
        client_say(restore->client, CAIRN_LOG_ERROR,
                   "client: the manifests do not fit together: %s", why);
        return err == CAIRN_INVAL ? CAIRN_CORRUPT : err;
    }
    for (uint32_t i = 0; i < restore->present_count && !err; i++) {
        const struct cairn_slice *slice = &restore->present[i];

        err = cairn_layout_add(source, restore->info.count + i, slice, slice->flat_begin,
                               slice->flat_end, 0, &why);
        if (err)
            client_say(restore->client, CAIRN_LOG_ERROR,
                       "client: tensor \"%s\" is not what the generation holds: %s", slice->name,
                       why);
    }
    for (uint32_t i = 0; i < tensors->count && !err; i++) {
        const struct cairn_slice *slice = &tensors->slices[i];

        err = cairn_layout_add(target, i, slice, slice->flat_begin, slice->flat_end, 0, &why);
        if (err)
            client_say(restore->client, CAIRN_LOG_ERROR,
                       "client: tensor \"%s\" cannot be restored: %s", slice->name, why);
    }
    return err;
}

static cairn_err
plan(struct restore *restore)
{
    struct cairn_reshard_options options = {.cost = cost_of, .cost_context = restore};
    struct cairn_layout *source = NULL, *target = NULL;
    char report[REPORT_BYTES] = "";
    cairn_err err = cairn_layout_create(&source);

    if (err)
        goto done;
    err = cairn_layout_create(&target);
    if (err)
        goto done;
    err = build_layouts(restore, source, target);
    if (err)
        goto done;
    err = cairn_reshard_plan(source, target, &options, &restore->moves, report, sizeof report);
    if (err) {
        client_say(restore->client, CAIRN_LOG_ERROR,
                   "client: generation epoch=%llu step=%llu does not fit the tensors: %s",
                   (unsigned long long)cairn_epoch_number(restore->info.generation.epoch),
                   (unsigned long long)restore->info.generation.step, report);
        if (err == CAIRN_NOT_FOUND)
            err = CAIRN_INVAL; /* what is registered is not in it */
    }
done:
    cairn_layout_destroy(source);
    cairn_layout_destroy(target);
    return err;
}

/* ---- reading ---- */

/* Maps bytes [begin, begin + bytes) of the agent's memory, up to the end of the last page.
 * CAIRN_INVAL (not logged) if they do not begin with a page. */
static cairn_err
map_memory(const struct cairn_client *client, int fd, uint64_t begin, uint64_t bytes,
           int protection, uint8_t **out, size_t *map_bytes)
{
    uint64_t file_bytes, page_bytes = client_page_bytes(fd);
    void *map;
    cairn_err err = cairn_session_fd_check(fd, begin + bytes, &file_bytes);

    if (begin % page_bytes)
        return CAIRN_INVAL;

    if (err || bytes == 0) {
        client_say(client, CAIRN_LOG_ERROR, "client: the agent's memory is %s",
                   err == CAIRN_DENIED ? "not sealed against shrinking" : "shorter than it says");
        return CAIRN_CORRUPT;
    }
    bytes += bytes % page_bytes ? page_bytes - bytes % page_bytes : 0;
    if (bytes > file_bytes - begin)
        bytes = file_bytes - begin;
    map = mmap(NULL, bytes, protection, MAP_SHARED, fd, (off_t)begin);
    if (map == MAP_FAILED) {
        client_say(client, CAIRN_LOG_ERROR,
                   "client: the agent's memory cannot be mapped errno=%d (%s)", errno,
                   strerror(errno));
        return CAIRN_NOMEM;
    }
    (void)madvise(map, bytes, MADV_DONTFORK);
    *out = map;
    *map_bytes = bytes;
    return CAIRN_OK;
}

/* Finds the container with this rank's own region, and maps it from the rank's file of the slot if
 * the agent says that it is there. */
static cairn_err
map_own_region(struct restore *restore)
{
    const struct client_mail *mail = &restore->client->mail;
    uint64_t begin = mail->region_offset, bytes = mail->region_bytes;
    cairn_err err;

    if (mail->own_slot_fd < 0 || bytes == 0)
        return CAIRN_OK;
    for (uint32_t c = 0; c < restore->info.count; c++) {
        const struct cairn_manifest *manifest = &restore->manifests[c];

        for (uint32_t r = 0; r < manifest->rank_count; r++) {
            const struct cairn_manifest_rank *rank = &manifest->ranks[r];

            if (rank->rank != restore->client->rank || rank->region_offset != begin ||
                rank->region_bytes != bytes || begin + bytes > manifest->container_bytes)
                continue;
            err = map_memory(restore->client, mail->own_slot_fd, begin, bytes, PROT_READ,
                             &restore->own, &restore->own_map_bytes);
            if (err)
                return err == CAIRN_INVAL ? CAIRN_OK : err;
            restore->info.own_container = c;
            restore->own_first_block = begin / CAIRN_BLOCK_BYTES;
            restore->own_end_block = (begin + bytes) / CAIRN_BLOCK_BYTES;
            return CAIRN_OK;
        }
    }
    return CAIRN_OK;
}

static cairn_err
map_sources(struct restore *restore)
{
    const struct client_mail *mail = &restore->client->mail;
    uint32_t own = restore->info.own_container;
    cairn_err err =
        map_memory(restore->client, mail->window_fd, 0, restore->info.window_bytes,
                   PROT_READ | PROT_WRITE, &restore->window, &restore->window_map_bytes);

    if (err)
        return err;
    if (own == CAIRN_CONTAINER_NONE)
        return map_own_region(restore);
    if (own >= restore->info.count)
        return CAIRN_CORRUPT;
    if (mail->own_slot_fd < 0 || restore->manifests[own].container_bytes == 0) {
        /* The agent refused our tensors, so we have no slot, or the slot is empty. */
        restore->info.own_container = CAIRN_CONTAINER_NONE;
        return CAIRN_OK;
    }
    restore->own_end_block = restore->manifests[own].block_count;
    return map_memory(restore->client, mail->own_slot_fd, 0,
                      restore->manifests[own].container_bytes, PROT_READ, &restore->own,
                      &restore->own_map_bytes);
}

/* Lists the registered tensors in host memory that hold the newest generation's bytes. */
static cairn_err
list_present(struct restore *restore)
{
    const struct client_tensors *tensors = restore->client->tensors;

    if (restore->target == tensors || !tensors)
        return CAIRN_OK;
    restore->present = calloc(tensors->count + 1u, sizeof *restore->present);
    if (!restore->present)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < tensors->count; i++)
        if (tensors->slices[i].device < 0)
            restore->present[restore->present_count++] = tensors->slices[i];
    return CAIRN_OK;
}

static cairn_err
run(struct restore *restore, struct cairn_restored *out)
{
    struct client_fill fill = {.client = restore->client, .deadline_ns = restore->deadline_ns};
    cairn_err err = list_present(restore);

    if (err)
        return err;
    err = ask_and_unpack(restore);
    if (err)
        return err;
    err = unpack_manifests(restore);
    if (err)
        return err;
    err = map_sources(restore);
    if (err)
        return err;
    err = plan(restore);
    if (err)
        return err;
    fill.slices = restore->target->slices;
    fill.slice_count = restore->target->count;
    fill.manifests = restore->manifests;
    fill.container_count = restore->info.count;
    fill.present = restore->present;
    fill.present_count = restore->present_count;
    fill.moves = &restore->moves;
    fill.own_container = restore->info.own_container;
    fill.own = restore->own;
    fill.own_first_block = restore->own_first_block;
    fill.own_end_block = restore->own_end_block;
    fill.window = restore->window;
    fill.window_bytes = restore->info.window_bytes;
    fill.failing = restore->failing = calloc(fill.slice_count, sizeof *fill.failing);
    if (!fill.failing)
        return CAIRN_NOMEM;
    err = client_fill_run(&fill);
    restore->hung = fill.hung;
    if (err)
        return err;
    client_known_restored(restore->client, restore->target, fill.failing);
    out->generation = public_name(restore->info.generation);
    out->bytes = fill.own_bytes + fill.fetched_bytes;
    out->local_bytes = fill.own_bytes;
    *(restore->info.source == CAIRN_SOURCE_FILES ? &out->file_bytes : &out->remote_bytes) =
        fill.fetched_bytes;
    return CAIRN_OK;
}

static void
unmap(struct client_hung *hung)
{
    if (hung->window)
        munmap(hung->window, hung->window_map_bytes);
    if (hung->own)
        munmap(hung->own, hung->own_map_bytes);
    memset(hung, 0, sizeof *hung);
}

/*
 * Waits for a device that hung in the previous restore. Its late copies read a window that is
 * filled again by now; they would overwrite what this restore brings, on a stream of their own,
 * after all checks.
 */
static cairn_err
await_hung(struct cairn_client *client, uint64_t deadline_ns)
{
    struct client_hung *hung = &client->hung;

    if (!hung->sink)
        return CAIRN_OK;
    while (!client_sink_close(hung->sink)) {
        if (client_now_ns() < deadline_ns)
            continue;
        client_say(
            client, CAIRN_LOG_ERROR,
            "client: restore failed: a device hangs, and still has copies of the restore before");
        return CAIRN_TIMEOUT;
    }
    unmap(hung);
    return CAIRN_OK;
}

static void
restore_fini(struct restore *restore)
{
    struct client_hung had = {restore->hung, restore->window, restore->own,
                              restore->window_map_bytes, restore->own_map_bytes};

    if (had.sink)
        restore->client->hung = had;
    else
        unmap(&had);
    for (uint32_t i = 0; restore->manifests && i < restore->info.count; i++)
        cairn_manifest_fini(&restore->manifests[i]);
    free(restore->manifests);
    free(restore->failing);
    free(restore->present);
    cairn_moves_fini(&restore->moves);
    cairn_session_restore_info_fini(&restore->info);
}

cairn_err
cairn_client_restore(struct cairn_client *client, struct cairn_restored *out)
{
    if (!client_usable(client))
        return CAIRN_INVAL;
    return client_restore_until(client, client->tensors, /* only this thread replaces them */
                                client_now_ns() + client->restore_timeout_ns, out);
}

cairn_err
client_restore_until(struct cairn_client *client, struct client_tensors *target,
                     uint64_t deadline_ns, struct cairn_restored *out)
{
    struct restore restore = {.client = client, .target = target, .deadline_ns = deadline_ns};
    struct cairn_restored restored = {0};
    cairn_err err;

    if (!client_usable(client) || !out || !target || target->count == 0)
        return CAIRN_INVAL;
    err = client_abi_check_restored(client, out);
    if (err)
        return err;
    if (client->path[0] == '\0')
        return CAIRN_NOT_FOUND; /* no agent is configured: a fresh start */
    err = await_hung(client, restore.deadline_ns);
    if (err)
        return err;
    pthread_mutex_lock(&client->lock);
    client_give_up(client, CAIRN_AGAIN,
                   CAIRN_REASON_OTHER); /* the tensors are about to be overwritten */
    if (!client_wait_idle(client, restore.deadline_ns))
        err = CAIRN_TIMEOUT;
    pthread_mutex_unlock(&client->lock);
    if (err)
        client_say(client, CAIRN_LOG_ERROR,
                   "client: restore failed: the snapshot before does not end");
    else
        err = run(&restore, &restored);
    say_end(&restore, restored.bytes, err);
    if (!err)
        client_say(client, CAIRN_LOG_INFO,
                   "client: restored epoch=%llu step=%llu bytes=%llu local_bytes=%llu "
                   "remote_bytes=%llu file_bytes=%llu",
                   (unsigned long long)cairn_epoch_number(restored.generation.epoch),
                   (unsigned long long)restored.generation.step, (unsigned long long)restored.bytes,
                   (unsigned long long)restored.local_bytes,
                   (unsigned long long)restored.remote_bytes,
                   (unsigned long long)restored.file_bytes);
    restore_fini(&restore);
    if (!err)
        client_abi_put_restored(out, &restored);
    return err;
}

/* ---- listing ---- */

/* Each tensor of the manifests once: the layout finds them by name. */
static cairn_err
list_tensors(struct restore *restore, cairn_list_fn *each, void *context)
{
    struct cairn_layout *layout = NULL;
    const char *why = "";
    cairn_err err = cairn_layout_create(&layout);

    for (uint32_t i = 0; i < restore->info.count && !err; i++)
        err = cairn_manifest_add_to_layout(&restore->manifests[i], layout, &why);
    if (err == CAIRN_INVAL) {
        client_say(restore->client, CAIRN_LOG_ERROR,
                   "client: the manifests do not fit together: %s", why);
        err = CAIRN_CORRUPT;
    }
    for (uint32_t i = 0; !err && i < cairn_layout_tensor_count(layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, i);

        each(context, tensor->name, tensor->dtype, tensor->kind, tensor->dims, tensor->shape);
    }
    cairn_layout_destroy(layout);
    return err;
}

cairn_err
cairn_client_list(struct cairn_client *client, cairn_list_fn *each, void *context,
                  struct cairn_generation *out)
{
    struct restore restore = {.client = client};
    cairn_err err;

    if (!client_usable(client) || !each)
        return CAIRN_INVAL;
    if (client->path[0] == '\0')
        return CAIRN_NOT_FOUND; /* no agent is configured */
    restore.deadline_ns = client_now_ns() + client->restore_timeout_ns;
    err = ask_and_unpack(&restore);
    if (!err)
        err = unpack_manifests(&restore);
    if (!err)
        err = list_tensors(&restore, each, context);
    say_end(&restore, 0, err);
    if (!err && out)
        *out = public_name(restore.info.generation);
    restore_fini(&restore);
    return err;
}
