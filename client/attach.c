/*
 * client/attach.c - register: the trainer's tensors, and the slots of the agent's memory for them.
 *
 * A slot's descriptor is accepted only if it is sealed against shrinking and long enough: then no
 * access through the mapping can end in SIGBUS, even if the agent fails. Forked children do not
 * inherit mappings. A file without pages is not touched before a grant: touching it would allocate
 * pages that nobody has reserved.
 */
#include "cairn/client.h"

#include "client/abi.h"
#include "client/state.h"

#include "base/limits.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- slots. Service thread ---- */

static void
slot_unmap(struct cairn_client *client, struct client_slot *slot)
{
    if (slot->map && cairn_capture_forget(client->capture, slot->map))
        munmap(slot->map, slot->map_bytes);
    if (slot->fd >= 0)
        close(slot->fd);
    memset(slot, 0, sizeof *slot);
    slot->fd = -1;
}

/* Takes the slots from the captures to come: slots[CAIRN_SESSION_FDS_MAX]. Returns how many. */
static uint32_t
take_slots(struct cairn_client *client, struct client_slot *slots)
{
    uint32_t count;

    pthread_mutex_lock(&client->lock);
    count = client->slot_count;
    memcpy(slots, client->slots, count * sizeof *slots);
    client->slot_count = 0;
    pthread_mutex_unlock(&client->lock);
    return count;
}

void
client_slots_unmap(struct cairn_client *client)
{
    struct client_slot old[CAIRN_SESSION_FDS_MAX];
    uint32_t count = take_slots(client, old);

    client_slots_unmap_left(client);
    for (uint32_t i = 0; i < count; i++)
        slot_unmap(client, &old[i]);
}

void
client_slots_leave(struct cairn_client *client)
{
    uint32_t count;

    client_slots_unmap_left(client);
    count = take_slots(client, client->left);
    for (uint32_t i = 0; i < count; i++) {
        struct client_slot *slot = &client->left[i];

        if (slot->map && !cairn_capture_forget(client->capture, slot->map))
            slot->map = NULL; /* a device may still write there: it stays mapped */
        if (slot->fd >= 0)
            close(slot->fd);
    }
    client->left_count = count;
}

void
client_slots_unmap_left(struct cairn_client *client)
{
    for (; client->left_count > 0; client->left_count--) {
        struct client_slot *slot = &client->left[client->left_count - 1];

        if (slot->map)
            munmap(slot->map, slot->map_bytes);
    }
}

uint64_t
client_page_bytes(int fd)
{
    uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    struct stat status;

    if (fstat(fd, &status) == 0 && status.st_blksize > 0 &&
        (uint64_t)status.st_blksize % page_bytes == 0)
        page_bytes = (uint64_t)status.st_blksize;
    return page_bytes;
}

/* True if the region has its pages; the agent gives all of them at once. */
static bool
has_pages(int fd, uint64_t bytes)
{
    struct stat status;

    return fstat(fd, &status) == 0 && (uint64_t)status.st_blocks >= bytes / 512;
}

/* Maps region [offset, offset + bytes) of a slot, widened to whole pages; before a grant only if it
 * has them. */
static cairn_err
slot_map(struct cairn_client *client, struct client_slot *slot, uint64_t offset, uint64_t bytes,
         bool granted)
{
    uint64_t file_bytes, page_bytes, begin, end;
    cairn_err err = cairn_session_fd_check(slot->fd, offset + bytes, &file_bytes);

    if (err) {
        client_say(client, CAIRN_LOG_ERROR,
                   "client: the agent's memory is %s; run an agent of this version",
                   err == CAIRN_DENIED ? "not sealed against shrinking" : "shorter than it says");
        return CAIRN_CORRUPT;
    }
    if (bytes == 0 || (!granted && !has_pages(slot->fd, bytes)))
        return CAIRN_OK;
    page_bytes = client_page_bytes(slot->fd);
    begin = offset - offset % page_bytes;
    end = offset + bytes;
    end += end % page_bytes ? page_bytes - end % page_bytes : 0;
    if (end > file_bytes)
        end = file_bytes;
    slot->map_bytes = (size_t)(end - begin);
    slot->map =
        mmap(NULL, slot->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, slot->fd, (off_t)begin);
    if (slot->map == MAP_FAILED) {
        slot->map = NULL;
        client_say(client, CAIRN_LOG_ERROR,
                   "client: the agent's memory cannot be mapped errno=%d (%s)", errno,
                   strerror(errno));
        return CAIRN_NOMEM;
    }
    (void)madvise(slot->map, slot->map_bytes, MADV_DONTFORK); /* a forked child has no use for it */
    slot->region = (uint8_t *)slot->map + (offset - begin);
    return CAIRN_OK;
}

