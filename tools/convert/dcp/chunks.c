/*
 * tools/convert/dcp/chunks.c - chunks of tensors in a distributed checkpoint: each is an archive
 * that says where its elements lie. There may be a hundred thousand, and opening them is most of
 * the work of reading such a checkpoint, so threads open a batch ahead of who adds them in order.
 */
#include "tools/convert/dcp/dcp.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "snapshot/box.h"
#include "tools/convert/torch/file.h"

enum {
    HANDS_MAX = 4,
    BATCH_ITEMS = 8192,  /* what is open at a time: 2 MiB */
    HAND_ITEMS_MIN = 256 /* fewer are not worth a thread */
};

/* One thread's share of a batch. It ends at the first item that it cannot open. */
struct hand {
    struct cairn_dcp_chunks *chunks;
    size_t begin, end; /* of the wants */
    size_t done;       /* [begin, done) are open */
    cairn_err err;     /* of item `done`; CAIRN_OK: its file could not be opened, which the taker
                        * says */
    struct cairn_complaint complaint;
    pthread_t thread;
};

struct cairn_dcp_chunks {
    const struct cairn_checkpoint *checkpoint;
    const struct cairn_dcp_metadata *metadata;
    const struct cairn_dcp_wants *wants;
    size_t begin, end; /* the batch */
    struct hand hands[HANDS_MAX];
    uint32_t hand_count; /* of the batch */
    uint32_t hands_max;
    struct cairn_dcp_chunk opened[BATCH_ITEMS];
};

/* ---- one item ---- */

static bool
is_chunk(const struct cairn_torch_file *file, const struct cairn_dcp_entry *entry,
         const uint64_t *extent)
{
    const struct cairn_torch_tensor *found = file->tensor_count == 1 ? &file->tensors[0] : NULL;

    return found && found->node == file->root && found->view.dtype->dtype == entry->dtype &&
           cairn_shape_equal(found->view.dims, found->view.shape, entry->dims, extent) &&
           !found->view.conjugate && !found->view.negate;
}

static cairn_err
open_chunk(const struct cairn_dcp_chunks *chunks, const struct cairn_dcp_source *source,
           const struct cairn_dcp_wanted *wanted, struct cairn_dcp_chunk *chunk,
           struct cairn_complaint *complaint)
{
    const struct cairn_dcp_entry *entry = &chunks->metadata->entries[wanted->entry];
    const uint64_t *extent = wanted->box + entry->dims;
    const char *place = chunks->checkpoint->place.path;
    struct cairn_torch_file file = {0};
    char where[CAIRN_DCP_WHERE_BYTES_MAX];
    cairn_err err;

    *chunk = (struct cairn_dcp_chunk){.at = 0};
    cairn_dcp_say_where(source, &wanted->item, entry->name, where);
    err = cairn_torch_open(source->fd, where, wanted->item.offset_bytes, wanted->item.bytes,
                           CAIRN_DCP_TREE_BYTES_MAX, &file, complaint);
    if (err)
        return cairn_complain(
            complaint, err,
            "%s: the item of %s is not a whole archive of torch.save; take another copy", place,
            where);
    if (!is_chunk(&file, entry, extent)) {
        err = cairn_complain(complaint, CAIRN_CORRUPT,
                             "%s: %s holds another tensor than .metadata names; the files are of "
                             "two checkpoints, or damaged",
                             place, where);
    } else {
        const struct cairn_torch_tensor *found = &file.tensors[0];
        const struct cairn_torch_stored *stored = &file.storages[found->storage];

        for (uint32_t d = 0; d < entry->dims; d++) {
            chunk->start[d] = wanted->box[d];
            chunk->extent[d] = extent[d];
        }
        cairn_torch_view_strides(&found->view, chunk->stride_bytes);
        chunk->at = found->at;
        chunk->stored_at = stored->at;
        chunk->stored_bytes = stored->bytes;
        chunk->crc32 = stored->crc32;
        chunk->mark = source->mark;
    }
    cairn_torch_close(&file);
    return err;
}

/* ---- a batch ---- */

/* The file of an item, where it can be opened and has the item whole. Who takes the item finds the
 * same and says it. */
static bool
select_file(const struct cairn_place *place, struct cairn_dcp_source *source,
            const struct cairn_dcp_item *item)
{
    struct cairn_complaint unheard = {""};

    if (!source->path || cairn_dcp_compare_paths(source->path, item->path) != 0) {
        cairn_dcp_source_close(source);
        if (!cairn_pickle_copy_text(item->path, source->name, sizeof(source->name)) ||
            !cairn_place_name_check(source->name) ||
            cairn_place_open_file(place, source->name, &source->fd, &unheard) != CAIRN_OK ||
            cairn_file_mark_take(source->fd, &source->mark) != CAIRN_OK)
            return false;
        source->path = item->path;
    }
    return item->offset_bytes <= source->mark.bytes &&
           item->bytes <= source->mark.bytes - item->offset_bytes;
}

