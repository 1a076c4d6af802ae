/*
 * tests/support/abi/caller.c - a trainer that loads libcairn at run time (caller.h).
 *
 * Every struct that the library fills lies before a canary in its own allocation, so that a write
 * behind the caller's size is seen with and without AddressSanitizer.
 */
#include "tests/support/abi/caller.h"
#include "tests/support/cmocka.h"

#include "cairn/client.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CANARY = 0x5a, CANARY_BYTES = 64, TRIES_MAX = 60000, NAP_NS = 1000000 };

/* The functions of the library, with the types that this caller was compiled with. */
#define FUNCTIONS(X)                                                                               \
    X(cairn_client_open)                                                                           \
    X(cairn_client_register)                                                                       \
    X(cairn_client_report_coverage)                                                                \
    X(cairn_client_restore)                                                                        \
    X(cairn_client_stats_read)                                                                     \
    X(cairn_client_close)                                                                          \
    X(cairn_snapshot_begin)                                                                        \
    X(cairn_snapshot_fence)                                                                        \
    X(cairn_library_version)

struct functions {
#define DECLARE(name) __typeof__(name) *name;
    FUNCTIONS(DECLARE)
#undef DECLARE
};

static const char *const names[CALLER_TENSORS] = {"first", "second", "third"};

static struct functions
load(void *library)
{
    struct functions functions;
    void *symbol;

#define LOAD(name)                                                                                 \
    symbol = dlsym(library, #name);                                                                \
    assert_non_null(symbol);                                                                       \
    memcpy(&functions.name, &symbol, sizeof symbol);
    FUNCTIONS(LOAD)
#undef LOAD
    return functions;
}

static void
note(void *context, enum cairn_log_level level, const char *line)
{
    struct caller_log *log = context;
    size_t used = strlen(log->text), line_bytes = strlen(line) + 1;

    /* the client's own threads log below an error here, and would race with the trainer's */
    if (level != CAIRN_LOG_ERROR || used + line_bytes >= sizeof log->text)
        return;
    memcpy(log->text + used, line, line_bytes);
}

/* A struct of the caller's size, followed by a canary; the caller frees it. */
static void *
with_canary(size_t bytes)
{
    uint8_t *room = malloc(bytes + CANARY_BYTES);

    assert_non_null(room);
    memset(room, 0, bytes);
    memset(room + bytes, CANARY, CANARY_BYTES);
    return room;
}

static void
check_canary(const void *room, size_t bytes)
{
    for (size_t i = 0; i < CANARY_BYTES; i++)
        assert_int_equal(((const uint8_t *)room)[bytes + i], CANARY);
}

static struct cairn_client_options
make_options(const char *agent_path, struct caller_log *log)
{
    return (struct cairn_client_options){
        CAIRN_CLIENT_OPTIONS_INIT, .job = "versions",         .rank = 0, .world = 1, .log = note,
        .log_context = log,        .agent_socket = agent_path};
}

/* slices[CALLER_TENSORS], exactly as large as the caller's array. */
static struct cairn_slice *
make_slices(float *marks)
{
    struct cairn_slice *slices = malloc(CALLER_TENSORS * sizeof *slices);

    assert_non_null(slices);
    for (size_t i = 0; i < CALLER_TENSORS; i++)
        slices[i] = (struct cairn_slice){CAIRN_SLICE_INIT,
                                         .name = names[i],
                                         .dtype = CAIRN_F32,
                                         .kind = CAIRN_PARAM,
                                         .dims = 1,
                                         .device = -1,
                                         .shape = {CALLER_ELEMENTS},
                                         .extent = {CALLER_ELEMENTS},
                                         .address = marks + i * CALLER_ELEMENTS};
    return slices;
}

static struct cairn_client *
open_client(const struct functions *call, const char *agent_path, struct caller_log *log)
{
    struct cairn_client_options options = make_options(agent_path, log);
    struct cairn_client *client = NULL;

    assert_int_equal(call->cairn_client_open(&options, &client), CAIRN_OK);
    return client;
}

static struct cairn_client *
open_registered(const struct functions *call, const char *agent_path, float *marks,
                struct caller_log *log)
{
    struct cairn_client *client = open_client(call, agent_path, log);
    struct cairn_slice *slices = make_slices(marks);

    assert_int_equal(call->cairn_client_register(client, slices, CALLER_TENSORS), CAIRN_OK);
    free(slices);
    return client;
}

/* A fence would give up a snapshot that the agent has not granted yet. */
static void
await_capture(const struct functions *call, const struct cairn_client *client)
{
    struct cairn_client_stats stats = {CAIRN_CLIENT_STATS_INIT};

    for (int i = 0; i < TRIES_MAX && stats.snapshots_captured == 0; i++) {
        assert_int_equal(call->cairn_client_stats_read(client, &stats), CAIRN_OK);
        nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    }
}

static void
check_stats(const struct functions *call, const struct cairn_client *client)
{
    struct cairn_client_stats *stats = with_canary(sizeof *stats);

    memset(stats, 0xee, sizeof *stats); /* so that what the library leaves is seen */
    stats->struct_bytes = sizeof *stats;
    assert_int_equal(call->cairn_client_stats_read(client, stats), CAIRN_OK);
    check_canary(stats, sizeof *stats);
    assert_int_equal(stats->struct_bytes, sizeof *stats);
    assert_int_equal(stats->attached, 1);
    assert_int_equal(stats->snapshots_begun, 1);
    assert_int_equal(stats->snapshots_captured, 1);
    assert_int_equal(stats->captured_bytes, CALLER_TENSORS * CALLER_ELEMENTS * sizeof(float));
    assert_int_equal(stats->fence_count, 1);
    assert_int_equal(stats->epoch, 1);
#ifdef CAIRN_TEST_LARGER
    for (int i = 0; i < 3; i++)
        assert_int_equal(stats->added[i], 0);
#endif
    free(stats);
}

static void
protect(void *library, const char *agent_path, float *marks, struct caller_log *log)
{
    struct functions call = load(library);
    struct cairn_client *client = open_registered(&call, agent_path, marks, log);
    struct cairn_uncovered items[2] = {
        {CAIRN_UNCOVERED_INIT, .kind = CAIRN_OPTIMIZER, .name = "moment", .reason = "sparse"},
        {CAIRN_UNCOVERED_INIT, .kind = CAIRN_BUFFER, .name = "mean", .reason = "lazy"}};
    cairn_err err = CAIRN_AGAIN;

    assert_string_equal(call.cairn_library_version(), CAIRN_LIBRARY_VERSION);
    assert_int_equal(call.cairn_client_report_coverage(client, NULL, items, 2), CAIRN_OK);
    for (int i = 0; i < TRIES_MAX && err == CAIRN_AGAIN; i++) {
        err = call.cairn_snapshot_begin(client, CALLER_STEP);
        nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    }
    assert_int_equal(err, CAIRN_OK);
    await_capture(&call, client);
    assert_int_equal(call.cairn_snapshot_fence(client, CAIRN_FENCE_ALL), CAIRN_OK);
    check_stats(&call, client);
    call.cairn_client_close(client);
}

static void
restore(void *library, const char *agent_path, float *marks, struct caller_log *log)
{
    struct functions call = load(library);
    struct cairn_client *client = open_registered(&call, agent_path, marks, log);
    struct cairn_restored *restored = with_canary(sizeof *restored);

    memset(restored, 0xee, sizeof *restored);
    restored->struct_bytes = sizeof *restored;
    restored->reserved = 0;
    assert_int_equal(call.cairn_client_restore(client, restored), CAIRN_OK);
    check_canary(restored, sizeof *restored);
    assert_int_equal(restored->struct_bytes, sizeof *restored);
    assert_int_equal(restored->generation.step, CALLER_STEP);
    assert_int_equal(restored->bytes, CALLER_TENSORS * CALLER_ELEMENTS * sizeof(float));
    assert_int_equal(restored->local_bytes + restored->remote_bytes, restored->bytes);
    assert_int_equal(restored->file_bytes, 0);
#ifdef CAIRN_TEST_LARGER
    for (int i = 0; i < 3; i++)
        assert_int_equal(restored->added[i], 0);
#endif
    free(restored);
    call.cairn_client_close(client);
}

/* ---- faults ---- */

struct place {
    uint32_t *struct_bytes;
    uint32_t *reserved;    /* NULL: the struct has none */
    uint64_t *added;       /* NULL: this caller has no such field */
    bool is_filled;        /* by the library */
    bool is_later_element; /* of an array */
    uint32_t bytes, first; /* of this caller's struct, and of the first version */
};

#ifdef CAIRN_TEST_LARGER
#define ADDED(value) (&(value)->added[1])
#else
#define ADDED(value) NULL
#endif

/* False where the fault cannot be. */
static bool
spoil(const struct place *place, enum caller_fault fault)
{
    switch (fault) {
    case CALLER_NO_FAULT:
        return true;
    case CALLER_SIZE_ZERO:
        *place->struct_bytes = 0;
        return true;
    case CALLER_SIZE_SMALL:
        *place->struct_bytes = place->first - 8;
        return true;
    case CALLER_SIZE_ODD:
        *place->struct_bytes = place->bytes + 4;
        return true;
    case CALLER_SIZE_HUGE:
        *place->struct_bytes = UINT32_MAX - 7;
        return true;
    case CALLER_SIZE_OTHER:
        if (place->is_later_element)
            *place->struct_bytes = place->bytes + 8;
        return place->is_later_element;
    case CALLER_RESERVED:
        if (place->reserved)
            *place->reserved = 9;
        return place->reserved != NULL;
    case CALLER_TAIL:
        if (place->added)
            *place->added = UINT64_C(1) << 63;
        return place->added != NULL && !place->is_filled;
    case CALLER_FAULTS:
        break;
    }
    return false;
}

static int
open_with(const struct functions *call, const char *agent_path, enum caller_fault fault,
          struct caller_log *log, bool *possible)
{
    struct cairn_client_options options = make_options(agent_path, log);
    const struct place place = {.struct_bytes = &options.struct_bytes,
                                .reserved = &options.reserved,
                                .added = ADDED(&options),
                                .bytes = sizeof options,
                                .first = 64};
    struct cairn_client *client = NULL;
    cairn_err err;

    *possible = spoil(&place, fault);
    err = call->cairn_client_open(&options, &client);
    assert_int_equal(client != NULL, err == CAIRN_OK);
    call->cairn_client_close(client);
    return (int)err;
}

static int
register_with(const struct functions *call, struct cairn_client *client, enum caller_fault fault,
              bool *possible)
{
    static float marks[CALLER_TENSORS * CALLER_ELEMENTS];
    struct cairn_slice *slices = make_slices(marks);
    const struct place place = {.struct_bytes = &slices[1].struct_bytes,
                                .reserved = &slices[1].reserved,
                                .added = ADDED(&slices[1]),
                                .is_later_element = true,
                                .bytes = sizeof *slices,
                                .first = 256};
    cairn_err err;

    *possible = spoil(&place, fault);
    err = call->cairn_client_register(client, slices, CALLER_TENSORS);
    free(slices);
    return (int)err;
}

static int
report_with(const struct functions *call, struct cairn_client *client, enum caller_fault fault,
            bool *possible)
{
    struct cairn_uncovered items[2] = {{CAIRN_UNCOVERED_INIT, .kind = CAIRN_PARAM, .name = "a"},
                                       {CAIRN_UNCOVERED_INIT, .kind = CAIRN_PARAM, .name = "b"}};
    const struct place place = {.struct_bytes = &items[0].struct_bytes,
                                .added = ADDED(&items[0]),
                                .bytes = sizeof *items,
                                .first = 24};

    *possible = spoil(&place, fault);
    return (int)call->cairn_client_report_coverage(client, NULL, items, 2);
}

static int
restore_with(const struct functions *call, struct cairn_client *client, enum caller_fault fault,
             bool *possible)
{
    static float marks[CALLER_TENSORS * CALLER_ELEMENTS];
    struct cairn_slice *slices = make_slices(marks);
    struct cairn_restored restored = {CAIRN_RESTORED_INIT, .bytes = 77};
    const struct place place = {.struct_bytes = &restored.struct_bytes,
                                .reserved = &restored.reserved,
                                .added = ADDED(&restored),
                                .is_filled = true,
                                .bytes = sizeof restored,
                                .first = 56};
    cairn_err err;

    assert_int_equal(call->cairn_client_register(client, slices, CALLER_TENSORS), CAIRN_OK);
    *possible = spoil(&place, fault);
    err = call->cairn_client_restore(client, &restored);
    assert_int_equal(restored.bytes, 77); /* nothing is stored there: only success writes */
    free(slices);
    return (int)err;
}

static int
read_with(const struct functions *call, struct cairn_client *client, enum caller_fault fault,
          bool *possible)
{
    struct cairn_client_stats stats = {CAIRN_CLIENT_STATS_INIT, .epoch = 77};
    const struct place place = {.struct_bytes = &stats.struct_bytes,
                                .added = ADDED(&stats),
                                .is_filled = true,
                                .bytes = sizeof stats,
                                .first = 104};
    cairn_err err;

    *possible = spoil(&place, fault);
    err = call->cairn_client_stats_read(client, &stats);
    assert_int_equal(stats.epoch, err ? 77 : 1);
    return (int)err;
}

static int
err_of(void *library, const char *agent_path, enum caller_struct which, enum caller_fault fault,
       struct caller_log *log, bool *possible)
{
    struct functions call = load(library);
    struct cairn_client *client;
    int err = CAIRN_INTERNAL;

    if (which == CALLER_OPTIONS)
        return open_with(&call, agent_path, fault, log, possible);
    client = open_client(&call, agent_path, log);
    if (which == CALLER_SLICES)
        err = register_with(&call, client, fault, possible);
    else if (which == CALLER_UNCOVERED)
        err = report_with(&call, client, fault, possible);
    else if (which == CALLER_RESTORED)
        err = restore_with(&call, client, fault, possible);
    else if (which == CALLER_STATS)
        err = read_with(&call, client, fault, possible);
    call.cairn_client_close(client);
    return err;
}

#ifdef CAIRN_TEST_LARGER
#define CALLER caller_newer
#else
#define CALLER caller_today
#endif

const struct caller CALLER = {
#ifdef CAIRN_TEST_LARGER
    .name = "newer caller",
#else
    .name = "caller",
#endif
    .slice_bytes = sizeof(struct cairn_slice),
    .tensor_names = names,
    .protect = protect,
    .restore = restore,
    .err_of = err_of,
};
