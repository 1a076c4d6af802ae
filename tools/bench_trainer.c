/* tools/bench_trainer.c - see bench_trainer.h. */
#include "tools/bench_trainer.h"

#include "cairn/client.h"
#include "tools/bench_cluster.h"
#include "tools/bench_measure.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { TENSORS = 16, TENSORS_MAX = CAIRN_BENCH_MOVED_TENSORS + 1, MOVE_TIMEOUT_MS = 120000 };

/* Tensors one after the other. */
struct state {
    uint64_t *words;
    uint64_t count;              /* that are in use */
    uint64_t room_bytes;         /* that are mapped */
    uint32_t first, tensors;     /* of all that there are */
    uint32_t owner[TENSORS_MAX]; /* the rank that a tensor's values follow from */
    char names[TENSORS_MAX][32];
    struct cairn_slice slices[TENSORS_MAX];
};

static void
say(void *context, enum cairn_log_level level, const char *line)
{
    if (level <= CAIRN_LOG_WARN)
        (void)fprintf(stderr, "rank %u: %s\n", *(const uint32_t *)context, line);
}

static uint64_t
word_at(uint32_t rank, uint64_t step, uint64_t i)
{
    return (i + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ step * UINT64_C(0xbf58476d1ce4e5b9) ^
           (uint64_t)rank << 56;
}

static void
fill(const struct state *state, uint64_t step)
{
    uint64_t each = state->count / state->tensors;

    for (uint64_t i = 0; i < state->count; i++)
        state->words[i] = word_at(state->owner[i / each], step, state->first * each + i);
}

static bool
is_right(const struct state *state, uint64_t step)
{
    uint64_t each = state->count / state->tensors;

    for (uint64_t i = 0; i < state->count; i++)
        if (state->words[i] != word_at(state->owner[i / each], step, state->first * each + i))
            return false;
    return true;
}

/* Equal tensors, each cut evenly over all ranks. */
static void
describe(struct state *state, const struct cairn_bench_trainer *trainer)
{
    uint64_t elements = trainer->state_bytes / TENSORS / sizeof(float);

    state->tensors = TENSORS;
    state->count = trainer->state_bytes / sizeof(uint64_t);
    for (uint32_t t = 0; t < TENSORS; t++) {
        state->owner[t] = trainer->rank;
        (void)snprintf(state->names[t], sizeof state->names[t], "layers.%u.weight", t);
        state->slices[t] =
            (struct cairn_slice){CAIRN_SLICE_INIT,
                                 .name = state->names[t],
                                 .dtype = CAIRN_F32,
                                 .kind = CAIRN_OPTIMIZER,
                                 .dims = 1,
                                 .shape = {elements * trainer->world},
                                 .offset = {elements * trainer->rank},
                                 .extent = {elements},
                                 .replica_count = 1,
                                 .address = (uint8_t *)state->words + t * elements * sizeof(float),
                                 .device = -1};
    }
}

/* Whole tensors: those that can move, if they are here, and after them one that stays. */
static void
describe_movable(struct state *state, const struct cairn_bench_trainer *trainer, bool has_moving)
{
    uint64_t elements = trainer->state_bytes / TENSORS_MAX / sizeof(float);
    uint32_t first = has_moving ? 0 : CAIRN_BENCH_MOVED_TENSORS;

    state->first = first;
    state->tensors = TENSORS_MAX - first;
    state->count = state->tensors * elements / 2;
    for (uint32_t t = 0; t < state->tensors; t++) {
        bool stays = first + t == CAIRN_BENCH_MOVED_TENSORS;

        state->owner[t] = stays ? trainer->rank : 0;
        (void)snprintf(state->names[t], sizeof state->names[t], "%s.%u.weight",
                       stays ? "stays" : "moves", stays ? trainer->rank : t);
        state->slices[t] =
            (struct cairn_slice){CAIRN_SLICE_INIT,
                                 .name = state->names[t],
                                 .dtype = CAIRN_F32,
                                 .kind = CAIRN_OPTIMIZER,
                                 .dims = 1,
                                 .shape = {elements},
                                 .extent = {elements},
                                 .replica_count = 1,
                                 .address = (uint8_t *)state->words + t * elements * sizeof(float),
                                 .device = -1};
    }
}

static bool
map_state(struct state *state, uint64_t bytes)
{
    state->room_bytes = bytes;
    state->words = (uint64_t *)(void *)cairn_bench_map(bytes);
    return state->words != NULL;
}

static void
pause_ns(uint64_t duration_ns)
{
    struct timespec left = {.tv_sec = (time_t)(duration_ns / 1000000000u),
                            .tv_nsec = (long)(duration_ns % 1000000000u)};

    while (nanosleep(&left, &left) != 0)
        continue;
}

static cairn_err
take_step(struct cairn_client *client, const struct cairn_bench_command *command, bool *captured)
{
    struct cairn_client_stats before = {CAIRN_CLIENT_STATS_INIT}, after = before;
    cairn_err err = cairn_client_stats_read(client, &before);

    if (!err)
        err = cairn_snapshot_begin(client, command->step);
    pause_ns(command->step_ns);
    if (!err)
        err = cairn_snapshot_fence(client, CAIRN_FENCE_ALL);
    if (err == CAIRN_AGAIN) /* skipped */
        err = CAIRN_OK;
    if (!err)
        err = cairn_client_stats_read(client, &after);
    *captured = !err && after.snapshots_captured > before.snapshots_captured;
    return err;
}

/* Maps the tensors of the next placement; nothing is in them yet. */
static cairn_err
make_room(const struct cairn_bench_trainer *trainer, const struct state *state, struct state *next)
{
    *next = (struct state){0};
    if (!map_state(next, trainer->state_bytes))
        return CAIRN_NOMEM;
    describe_movable(next, trainer, state->tensors == 1);
    return CAIRN_OK;
}

/* Moves as cairn/client.h says. */
static cairn_err
move(struct cairn_client *client, const struct state *next, uint64_t step,
     struct cairn_bench_answer *answer)
{
    double begin = cairn_bench_now_s();
    cairn_err err = cairn_snapshot_begin_last(client, step);

    if (!err)
        err = cairn_snapshot_confirm(client, true);
    if (!err)
        err = cairn_placement_fill(client, step, next->slices, next->tensors, MOVE_TIMEOUT_MS,
                                   &answer->restored);
    answer->seconds = cairn_bench_now_s() - begin;
    return err;
}

/* The present tensors go when all ranks have their next tensors. */
static bool
settle(struct state *state, const struct state *next, uint64_t step)
{
    cairn_bench_unmap((uint8_t *)state->words, state->room_bytes);
    *state = *next;
    for (uint32_t t = 0; t < state->tensors; t++)
        state->slices[t].name = state->names[t];
    return is_right(state, step);
}

static void
obey(struct cairn_client *client, const struct cairn_bench_trainer *trainer, struct state *state,
     const struct cairn_bench_command *command, struct cairn_bench_answer *answer)
{
    static struct state next;
    double begin = cairn_bench_now_s();

    switch ((enum cairn_bench_order)command->order) {
    case CAIRN_BENCH_ORDER_FILL:
        fill(state, command->step);
        break;
    case CAIRN_BENCH_ORDER_STEP:
        answer->err = take_step(client, command, &answer->right);
        break;
    case CAIRN_BENCH_ORDER_RESTORE:
        answer->err = cairn_client_restore(client, &answer->restored);
        answer->right = !answer->err && is_right(state, command->step);
        break;
    case CAIRN_BENCH_ORDER_ROOM:
        answer->err = make_room(trainer, state, &next);
        break;
    case CAIRN_BENCH_ORDER_MOVE:
        answer->err = move(client, &next, command->step, answer);
        return;
    case CAIRN_BENCH_ORDER_SETTLE:
        answer->right = settle(state, &next, command->step);
        break;
    }
    answer->seconds = cairn_bench_now_s() - begin;
}

int
cairn_bench_trainer_run(const struct cairn_bench_trainer *trainer)
{
    static struct state state;
    uint32_t rank = trainer->rank;
    struct cairn_client_options options = {CAIRN_CLIENT_OPTIONS_INIT,
                                           .agent_socket = trainer->agent_socket,
                                           .job = "bench",
                                           .rank = rank,
                                           .world = trainer->world,
                                           .log = say,
                                           .log_context = &rank};
    static const struct cairn_bench_answer no_answer = {.stats = {CAIRN_CLIENT_STATS_INIT},
                                                        .restored = {CAIRN_RESTORED_INIT}};
    struct cairn_bench_answer answer = no_answer;
    struct cairn_bench_command command;
    struct cairn_client *client = NULL;

    answer.err = map_state(&state, trainer->state_bytes) ? CAIRN_OK : CAIRN_NOMEM;
    if (!answer.err)
        answer.err = cairn_client_open(&options, &client);
    if (!answer.err) {
        if (trainer->moves)
            describe_movable(&state, trainer, rank == 0);
        else
            describe(&state, trainer);
        answer.err = cairn_client_register(client, state.slices, state.tensors);
    }
    if (!answer.err) {
        answer.err = cairn_client_stats_read(client, &answer.stats);
        if (!answer.err && !answer.stats.attached)
            answer.err = CAIRN_PEER;
    }
    if (send(trainer->fd, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer || answer.err)
        return 1;
    while (recv(trainer->fd, &command, sizeof command, MSG_WAITALL) == sizeof command) {
        answer = no_answer;
        obey(client, trainer, &state, &command, &answer);
        if (!answer.err)
            answer.err = cairn_client_stats_read(client, &answer.stats);
        if (send(trainer->fd, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer)
            break;
    }
    cairn_client_close(client);
    return 0;
}
