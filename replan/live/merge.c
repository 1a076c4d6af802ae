/* replan/live/merge.c - recordings of all nodes become one trace; see merge.h. */
#include "replan/live/merge.h"

#include "base/array.h"
#include "replan/live/recording.h"
#include "replan/live/state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A rank's recording; its bytes were checked when they were added. */
struct entry {
    uint32_t node;
    struct cairn_recorded_rank head;
    uint32_t comm_count;
    const uint8_t *comms;
    struct cairn_reader steps; /* behind the number of steps */
    uint32_t step_count;
};

/* Where the reading of a rank stands. */
struct cursor {
    struct entry *entry; /* NULL: the rank is not known */
    uint32_t *comms;     /* [entry->comm_count] index in the merge's communicators */
    struct cairn_reader reader;
    uint32_t steps_left; /* behind `step` */
    struct cairn_recorded_step step;
    uint32_t ops_left; /* of `step` */
    bool has_step;     /* `step` was read and is not over */
    bool is_told;      /* the step's computation was handed over */
    bool said_life;
};

struct cairn_merge {
    uint8_t **parcels;
    uint32_t parcel_count;
    struct entry *entries;
    uint32_t entry_count;
    uint32_t newest;
    struct live_comms comms;
    struct cairn_topology *topology;
    struct cursor *cursors; /* [world] */
    struct cairn_merge_summary summary;
    uint32_t step, rank; /* what is read next */
};

cairn_err
cairn_merge_create(struct cairn_merge **out)
{
    struct cairn_merge *merge = calloc(1, sizeof *merge);

    if (!merge)
        return CAIRN_NOMEM;
    *out = merge;
    return CAIRN_OK;
}

void
cairn_merge_destroy(struct cairn_merge *merge)
{
    if (!merge)
        return;
    for (uint32_t i = 0; i < merge->parcel_count; i++)
        free(merge->parcels[i]);
    for (uint32_t rank = 0; merge->cursors && rank < merge->summary.world; rank++)
        free(merge->cursors[rank].comms);
    free(merge->parcels);
    free(merge->entries);
    free(merge->cursors);
    live_comms_fini(&merge->comms);
    cairn_topology_destroy(merge->topology);
    free(merge);
}

/* ---- taking ---- */

/* Reads a rank's recording to its end, and fills *out. False: it is malformed. */
static bool
read_entry(struct cairn_reader *reader, struct entry *out, uint32_t *newest)
{
    uint32_t last = 0;

    cairn_recorded_unpack_rank(reader, &out->head);
    out->comm_count = cairn_read_u32(reader);
    if (out->comm_count > CAIRN_RECORDED_COMMS_MAX)
        return false;
    out->comms = reader->at;
    for (uint32_t i = 0; i < out->comm_count; i++) {
        struct cairn_recorded_comm comm;

        cairn_recorded_unpack_comm(reader, &comm);
    }
    out->step_count = cairn_read_u32(reader);
    if (reader->failed || out->step_count > CAIRN_RECORDED_STEPS_MAX + 1)
        return false;
    out->steps = *reader;
    for (uint32_t i = 0; i < out->step_count; i++) {
        struct cairn_recorded_step step;

        cairn_recorded_unpack_step(reader, &step);
        if (reader->failed || step.step <= last)
            return false;
        last = step.step;
        for (uint32_t op = 0; op < step.op_count; op++) {
            struct cairn_recorded_op value;

            cairn_recorded_unpack_op(reader, &value);
            if (reader->failed || value.comm >= out->comm_count)
                return false;
        }
    }
    *newest = last > *newest ? last : *newest;
    return !reader->failed;
}

cairn_err
cairn_merge_add(struct cairn_merge *merge, uint32_t node, const void *bytes, size_t bytes_len)
{
    uint32_t entries_before = merge->entry_count, newest = merge->newest;
    struct cairn_reader reader;
    uint8_t *copy;

    if (!cairn_array_grow(&merge->parcels, merge->parcel_count, sizeof *merge->parcels))
        return CAIRN_NOMEM;
    copy = malloc(bytes_len ? bytes_len : 1);
    if (!copy)
        return CAIRN_NOMEM;
    merge->parcels[merge->parcel_count++] = copy;
    if (bytes_len > 0)
        memcpy(copy, bytes, bytes_len);
    cairn_reader_init(&reader, copy, bytes_len);
    while (cairn_reader_left(&reader) > 0) {
        struct entry entry = {.node = node};
        bool has_room =
            cairn_array_grow(&merge->entries, merge->entry_count, sizeof *merge->entries);

        if (!has_room || !read_entry(&reader, &entry, &newest)) {
            merge->entry_count = entries_before;
            return has_room ? CAIRN_CORRUPT : CAIRN_NOMEM;
        }
        merge->entries[merge->entry_count++] = entry;
    }
    merge->newest = newest;
    return CAIRN_OK;
}