/* Opens every device that the tensors are on and pins the mapped memory for it. */
static cairn_err
slot_prepare(struct cairn_client *client, struct client_slot *slot, const int32_t *devices,
             uint32_t device_count)
{
    for (uint32_t i = 0; slot->map && i < device_count; i++) {
        cairn_err err =
            cairn_capture_prepare(client->capture, devices[i], slot->map, slot->map_bytes);

        if (err)
            return err;
    }
    return CAIRN_OK;
}

/* Copies what the tensors need: mapping is slow, and register may replace them meanwhile. */
struct need {
    uint64_t region_bytes;
    int32_t devices[CAIRN_RANKS_PER_NODE_MAX];
    uint32_t device_count;
};

static struct need
read_need(struct cairn_client *client)
{
    struct need need;

    pthread_mutex_lock(&client->lock);
    need.region_bytes = client->tensors->region_bytes;
    need.device_count = client->tensors->device_count;
    memcpy(need.devices, client->tensors->devices, sizeof need.devices);
    pthread_mutex_unlock(&client->lock);
    return need;
}

cairn_err
client_slot_open(struct cairn_client *client, uint32_t slot)
{
    struct client_slot *opened = &client->slots[slot];
    struct need need = read_need(client);
    cairn_err err;

    if (opened->map || need.region_bytes == 0)
        return CAIRN_OK;
    err = slot_map(client, opened, client->region_offset, need.region_bytes, true);
    return err ? err : slot_prepare(client, opened, need.devices, need.device_count);
}

void
client_slots_map_next(struct cairn_client *client)
{
    uint64_t region_bytes = 0;
    bool on_device = false;

    pthread_mutex_lock(&client->lock);
    if (client->registration == CLIENT_REGISTER_DONE) { /* else the slots are of other tensors */
        region_bytes = client->tensors->region_bytes;
        on_device = client->tensors->device_count > 0;
    }
    pthread_mutex_unlock(&client->lock);
    for (uint32_t i = 0; region_bytes && i < client->slot_count; i++) {
        struct client_slot *slot = &client->slots[i];

        if (slot->is_written)
            continue;
        if (!slot->map && !on_device) /* pinning would hold up this thread */
            (void)!slot_map(client, slot, client->region_offset, region_bytes, false);
        if (slot->map)
            cairn_capture_map_next(client->capture, slot->region, region_bytes);
        return;
    }
}

cairn_err
client_slots_map(struct cairn_client *client, const struct cairn_session_registered *value,
                 struct cairn_session_frame *frame)
{
    struct client_slot slots[CAIRN_SESSION_FDS_MAX];
    struct need need = read_need(client);
    cairn_err err = CAIRN_OK;

    if (value->region_bytes != need.region_bytes) {
        client_say(client, CAIRN_LOG_ERROR,
                   "client: the agent's region has %llu bytes instead of %llu; run an agent of "
                   "this version",
                   (unsigned long long)value->region_bytes, (unsigned long long)need.region_bytes);
        return CAIRN_VERSION;
    }
    memset(slots, 0, sizeof slots);
    for (uint32_t i = 0; i < CAIRN_SESSION_FDS_MAX; i++)
        slots[i].fd = -1;
    for (uint32_t i = 0; i < value->slot_count && !err; i++) {
        slots[i].fd = frame->fds[i];
        frame->fds[i] = -1;
        err = slot_map(client, &slots[i], value->region_offset, value->region_bytes, false);
        if (!err)
            err = slot_prepare(client, &slots[i], need.devices, need.device_count);
    }
    if (err) {
        for (uint32_t i = 0; i < value->slot_count; i++)
            slot_unmap(client, &slots[i]);
        return err;
    }
    pthread_mutex_lock(&client->lock);
    memcpy(client->slots, slots, sizeof slots);
    client->slot_count = value->slot_count;
    client->region_offset = value->region_offset;
    pthread_mutex_unlock(&client->lock);
    return CAIRN_OK;
}

/* ---- the trainer's tensors ---- */

void
client_tensors_free(struct client_tensors *tensors)
{
    if (!tensors)
        return;
    free(tensors->slices);
    free(tensors->entries);
    free(tensors->runs);
    free(tensors->ends);
    free(tensors->reaches);
    free(tensors->crcs);
    free(tensors->names);
    free(tensors->known);
    free(tensors->run_slices);
    free(tensors->failing);
    free(tensors);
}

