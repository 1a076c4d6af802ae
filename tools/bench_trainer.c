/* tools/bench_trainer.c - see bench_trainer.h. */
#include "tools/bench_trainer.h"

#include "cairn/client.h"
#include "tools/bench_cluster.h"
#include "tools/bench_measure.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { TENSORS = 16 };

struct state {
    uint64_t *words;
    uint64_t count;
    char names[TENSORS][32];
    struct cairn_slice slices[TENSORS];
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
fill(const struct state *state, uint32_t rank, uint64_t step)
{
    for (uint64_t i = 0; i < state->count; i++)
        state->words[i] = word_at(rank, step, i);
}

static bool
is_right(const struct state *state, uint32_t rank, uint64_t step)
{
    for (uint64_t i = 0; i < state->count; i++)
        if (state->words[i] != word_at(rank, step, i))
            return false;
    return true;
}

/* Equal tensors, each cut evenly over all ranks. */
static void
describe(struct state *state, const struct cairn_bench_trainer *trainer)
{
    uint64_t elements = trainer->state_bytes / TENSORS / sizeof(float);

    for (uint32_t t = 0; t < TENSORS; t++) {
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

static void
obey(struct cairn_client *client, const struct cairn_bench_trainer *trainer,
     const struct state *state, const struct cairn_bench_command *command,
     struct cairn_bench_answer *answer)
{
    double begin = cairn_bench_now_s();

    switch ((enum cairn_bench_order)command->order) {
    case CAIRN_BENCH_ORDER_FILL:
        fill(state, trainer->rank, command->step);
        break;
    case CAIRN_BENCH_ORDER_STEP:
        answer->err = take_step(client, command, &answer->right);
        break;
    case CAIRN_BENCH_ORDER_RESTORE:
        answer->err = cairn_client_restore(client, &answer->restored);
        answer->right = !answer->err && is_right(state, trainer->rank, command->step);
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

    state.count = trainer->state_bytes / sizeof(uint64_t);
    state.words = (uint64_t *)(void *)cairn_bench_map(trainer->state_bytes);
    answer.err = state.words ? CAIRN_OK : CAIRN_NOMEM;
    if (!answer.err)
        answer.err = cairn_client_open(&options, &client);
    if (!answer.err) {
        describe(&state, trainer);
        answer.err = cairn_client_register(client, state.slices, TENSORS);
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