uint32_t
cairn_merge_newest(const struct cairn_merge *merge)
{
    return merge->newest;
}

/* ---- the job's shape ---- */

static bool
is_running(const struct entry *entry)
{
    return entry->head.presence != CAIRN_PRESENCE_GONE;
}

/* That of the first rank that runs, or else of the first: an earlier job's ranks are gone. */
static uint32_t
world_of(const struct cairn_merge *merge)
{
    for (uint32_t i = 0; i < merge->entry_count; i++)
        if (is_running(&merge->entries[i]))
            return merge->entries[i].head.world;
    return merge->entry_count > 0 ? merge->entries[0].head.world : 0;
}

/* Chooses one recording of each rank: one that runs, else the last. */
static void
choose_entries(struct cairn_merge *merge)
{
    for (uint32_t i = 0; i < merge->entry_count; i++) {
        struct entry *entry = &merge->entries[i];
        struct cursor *cursor;

        if (entry->head.world != merge->summary.world)
            continue;
        cursor = &merge->cursors[entry->head.rank];
        merge->summary.ranks += !cursor->entry;
        if (!cursor->entry || is_running(entry) || !is_running(cursor->entry))
            cursor->entry = entry;
    }
}

/* The communicators of a rank join those of the job. */
static cairn_err
join_comms(struct cairn_merge *merge, struct cursor *cursor, struct cairn_report *report)
{
    struct entry *entry = cursor->entry;
    struct cairn_reader reader;

    cursor->comms = malloc((entry->comm_count + 1) * sizeof *cursor->comms);
    if (!cursor->comms)
        return CAIRN_NOMEM;
    cairn_reader_init(&reader, entry->comms,
                      (size_t)(entry->steps.at - entry->comms)); /* checked before */
    for (uint32_t i = 0; i < entry->comm_count; i++) {
        struct cairn_recorded_comm comm;
        const struct live_comm *found;
        cairn_err err;

        cursor->comms[i] = UINT32_MAX;
        cairn_recorded_unpack_comm(&reader, &comm);
        if (comm.ranks == 0 || comm.ranks > merge->summary.world)
            continue; /* nobody can tell who is in it */
        report->rank = entry->head.rank;
        report->comm = comm.hash;
        report->comm_ranks = comm.ranks;
        report->place = comm.place < comm.ranks ? comm.place : CAIRN_PLACE_NONE;
        err = live_comms_join(&merge->comms, merge->summary.world, report);
        if (err == CAIRN_FULL)
            continue;
        if (err)
            return err;
        found = live_comms_find(&merge->comms, comm.hash);
        cursor->comms[i] = (uint32_t)(found - merge->comms.items);
    }
    return CAIRN_OK;
}

/* Notes which operations the communicators are used for. */
static void
note_use(struct cairn_merge *merge, const struct cursor *cursor)
{
    struct cairn_reader reader = cursor->entry->steps;

    for (uint32_t i = 0; i < cursor->entry->step_count; i++) {
        struct cairn_recorded_step step;

        cairn_recorded_unpack_step(&reader, &step);
        if (merge->summary.first_step == 0 || step.step < merge->summary.first_step)
            merge->summary.first_step = step.step;
        if (step.step > merge->summary.last_step)
            merge->summary.last_step = step.step;
        for (uint32_t op = 0; op < step.op_count; op++) {
            struct cairn_recorded_op value;

            cairn_recorded_unpack_op(&reader, &value);
            if (cursor->comms[value.comm] == UINT32_MAX)
                continue;
            merge->comms.items[cursor->comms[value.comm]].ops |= 1u << value.op;
            merge->comms.items[cursor->comms[value.comm]].steps = 1;
        }
    }
}

/* Reads the head of the rank's next step. */
static void
next_step(struct cursor *cursor)
{
    cursor->has_step = cursor->steps_left > 0;
    if (!cursor->has_step)
        return;
    cursor->steps_left--;
    cairn_recorded_unpack_step(&cursor->reader, &cursor->step);
    cursor->ops_left = cursor->step.op_count;
    cursor->is_told = false;
}