/* Checks each slice on its own, so that the log names the wrong one. */
static cairn_err
check_slices(const struct cairn_client *client, const struct cairn_slice *slices, uint32_t count,
             size_t *names_bytes)
{
    *names_bytes = 1;
    for (uint32_t i = 0; i < count; i++) {
        const char *why = "it is wrong";
        cairn_err err = cairn_slice_check(&slices[i], &why);

        if (!err && !slices[i].address && cairn_slice_elements(&slices[i])) {
            why = "it has no address";
            err = CAIRN_INVAL;
        }
        if (err) {
            client_say(client, CAIRN_LOG_ERROR,
                       "client: slice index=%u of tensor \"%.*s\" is refused: %s", i,
                       CAIRN_NAME_BYTES_MAX, slices[i].name ? slices[i].name : "", why);
            return err;
        }
        *names_bytes += strlen(slices[i].name) + 1;
    }
    return CAIRN_OK;
}

/* Copies the names: the caller keeps them only for the call. */
static void
copy_names(struct client_tensors *tensors)
{
    char *name = tensors->names;

    for (uint32_t i = 0; i < tensors->count; i++) {
        size_t name_bytes = strlen(tensors->slices[i].name) + 1;

        memcpy(name, tensors->slices[i].name, name_bytes);
        tensors->slices[i].name = name;
        name += name_bytes;
    }
}

/* Notes the device of a run; CAIRN_INVAL when there are more than a node has. */
static cairn_err
note_device(struct client_tensors *tensors, int32_t device)
{
    if (device < 0)
        return CAIRN_OK;
    for (uint32_t i = 0; i < tensors->device_count; i++)
        if (tensors->devices[i] == device)
            return CAIRN_OK;
    if (tensors->device_count == CAIRN_RANKS_PER_NODE_MAX)
        return CAIRN_INVAL;
    tensors->devices[tensors->device_count++] = device;
    return CAIRN_OK;
}

static cairn_err
plan_runs(struct client_tensors *tensors)
{
    for (uint32_t i = 0; i < tensors->count; i++) {
        const struct cairn_manifest_entry *entry = &tensors->entries[i];
        struct cairn_capture_run *run = &tensors->runs[tensors->run_count];
        uint64_t bytes = cairn_capture_bytes(entry);

        if (bytes == 0)
            continue;
        run->source = entry->slice.address;
        run->bytes = bytes;
        run->offset = entry->offset_bytes;
        run->device = entry->slice.device;
        run->type = cairn_finite_of(entry->slice.dtype);
        tensors->run_slices[tensors->run_count] = i;
        tensors->ends[i] = entry->offset_bytes + bytes;
        tensors->share_bytes += bytes;
        tensors->run_count++;
        if (note_device(tensors, run->device))
            return CAIRN_INVAL;
    }
    return CAIRN_OK;
}

/* The memory of a whole slice, not only of this rank's share. */
struct span {
    uintptr_t begin, end;
    uint32_t slice;
};

static int
compare_spans(const void *a, const void *b)
{
    const struct span *left = a, *right = b;

    return left->begin < right->begin ? -1 : left->begin > right->begin;
}

/*
 * Memory that several slices share is read for each of them, so all of them end with the last. So
 * do slices that other slices join: later than necessary, never too early.
 */
static cairn_err
join_ends(struct client_tensors *tensors)
{
    struct span *spans = calloc(tensors->count ? tensors->count : 1, sizeof *spans);
    uint32_t count = 0;

    if (!spans)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < tensors->count; i++) {
        const struct cairn_slice *slice = &tensors->slices[i];
        uint64_t bytes = cairn_slice_elements(slice) * cairn_dtype_bytes(slice->dtype);

        if (bytes)
            spans[count++] =
                (struct span){(uintptr_t)slice->address, (uintptr_t)slice->address + bytes, i};
    }
    qsort(spans, count, sizeof *spans, compare_spans);
    for (uint32_t first = 0, next; first < count; first = next) {
        uintptr_t furthest = spans[first].end;
        uint64_t last = tensors->ends[spans[first].slice];

        for (next = first + 1; next < count && spans[next].begin < furthest; next++) {
            furthest = spans[next].end > furthest ? spans[next].end : furthest;
            last =
                tensors->ends[spans[next].slice] > last ? tensors->ends[spans[next].slice] : last;
        }
        for (uint32_t i = first; i < next; i++)
            tensors->ends[spans[i].slice] = last;
    }
    free(spans);
    for (uint32_t i = 0; i < tensors->count; i++)
        tensors->reaches[i] = i > 0 && tensors->reaches[i - 1] > tensors->ends[i]
                                  ? tensors->reaches[i - 1]
                                  : tensors->ends[i];
    return CAIRN_OK;
}