static void *
work(void *argument)
{
    struct hand *hand = argument;
    struct cairn_dcp_chunks *chunks = hand->chunks;
    struct cairn_dcp_source source = {.fd = -1};

    for (; hand->done < hand->end; hand->done++) {
        const struct cairn_dcp_wanted *wanted = &chunks->wants->items[hand->done];

        if (!chunks->metadata->entries[wanted->entry].tensor)
            continue;
        if (!select_file(&chunks->checkpoint->place, &source, &wanted->item))
            break;
        hand->err = open_chunk(chunks, &source, wanted, &chunks->opened[hand->done - chunks->begin],
                               &hand->complaint);
        if (hand->err)
            break;
    }
    cairn_dcp_source_close(&source);
    return NULL;
}

/* Opens the batch that begins at `begin`. A thread that cannot be started is done without. */
static void
open_batch(struct cairn_dcp_chunks *chunks, size_t begin)
{
    size_t left = chunks->wants->count - begin, each;
    bool started[HANDS_MAX] = {false};
    sigset_t all, before;

    left = left < BATCH_ITEMS ? left : BATCH_ITEMS;
    chunks->begin = begin;
    chunks->end = begin + left;
    chunks->hand_count = left / HAND_ITEMS_MIN < 1 ? 1 : (uint32_t)(left / HAND_ITEMS_MIN);
    if (chunks->hand_count > chunks->hands_max)
        chunks->hand_count = chunks->hands_max;
    each = (left + chunks->hand_count - 1) / chunks->hand_count;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the main thread's */
    for (uint32_t i = 0; i < chunks->hand_count; i++) {
        struct hand *hand = &chunks->hands[i];
        size_t from = i * each < left ? i * each : left;
        size_t to = from + each < left ? from + each : left;

        *hand = (struct hand){
            .chunks = chunks, .begin = begin + from, .end = begin + to, .done = begin + from};
        if (i > 0)
            started[i] = pthread_create(&hand->thread, NULL, work, hand) == 0;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    for (uint32_t i = 0; i < chunks->hand_count; i++)
        if (started[i])
            (void)pthread_join(chunks->hands[i].thread, NULL);
        else
            (void)work(&chunks->hands[i]);
}

/* ---- public ---- */

cairn_err
cairn_dcp_chunks_open(const struct cairn_checkpoint *checkpoint,
                      const struct cairn_dcp_metadata *metadata,
                      const struct cairn_dcp_wants *wants, struct cairn_dcp_chunks **out)
{
    struct cairn_dcp_chunks *chunks = calloc(1, sizeof(*chunks));
    long threads = checkpoint->thread_count > 0 ? (long)checkpoint->thread_count
                                                : sysconf(_SC_NPROCESSORS_ONLN);

    *out = chunks;
    if (!chunks)
        return CAIRN_NOMEM;
    chunks->checkpoint = checkpoint;
    chunks->metadata = metadata;
    chunks->wants = wants;
    chunks->hands_max = threads < 1 ? 1 : threads > HANDS_MAX ? HANDS_MAX : (uint32_t)threads;
    return CAIRN_OK;
}

void
cairn_dcp_chunks_close(struct cairn_dcp_chunks *chunks)
{
    free(chunks);
}

cairn_err
cairn_dcp_chunks_take(struct cairn_dcp_chunks *chunks, size_t index,
                      struct cairn_checkpoint *checkpoint, const struct cairn_dcp_source *source,
                      const struct cairn_dcp_chunk **chunk)
{
    struct cairn_dcp_chunk *opened;
    const struct hand *hand = chunks->hands;
    cairn_err err = CAIRN_OK;

    if (index < chunks->begin || index >= chunks->end)
        open_batch(chunks, index);
    while (index >= hand->end)
        hand++;
    opened = &chunks->opened[index - chunks->begin];
    if (index >= hand->done && hand->err)
        return cairn_complain(checkpoint->complaint, hand->err, "%s", hand->complaint.text);
    if (index >= hand->done) /* its file was not there then, and is now */
        err =
            open_chunk(chunks, source, &chunks->wants->items[index], opened, checkpoint->complaint);
    if (!err &&
        !cairn_file_mark_equal(&opened->mark, &checkpoint->containers[source->container].mark))
        err = cairn_checkpoint_complain_changed(checkpoint, source->name, checkpoint->complaint);
    if (!err)
        err = cairn_checkpoint_add_storage_sum(checkpoint, source->container, opened->stored_at,
                                               opened->stored_bytes, opened->crc32);
    *chunk = opened;
    return err;
}