cairn_err
cairn_merge_finish(struct cairn_merge *merge)
{
    uint32_t world = world_of(merge), *node = NULL;
    struct live_shape shape = {.world = world, .takes_parts = true};
    struct cairn_report *report = NULL;
    cairn_err err = CAIRN_NOMEM;

    if (world == 0)
        return CAIRN_NOT_FOUND;
    merge->cursors = calloc(world, sizeof *merge->cursors);
    if (!merge->cursors)
        goto done;
    merge->summary.world = world;
    report = calloc(1, sizeof *report);
    node = malloc(world * sizeof *node);
    if (!report || !node)
        goto done;
    choose_entries(merge);
    err = CAIRN_OK;
    for (uint32_t rank = 0; !err && rank < world; rank++) {
        struct cursor *cursor = &merge->cursors[rank];

        node[rank] = cursor->entry ? cursor->entry->node : CAIRN_NODE_UNKNOWN;
        if (cursor->entry)
            err = join_comms(merge, cursor, report);
    }
    if (err)
        goto done;
    for (uint32_t rank = 0; rank < world; rank++) {
        struct cursor *cursor = &merge->cursors[rank];

        if (!cursor->entry)
            continue;
        note_use(merge, cursor);
        cursor->reader = cursor->entry->steps;
        cursor->steps_left = cursor->entry->step_count;
        next_step(cursor);
    }
    merge->step = merge->summary.first_step;
    shape.node = node;
    err = live_topology(&merge->comms, &shape, &merge->topology);
done:
    free(node);
    free(report);
    return err;
}

const struct cairn_topology *
cairn_merge_topology(const struct cairn_merge *merge)
{
    return merge->topology;
}

struct cairn_merge_summary
cairn_merge_summarize(const struct cairn_merge *merge)
{
    return merge->summary;
}

/* ---- records ---- */

/* False: the operation cannot be placed. */
static bool
place(const struct cairn_merge *merge, const struct cursor *cursor,
      const struct cairn_recorded_op *op, struct cairn_record *out)
{
    uint32_t number = cursor->comms[op->comm];
    const struct live_comm *comm = number != UINT32_MAX ? &merge->comms.items[number] : NULL;

    *out = (struct cairn_record){.start_ns = op->start_ns,
                                 .end_ns = op->end_ns,
                                 .seq = op->seq,
                                 .bytes = op->bytes,
                                 .rank = cursor->entry->head.rank,
                                 .comm = CAIRN_COMM_NONE,
                                 .peer = CAIRN_PEER_NONE,
                                 .step = cursor->step.step,
                                 .op = op->op,
                                 .has_seq = op->has_seq,
                                 .has_step = true};
    if (op->end_ns > 0 && op->end_ns < op->start_ns)
        return false;
    if (op->op >= CAIRN_SEND) {
        out->peer = op->is_place ? comm ? live_comm_rank_at(comm, op->peer) : UINT32_MAX : op->peer;
        return out->peer < merge->summary.world && out->peer != out->rank;
    }
    out->comm = comm ? comm->index : CAIRN_COMM_NONE;
    return out->comm != CAIRN_COMM_NONE;
}

/* The next operation of the rank in the step that is read; false: there is none. */
static bool
next_op(struct cairn_merge *merge, struct cursor *cursor, struct cairn_record *out)
{
    while (cursor->entry && cursor->has_step && cursor->step.step == merge->step) {
        struct cairn_recorded_op op;

        if (cursor->ops_left == 0) {
            next_step(cursor);
            continue;
        }
        cursor->ops_left--;
        cairn_recorded_unpack_op(&cursor->reader, &op);
        if (!place(merge, cursor, &op, out)) {
            merge->summary.left_out++;
            continue;
        }
        merge->summary.operations++;
        if (cursor->is_told || op.end_ns == 0)
            return true;
        cursor->is_told = true;
        out->work = cursor->step.work;
        out->has_compute = cursor->step.compute != CAIRN_RECORDED_GAPS;
        out->compute_ns =
            cursor->step.compute == CAIRN_RECORDED_TOLD ? cursor->step.compute_ns : (double)NAN;
        return true;
    }
    return false;
}

/* The next step that some rank has; false: none has one. */
static bool
find_step(struct cairn_merge *merge)
{
    uint32_t next = UINT32_MAX;

    for (uint32_t rank = 0; rank < merge->summary.world; rank++) {
        const struct cursor *cursor = &merge->cursors[rank];

        if (cursor->entry && cursor->has_step && cursor->step.step < next)
            next = cursor->step.step;
    }
    merge->step = next;
    return next != UINT32_MAX;
}

static bool
next_life(struct cairn_merge *merge, struct cairn_record *out)
{
    for (; merge->rank < merge->summary.world; merge->rank++) {
        struct cursor *cursor = &merge->cursors[merge->rank];

        if (!cursor->entry || cursor->said_life || !is_running(cursor->entry))
            continue;
        cursor->said_life = true;
        *out = (struct cairn_record){.start_ns = cursor->entry->head.now_ns,
                                     .rank = merge->rank,
                                     .comm = CAIRN_COMM_NONE,
                                     .peer = CAIRN_PEER_NONE};
        return true;
    }
    return false;
}

bool
cairn_merge_next(struct cairn_merge *merge, struct cairn_record *out)
{
    while (merge->step != UINT32_MAX && merge->step > 0) {
        for (; merge->rank < merge->summary.world; merge->rank++)
            if (next_op(merge, &merge->cursors[merge->rank], out))
                return true;
        merge->rank = 0;
        if (!find_step(merge))
            break;
    }
    return next_life(merge, out);
}