cairn_err
client_tensors_create(const struct cairn_client *client, const struct cairn_slice *slices,
                      uint32_t count, struct client_tensors **out)
{
    struct client_tensors *tensors = NULL;
    size_t names_bytes, room = count ? count : 1;
    const char *why = "the sum is too large";
    cairn_err err;

    if ((count && !slices) || count == CAIRN_FENCE_ALL)
        return CAIRN_INVAL;
    tensors = calloc(1, sizeof *tensors);
    if (!tensors)
        return CAIRN_NOMEM;
    err = client_abi_take_slices(client, slices, count, &tensors->slices);
    if (err)
        goto done;
    tensors->count = count;
    err = check_slices(client, tensors->slices, count, &names_bytes);
    if (err)
        goto done;
    tensors->entries = calloc(room, sizeof *tensors->entries);
    tensors->runs = calloc(room, sizeof *tensors->runs);
    tensors->ends = calloc(room, sizeof *tensors->ends);
    tensors->reaches = calloc(room, sizeof *tensors->reaches);
    tensors->names = malloc(names_bytes);
    tensors->known = calloc(room, sizeof *tensors->known);
    tensors->run_slices = calloc(room, sizeof *tensors->run_slices);
    tensors->failing = calloc(room, sizeof *tensors->failing);
    err = CAIRN_NOMEM;
    if (!tensors->entries || !tensors->runs || !tensors->ends || !tensors->reaches ||
        !tensors->names || !tensors->known || !tensors->run_slices || !tensors->failing)
        goto done;
    copy_names(tensors);
    err =
        cairn_capture_plan(tensors->slices, count, tensors->entries, &tensors->region_bytes, &why);
    if (!err) {
        why = "they are on more devices than a node has";
        err = plan_runs(tensors);
    }
    if (err) {
        client_say(client, CAIRN_LOG_ERROR, "client: the tensors are refused: %s", why);
        goto done;
    }
    err = join_ends(tensors);
    if (err)
        goto done;
    tensors->block_count = tensors->region_bytes / CAIRN_BLOCK_BYTES;
    tensors->crcs = calloc(tensors->block_count ? tensors->block_count : 1, sizeof *tensors->crcs);
    if (!tensors->crcs) {
        err = CAIRN_NOMEM;
        goto done;
    }
    *out = tensors;
    tensors = NULL;
done:
    client_tensors_free(tensors);
    return err;
}

/* Waits for the answer; being or becoming detached is not an error. Lock held. */
static cairn_err
wait_registered(struct cairn_client *client, uint64_t deadline_ns, bool *silent)
{
    while (client->link == CLIENT_LINK_ATTACHED &&
           (client->registration == CLIENT_REGISTER_WANTED ||
            client->registration == CLIENT_REGISTER_SENT))
        if (!client_wait(client, deadline_ns)) {
            *silent = client->register_at_ns == 0;
            return client->register_at_ns ? CAIRN_AGAIN : CAIRN_OK;
        }
    return client->registration == CLIENT_REGISTER_FAILED ? client->registration_err : CAIRN_OK;
}

cairn_err
cairn_client_register(struct cairn_client *client, const struct cairn_slice *slices, uint32_t count)
{
    struct client_tensors *tensors = NULL;
    cairn_err err;

    if (!client_usable(client))
        return CAIRN_INVAL;
    err = client_tensors_create(client, slices, count, &tensors);
    return err ? err : client_tensors_register(client, tensors);
}

cairn_err
client_tensors_register(struct cairn_client *client, struct client_tensors *tensors)
{
    uint64_t deadline_ns;
    struct client_tensors *old;
    bool silent = false;
    cairn_err err =
        client_known_carry(client->tensors, tensors); /* only this thread replaces them */

    if (err) {
        client_tensors_free(tensors);
        return err;
    }
    pthread_mutex_lock(&client->lock);
    client_give_up(client, CAIRN_AGAIN, CAIRN_REASON_CLOSING);
    if (!client_wait_idle(client, client_now_ns() + client->fence_timeout_ns)) {
        err = CAIRN_TIMEOUT; /* the old tensors are still being read */
        goto done;
    }
    old = client->tensors;
    client->tensors = tensors;
    tensors = old;
    client->snapshot.state = CLIENT_SNAPSHOT_NONE;
    if (client->report.active) { /* its checksums went with the old tensors */
        client->report.ended = true;
        client->report.result = CAIRN_AGAIN;
        client->report.reason = CAIRN_REASON_CLOSING;
    }
    client->registration = CLIENT_REGISTER_WANTED;
    client->register_at_ns = 0;
    client_wake(client);
    deadline_ns = client_now_ns() + client->connect_timeout_ns;
    if (client->link != CLIENT_LINK_NONE)
        err = wait_registered(client, deadline_ns, &silent);
done:
    pthread_mutex_unlock(&client->lock);
    client_tensors_free(tensors);
    if (silent)
        client_say(client, CAIRN_LOG_WARN,
                   "client: the agent does not answer: registration goes on in the background");
    return err;
}
