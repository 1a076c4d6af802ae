/* tests/unit/client/test_restore.c - a generation of any layout into the tensors of another,
 * checked. */
#include "cairn/client.h"

#include "tests/support/client_lines.h"
#include "tests/support/cmocka.h"
#include "tests/support/fake_agent.h"

#include "base/crc.h"

#include <limits.h>
#include <stdbool.h>

/*
 * The state: a matrix ROWS x COLUMNS of u32 markers (each element its own number), a vector of
 * markers and an opaque blob. It is captured by several ranks in several ways.
 */
enum { ROWS = 700, COLUMNS = 523, LENGTH = 70001, BLOB = 1000, SLICES_MAX = 8, RANKS_MAX = 4 };

static bool
log_has(const char *text)
{
    return text[0] == '\0' || count_in(lines.warnings, text) > 0;
}

static uint32_t
marker(uint32_t tensor, uint64_t element)
{
    return (tensor << 28) + (uint32_t)element;
}

/* ---- slices of the state, and their memory ---- */

struct rank {
    struct cairn_slice slices[SLICES_MAX];
    uint32_t count;
};

static uint64_t
held_elements(const struct cairn_slice *slice)
{
    return slice->flat_end ? slice->flat_end - slice->flat_begin
                           : slice->extent[0] * (slice->dims == 2 ? slice->extent[1] : 1);
}

/* The marker of the i-th held element. */
static uint32_t
held_marker(const struct cairn_slice *slice, uint64_t i)
{
    uint64_t at = i + slice->flat_begin;

    if (slice->dims == 1)
        return marker(1, slice->offset[0] + at);
    return marker(0, (slice->offset[0] + at / slice->extent[1]) * COLUMNS + slice->offset[1] +
                         at % slice->extent[1]);
}

static void
add(struct rank *rank, struct cairn_slice slice, bool filled)
{
    uint64_t elements = held_elements(&slice), bytes = elements * cairn_dtype_bytes(slice.dtype);
    struct cairn_slice *into = &rank->slices[rank->count++];

    *into = slice;
    into->device = -1;
    into->address = malloc(bytes);
    assert_non_null(into->address);
    memset(into->address, 0xee, bytes);
    for (uint64_t i = 0; filled && i < elements; i++) {
        if (slice.kind == CAIRN_OPAQUE)
            ((uint8_t *)into->address)[i] = (uint8_t)(i * 7);
        else
            ((uint32_t *)into->address)[i] = held_marker(&slice, i);
    }
}

static struct cairn_slice
matrix(uint64_t row, uint64_t rows, uint64_t column, uint64_t columns)
{
    return (struct cairn_slice){CAIRN_SLICE_INIT,
                                .name = "matrix",
                                .dtype = CAIRN_U32,
                                .kind = CAIRN_PARAM,
                                .dims = 2,
                                .shape = {ROWS, COLUMNS},
                                .offset = {row, column},
                                .extent = {rows, columns},
                                .replica_count = 1};
}

static struct cairn_slice
vector(uint64_t begin, uint64_t end)
{
    return (struct cairn_slice){CAIRN_SLICE_INIT,        .name = "vector",    .dtype = CAIRN_U32,
                                .kind = CAIRN_OPTIMIZER, .dims = 1,           .shape = {LENGTH},
                                .extent = {LENGTH},      .flat_begin = begin, .flat_end = end,
                                .replica_count = 1};
}

static struct cairn_slice
blob(uint32_t replica)
{
    return (struct cairn_slice){
        CAIRN_SLICE_INIT,  .name = "blob",  .dtype = CAIRN_U8, .kind = CAIRN_OPAQUE,
        .dims = 1,         .shape = {BLOB}, .extent = {BLOB},  .replica_index = replica,
        .replica_count = 3};
}

/* Every byte of a rank's tensors is as it was captured. */
static void
check_filled(const struct rank *rank)
{
    for (uint32_t s = 0; s < rank->count; s++) {
        const struct cairn_slice *slice = &rank->slices[s];

        for (uint64_t i = 0; i < held_elements(slice); i++) {
            if (slice->kind == CAIRN_OPAQUE)
                assert_int_equal(((uint8_t *)slice->address)[i], (uint8_t)(i * 7));
            else if (((uint32_t *)slice->address)[i] != held_marker(slice, i))
                fail_msg("slice %u element %llu", s, (unsigned long long)i);
        }
    }
}

static void
check_untouched(const struct rank *rank)
{
    for (uint32_t s = 0; s < rank->count; s++)
        for (uint64_t i = 0; i < held_elements(&rank->slices[s]); i++)
            assert_int_equal(((uint8_t *)rank->slices[s].address)[i], 0xee);
}

static void
clear(struct rank *rank)
{
    for (uint32_t s = 0; s < rank->count; s++)
        memset(rank->slices[s].address, 0xee,
               held_elements(&rank->slices[s]) * cairn_dtype_bytes(rank->slices[s].dtype));
}

static void
rank_fini(struct rank *rank)
{
    for (uint32_t s = 0; s < rank->count; s++)
        free(rank->slices[s].address);
}

/* ---- the generation: three nodes of one rank each ---- */

struct stored {
    struct fake_agent *agent;
    uint8_t *bytes[3];
    struct cairn_manifest manifests[3];
};

/* Captures a rank as container `index`, the way the engine lays it out, behind other bytes. */
static void
store_behind(struct stored *stored, uint32_t index, const struct rank *rank, uint64_t before)
{
    struct cairn_manifest_entry entries[SLICES_MAX];
    struct cairn_manifest manifest = {.job_id = 5,
                                      .generation = {2, 40},
                                      .container = index,
                                      .container_count = 3,
                                      .rank_count = 1,
                                      .entry_count = rank->count};
    struct cairn_manifest_rank owner = {.rank = index, .world = 3, .region_offset = before};
    uint64_t crcs[256];
    uint8_t *packed;
    size_t packed_bytes;

    assert_int_equal(
        cairn_capture_plan(rank->slices, rank->count, entries, &owner.region_bytes, NULL),
        CAIRN_OK);
    manifest.container_bytes = before + owner.region_bytes;
    manifest.block_count = manifest.container_bytes / CAIRN_BLOCK_BYTES;
    stored->bytes[index] = calloc(1, manifest.container_bytes);
    assert_non_null(stored->bytes[index]);
    assert_true(manifest.block_count <= 256);
    for (uint32_t i = 0; i < rank->count; i++) {
        entries[i].offset_bytes += before;
        memcpy(stored->bytes[index] + entries[i].offset_bytes, entries[i].slice.address,
               cairn_capture_bytes(&entries[i]));
        entries[i].rank = index;
    }
    for (uint64_t b = 0; b < manifest.block_count; b++)
        crcs[b] = cairn_crc64(0, stored->bytes[index] + b * CAIRN_BLOCK_BYTES, CAIRN_BLOCK_BYTES);
    manifest.ranks = &owner;
    manifest.entries = entries;
    manifest.block_crcs = crcs;
    assert_int_equal(cairn_manifest_pack(&manifest, &packed, &packed_bytes), CAIRN_OK);
    stored->agent->manifests[index] = (struct cairn_session_bytes){packed, packed_bytes};
    stored->agent->containers[index] = stored->bytes[index];
    stored->agent->container_bytes[index] = manifest.container_bytes;
}

static void
store(struct stored *stored, uint32_t index, const struct rank *rank)
{
    store_behind(stored, index, rank, 0);
}

/* Rows on three nodes, the vector in flat ranges, the blob a replica on each. */
static void
source_rank(struct rank *rank, uint32_t index)
{
    static const uint64_t cuts[4] = {0, 10000, 10007, LENGTH};

    add(rank, matrix(index * 250, index == 2 ? 200 : 250, 0, COLUMNS), true);
    add(rank, vector(cuts[index], cuts[index + 1]), true);
    add(rank, blob(index), true);
}

static struct stored
store_all(size_t window_bytes, bool own)
{
    struct stored stored = {.agent = fake_agent_create(window_bytes)};

    for (uint32_t index = 0; index < 3; index++) {
        struct rank rank = {.count = 0};

        source_rank(&rank, index);
        store(&stored, index, &rank);
        rank_fini(&rank);
    }
    stored.agent->generation = (struct cairn_generation_id){.epoch = 2, .step = 40};
    stored.agent->container_count = 3;
    if (own) { /* node 1's shard lies in its memory */
        stored.agent->own_container = 1;
        stored.agent->own_slot = 1;
        memcpy(stored.agent->slots[1], stored.bytes[1], stored.agent->container_bytes[1]);
    }
    forget_lines();
    fake_agent_start(stored.agent);
    return stored;
}

static void
stored_fini(struct stored *stored)
{
    fake_agent_stop(stored->agent);
    assert_int_equal(stored->agent->damaged, 0);
    for (int i = 0; i < 3; i++) {
        free((void *)(uintptr_t)stored->agent->manifests[i].bytes);
        free(stored->bytes[i]);
    }
    fake_agent_destroy(stored->agent);
}

static struct cairn_client *
open_client(struct fake_agent *agent, const struct rank *rank)
{
    struct cairn_client_options options = {CAIRN_CLIENT_OPTIONS_INIT,
                                           .agent_socket = agent->path,
                                           .job = "test",
                                           .rank = 1,
                                           .world = 3,
                                           .restore_timeout_ms = 3000,
                                           .connect_timeout_ms = 3000,
                                           .log = note_line};
    struct cairn_client *client = NULL;

    assert_int_equal(cairn_client_open(&options, &client), CAIRN_OK);
    assert_int_equal(cairn_client_register(client, rank->slices, rank->count), CAIRN_OK);
    return client;
}

/* Restores into a rank and checks every byte, and that the sums agree with what went over the wire.
 */
static void
restore_into(struct stored *stored, struct rank *rank, struct cairn_restored *restored)
{
    struct cairn_client *client = open_client(stored->agent, rank);
    uint64_t bytes = 0;

    for (uint32_t s = 0; s < rank->count; s++)
        bytes += held_elements(&rank->slices[s]) * cairn_dtype_bytes(rank->slices[s].dtype);
    for (int again = 0; again < 2; again++) {
        clear(rank);
        assert_int_equal(cairn_client_restore(client, restored), CAIRN_OK);
        check_filled(rank);
        assert_int_equal(restored->generation.epoch, 2);
        assert_int_equal(restored->generation.step, 40);
        assert_int_equal(restored->bytes, bytes);
        assert_int_equal(restored->local_bytes + restored->remote_bytes + restored->file_bytes,
                         bytes);
        assert_true(fake_reaches(&stored->agent->restoreds, again + 1));
        assert_int_equal(stored->agent->restored_err, CAIRN_OK);
        assert_int_equal(stored->agent->restored_bytes, bytes);
    }
    cairn_client_close(client);
}

/* The same layout: what the rank itself captured is read in place, and of the blob two thirds come.
 */
static void
test_same_layout(void **state)
{
    struct stored stored = store_all(16 * CAIRN_BLOCK_BYTES, true);
    struct rank rank = {.count = 0};
    struct cairn_restored restored = {CAIRN_RESTORED_INIT};

    source_rank(&rank, 1);
    clear(&rank);
    restore_into(&stored, &rank, &restored);
    assert_true(restored.remote_bytes < BLOB);
    assert_true(restored.local_bytes >= 250 * COLUMNS * 4);
    assert_int_equal(restored.file_bytes, 0);
    rank_fini(&rank);
    stored_fini(&stored);
}

/* A file of its own region alone: that is read in place, wherever it lies in the container, and all
 * else is fetched. Where it is another place's, everything is. */
static void
test_own_region(void **state)
{
    enum { BEFORE = 3 * CAIRN_BLOCK_BYTES };

    for (int elsewhere = 0; elsewhere < 2; elsewhere++) {
        struct stored stored = store_all(16 * CAIRN_BLOCK_BYTES, false);
        struct rank rank = {.count = 0};
        struct cairn_restored restored = {CAIRN_RESTORED_INIT};
        uint64_t bytes;

        source_rank(&rank, 1);
        free(stored.bytes[1]);
        free((void *)(uintptr_t)stored.agent->manifests[1].bytes);
        store_behind(&stored, 1, &rank, BEFORE);
        bytes = stored.agent->container_bytes[1];
        stored.agent->region_at = elsewhere ? BEFORE + CAIRN_BLOCK_BYTES : BEFORE;
        stored.agent->own_slot = CAIRN_SLOT_OF_REGION + 1;
        memset(stored.agent->slots[1], 0x77, bytes); /* not this rank's */
        memcpy(stored.agent->slots[1] + BEFORE, stored.bytes[1] + BEFORE, bytes - BEFORE);
        clear(&rank);
        restore_into(&stored, &rank, &restored);
        if (elsewhere)
            assert_int_equal(restored.local_bytes, 0);
        else
            assert_true(restored.local_bytes >= 250 * COLUMNS * 4);
        assert_true(restored.remote_bytes > 0);
        assert_null(strstr(lines.warnings, "damaged"));
        rank_fini(&rank);
        stored_fini(&stored);
    }
}

/* What several nodes hold is read from the own one. */
static void
test_prefers_own(void **state)
{
    struct stored stored = store_all(8 * CAIRN_BLOCK_BYTES, false);
    struct rank rank = {.count = 0};
    struct cairn_restored restored = {CAIRN_RESTORED_INIT};

    for (uint32_t index = 0; index < 3; index++) { /* all of the vector on each */
        struct rank holder = {.count = 0};

        add(&holder, vector(0, LENGTH), true);
        free(stored.bytes[index]);
        free((void *)(uintptr_t)stored.agent->manifests[index].bytes);
        store(&stored, index, &holder);
        rank_fini(&holder);
    }
    stored.agent->own_slot = 1;
    stored.agent->own_container = 2;
    memcpy(stored.agent->slots[1], stored.bytes[2], stored.agent->container_bytes[2]);
    add(&rank, vector(5, LENGTH), false);
    restore_into(&stored, &rank, &restored);
    assert_int_equal(restored.local_bytes, restored.bytes);
    assert_int_equal(stored.agent->fetches, 0);
    rank_fini(&rank);
    stored_fini(&stored);
}

/* Columns instead of rows, other cuts, and the whole blob: from all three, through a small window.
 */
static void
test_other_layout(void **state)
{
    static const size_t windows[] = {1, 2, 3, 7, 64};

    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
        struct stored stored = store_all(windows[w] * CAIRN_BLOCK_BYTES, w % 2 == 0);
        struct rank rank = {.count = 0};
        struct cairn_restored restored = {CAIRN_RESTORED_INIT};

        add(&rank, matrix(3, ROWS - 5, 11, 300), false);
        add(&rank, blob(0), false);
        add(&rank, vector(9990, 60000), false);
        add(&rank, matrix(0, ROWS, 500, 23), false);
        restore_into(&stored, &rank, &restored);
        assert_true(restored.remote_bytes > 0);
        assert_int_equal(restored.local_bytes > 0, w % 2 == 0);
        rank_fini(&rank);
        stored_fini(&stored);
    }
}

static void
test_whole_state(void **state)
{
    struct stored stored = store_all(8 * CAIRN_BLOCK_BYTES, false);
    struct rank rank = {.count = 0};
    struct cairn_restored restored = {CAIRN_RESTORED_INIT};

    stored.agent->source = CAIRN_SOURCE_FILES;
    add(&rank, matrix(0, ROWS, 0, COLUMNS), false);
    add(&rank, vector(0, LENGTH), false);
    add(&rank, blob(2), false);
    restore_into(&stored, &rank, &restored);
    assert_int_equal(restored.file_bytes, restored.bytes);
    rank_fini(&rank);
    stored_fini(&stored);
}

/* Requests for several parts of the window are out at once. */
static void *
let_fetches_go(void *argument)
{
    struct fake_agent *agent = argument;
    bool two = fake_reaches(&agent->fetches, 2);

    agent->hold_fetches = 0;
    return two ? agent : NULL;
}

static void
test_pipelined(void **state)
{
    struct stored stored = store_all(8 * CAIRN_BLOCK_BYTES, false);
    struct rank rank = {.count = 0};
    struct cairn_restored restored = {CAIRN_RESTORED_INIT};
    struct cairn_client *client;
    pthread_t thread;
    void *two;

    add(&rank, matrix(0, ROWS, 0, COLUMNS), false);
    client = open_client(stored.agent, &rank);
    stored.agent->hold_fetches = 1; /* until two are there: one at a time would wait for ever */
    assert_int_equal(pthread_create(&thread, NULL, let_fetches_go, stored.agent), 0);
    assert_int_equal(cairn_client_restore(client, &restored), CAIRN_OK);
    pthread_join(thread, &two);
    assert_non_null(two);
    assert_true(stored.agent->fetches_waiting_max >= 2);
    check_filled(&rank);
    cairn_client_close(client);
    rank_fini(&rank);
    stored_fini(&stored);
}

/* A flipped byte is found wherever it is: in the own memory, and in what comes. */
static void
test_damage_repaired(void **state)
{
    for (int where = 0; where < 3; where++) {
        struct stored stored = store_all(8 * CAIRN_BLOCK_BYTES, true);
        struct rank rank = {.count = 0};
        struct cairn_restored restored = {CAIRN_RESTORED_INIT};
        struct cairn_client *client;

        source_rank(&rank, 1);
        add(&rank, vector(0, LENGTH), false);
        clear(&rank);
        if (where == 0) {
            stored.agent->slots[1][3 * CAIRN_BLOCK_BYTES + 77] ^= 1;
        } else {
            stored.agent->flip_container = where == 1 ? 2 : 0;
            stored.agent->flip_block = 8;
            stored.agent->flips = 1;
        }
        client = open_client(stored.agent, &rank);
        assert_int_equal(cairn_client_restore(client, &restored), CAIRN_OK);
        check_filled(&rank);
        assert_true(log_has(where == 0 ? "1 blocks in this node's memory are damaged"
                                       : "1 fetched blocks are damaged"));
        assert_int_equal(stored.agent->flips, 0);
        cairn_client_close(client);
        rank_fini(&rank);
        stored_fini(&stored);
    }
}

static void
expect_failure(struct stored *stored, struct rank *rank, cairn_err expected, const char *said)
{
    struct cairn_restored restored = {CAIRN_RESTORED_INIT, .bytes = 77};
    struct cairn_client *client = open_client(stored->agent, rank);

    assert_int_equal(cairn_client_restore(client, &restored), expected);
    assert_int_equal(restored.bytes, 77);
    cairn_client_close(client);
    if (!log_has(said))
        fail_msg("\"%s\" is not in: %s", said, lines.warnings);
}

static void
test_damage_everywhere(void **state)
{
    struct stored stored = store_all(8 * CAIRN_BLOCK_BYTES, true);
    struct rank rank = {.count = 0};

    source_rank(&rank, 1);
    clear(&rank);
    stored.agent->slots[1][5] ^= 1;
    stored.bytes[1][5] ^= 1;
    expect_failure(&stored, &rank, CAIRN_CORRUPT, "damaged");
    assert_true(fake_reaches(&stored.agent->restoreds, 1));
    assert_int_equal(stored.agent->restored_err, CAIRN_CORRUPT);
    rank_fini(&rank);
    stored_fini(&stored);
}

static void
test_does_not_fit(void **state)
{
    struct stored stored = store_all(8 * CAIRN_BLOCK_BYTES, true);
    struct rank missing = {.count = 0}, shape = {.count = 0}, dtype = {.count = 0};
    struct cairn_slice other = vector(0, 50);

    source_rank(&missing, 0);
    other.name = "no.such.tensor";
    add(&missing, other, false);
    clear(&missing);
    expect_failure(&stored, &missing, CAIRN_INVAL, "no.such.tensor");
    check_untouched(&missing);
    other = vector(0, 50);
    other.shape[0]++;
    add(&shape, other, false);
    expect_failure(&stored, &shape, CAIRN_INVAL, "vector");
    check_untouched(&shape);
    other = vector(0, 50);
    other.dtype = CAIRN_F32;
    add(&dtype, other, false);
    expect_failure(&stored, &dtype, CAIRN_INVAL, "vector");
    check_untouched(&dtype);
    rank_fini(&missing);
    rank_fini(&shape);
    rank_fini(&dtype);
    stored_fini(&stored);
}

static void
test_answers(void **state)
{
    struct stored stored = store_all(8 * CAIRN_BLOCK_BYTES, true);
    struct rank rank = {.count = 0};

    add(&rank, matrix(0, ROWS, 0, 10), false);
    stored.agent->restore_err = CAIRN_NOT_FOUND;
    expect_failure(&stored, &rank, CAIRN_NOT_FOUND, "");
    stored.agent->restore_err = CAIRN_LOST;
    expect_failure(&stored, &rank, CAIRN_LOST, "as told");
    stored.agent->restore_err = CAIRN_OK;
    check_untouched(&rank);
    stored.agent->fetch_err = CAIRN_PEER;
    expect_failure(&stored, &rank, CAIRN_PEER, "as told");
    stored.agent->fetch_err = CAIRN_OK;
    stored.agent->close_at_fetch = 1; /* dies in the middle */
    expect_failure(&stored, &rank, CAIRN_PEER, "bytes did not come");
    stored.agent->close_at_fetch = 0;
    stored.agent->hold_fetches = 1; /* hangs in the middle */
    expect_failure(&stored, &rank, CAIRN_TIMEOUT, "bytes did not come");
    stored.agent->hold_fetches = 0;
    stored.agent->own_container = 3;
    expect_failure(&stored, &rank, CAIRN_CORRUPT, "");
    stored.agent->own_container =
        0; /* the memory there is another container's: every block fails */
    stored.agent->hold_fetches = 0;
    {
        struct cairn_restored restored = {CAIRN_RESTORED_INIT};
        struct cairn_client *client = open_client(stored.agent, &rank);

        clear(&rank);
        assert_int_equal(cairn_client_restore(client, &restored), CAIRN_OK);
        assert_int_equal(restored.local_bytes, 0);
        check_filled(&rank);
        cairn_client_close(client);
    }
    rank_fini(&rank);
    stored_fini(&stored);
}

/* While the job's own restore is under way the agent cannot say what is held: that is not an
 * answer. */
static void
test_waits_for_an_answer(void **state)
{
    struct stored stored = store_all(8 * CAIRN_BLOCK_BYTES, true);
    struct cairn_restored restored = {CAIRN_RESTORED_INIT};
    struct rank rank = {.count = 0};
    struct cairn_client *client;

    add(&rank, matrix(0, ROWS, 0, 10), false);
    stored.agent->busy_restores = 3;
    client = open_client(stored.agent, &rank);
    clear(&rank);
    assert_int_equal(cairn_client_restore(client, &restored), CAIRN_OK);
    assert_int_equal(stored.agent->restores, 4);
    check_filled(&rank);
    cairn_client_close(client);
    stored.agent->busy_restores = INT_MAX; /* until the trainer's time is over */
    expect_failure(&stored, &rank, CAIRN_AGAIN, "as told");
    stored.agent->busy_restores = 1; /* the time ends between two answers */
    stored.agent->mute_restores = 1;
    expect_failure(&stored, &rank, CAIRN_AGAIN, "as told");
    stored.agent->busy_restores = 0; /* no answer at all is another thing */
    expect_failure(&stored, &rank, CAIRN_TIMEOUT, "no answer from the agent");
    rank_fini(&rank);
    stored_fini(&stored);
}

/* Every byte of every manifest, flipped: refused, and nothing is touched. */
static void
test_hostile_manifests(void **state)
{
    struct stored stored = store_all(8 * CAIRN_BLOCK_BYTES, true);
    struct rank rank = {.count = 0};
    struct cairn_restored restored = {CAIRN_RESTORED_INIT};
    struct cairn_client *client;

    add(&rank, matrix(0, ROWS, 0, COLUMNS), false);
    client = open_client(stored.agent, &rank);
    for (uint32_t m = 0; m < 3; m++) {
        uint8_t *bytes = (uint8_t *)(uintptr_t)stored.agent->manifests[m].bytes;

        for (size_t at = 0; at < stored.agent->manifests[m].bytes_len; at += 29) {
            cairn_err err;

            bytes[at] ^= 0x40;
            err = cairn_client_restore(client, &restored);
            assert_true(err == CAIRN_CORRUPT || err == CAIRN_VERSION);
            bytes[at] ^= 0x40;
        }
    }
    stored.agent->generation.step++; /* manifests of another one */
    assert_int_equal(cairn_client_restore(client, &restored), CAIRN_CORRUPT);
    stored.agent->generation.step--;
    stored.agent->container_count = 2; /* one is missing */
    assert_int_equal(cairn_client_restore(client, &restored), CAIRN_CORRUPT);
    stored.agent->container_count = 3;
    check_untouched(&rank);
    assert_int_equal(cairn_client_restore(client, &restored), CAIRN_OK);
    check_filled(&rank);
    cairn_client_close(client);
    rank_fini(&rank);
    stored_fini(&stored);
}

/* A rank whose tensors the agent has no room for can still be restored: all of it is fetched. */
static void
test_without_slots(void **state)
{
    struct stored stored = store_all(8 * CAIRN_BLOCK_BYTES, true);
    struct rank rank = {.count = 0};
    struct cairn_restored restored = {CAIRN_RESTORED_INIT};
    struct cairn_client_options options = {CAIRN_CLIENT_OPTIONS_INIT,
                                           .agent_socket = stored.agent->path, .world = 3,
                                           .log = note_line};
    struct cairn_client *client = NULL;

    stored.agent->register_err = CAIRN_NOMEM;
    add(&rank, matrix(240, 20, 0, COLUMNS), false);
    assert_int_equal(cairn_client_open(&options, &client), CAIRN_OK);
    assert_int_equal(cairn_client_restore(client, &restored), CAIRN_INVAL); /* into what? */
    assert_int_equal(cairn_client_register(client, rank.slices, rank.count), CAIRN_NOMEM);
    assert_int_equal(cairn_client_restore(client, &restored), CAIRN_OK);
    assert_int_equal(restored.local_bytes, 0);
    check_filled(&rank);
    cairn_client_close(client);
    rank_fini(&rank);
    stored_fini(&stored);
}

/* Lines of /proc/self/maps that name this memory. */
static int
count_mappings(const char *name)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    int count = 0;

    assert_non_null(maps);
    while (fgets(line, sizeof line, maps))
        count += strstr(line, name) != NULL;
    fclose(maps);
    return count;
}

/* Memory of huge pages in the place of slot 1; false where this machine has none left. */
static bool
make_slot_huge(struct fake_agent *agent)
{
    int fd = memfd_create("fake-huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    void *map = MAP_FAILED;

    if (fd >= 0 && !ftruncate(fd, FAKE_SLOT_BYTES) &&
        !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        map = mmap(NULL, FAKE_SLOT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    memcpy(map, agent->slots[1], FAKE_SLOT_BYTES);
    munmap(agent->slots[1], FAKE_SLOT_BYTES);
    close(agent->slot_fds[1]);
    agent->slots[1] = map;
    agent->slot_fds[1] = fd;
    return true;
}

/* An agent's arena of huge pages is let go of after a restore, which mapped a part of it. */
static void
test_huge_pages_are_let_go_of(void **state)
{
    struct stored stored = store_all(16 * CAIRN_BLOCK_BYTES, true);
    struct rank rank = {.count = 0};
    struct cairn_restored restored = {CAIRN_RESTORED_INIT};
    bool huge = make_slot_huge(stored.agent);

    source_rank(&rank, 1);
    if (huge) {
        restore_into(&stored, &rank, &restored);
        assert_true(restored.local_bytes > 0);
        assert_int_equal(count_mappings("fake-huge"), 1); /* the test's own */
    }
    rank_fini(&rank);
    stored_fini(&stored);
    if (!huge) {
        print_message("no huge pages to be had: sysctl vm.nr_overcommit_hugepages=16 would do\n");
        skip();
    }
}

/* While a restore is under way: every descriptor of this process that a program it starts would
 * get. */
static void *
count_inherited(void *argument)
{
    struct fake_agent *agent = argument;
    bool in_time = fake_reaches(&agent->fetches, 1);
    int *count = calloc(1, sizeof *count);

    if (!in_time || !count)
        abort();
    for (int fd = 3; fd < 1024; fd++) {
        int flags = fcntl(fd, F_GETFD);

        *count += flags >= 0 && !(flags & FD_CLOEXEC);
    }
    agent->hold_fetches = 0;
    return count;
}

/* What the trainer starts meanwhile inherits nothing: not the agent's memory, which it would keep
 * alive. */
static void
test_nothing_is_inherited(void **state)
{
    struct stored stored = store_all(8 * CAIRN_BLOCK_BYTES, true);
    struct rank rank = {.count = 0};
    struct cairn_restored restored = {CAIRN_RESTORED_INIT};
    struct cairn_client *client;
    pthread_t thread;
    void *count;
    int before = 0;

    for (int fd = 3; fd < 1024; fd++) { /* those that this program was started with */
        int flags = fcntl(fd, F_GETFD);

        before += flags >= 0 && !(flags & FD_CLOEXEC);
    }
    add(&rank, matrix(0, ROWS, 0, COLUMNS), false);
    client = open_client(stored.agent, &rank);
    stored.agent->hold_fetches = 1;
    assert_int_equal(pthread_create(&thread, NULL, count_inherited, stored.agent), 0);
    assert_int_equal(cairn_client_restore(client, &restored), CAIRN_OK);
    pthread_join(thread, &count);
    assert_true(restored.local_bytes > 0);
    assert_int_equal(*(int *)count, before);
    free(count);
    cairn_client_close(client);
    rank_fini(&rank);
    stored_fini(&stored);
}

struct listing {
    uint32_t matrices, vectors, blobs, others;
};

static void
note_tensor(void *context, const char *name, enum cairn_dtype dtype, enum cairn_kind kind,
            uint32_t dims, const uint64_t *shape)
{
    struct listing *listing = context;

    if (strcmp(name, "matrix") == 0 && dtype == CAIRN_U32 && kind == CAIRN_PARAM && dims == 2 &&
        shape[0] == ROWS && shape[1] == COLUMNS)
        listing->matrices++;
    else if (strcmp(name, "vector") == 0 && dtype == CAIRN_U32 && kind == CAIRN_OPTIMIZER &&
             dims == 1 && shape[0] == LENGTH)
        listing->vectors++;
    else if (strcmp(name, "blob") == 0 && dtype == CAIRN_U8 && kind == CAIRN_OPAQUE && dims == 1 &&
             shape[0] == BLOB)
        listing->blobs++;
    else
        listing->others++;
}

/* What three nodes hold parts of is listed once, whole, before anything is registered; and a
 * restore works after it. */
static void
test_list(void **state)
{
    struct stored stored = store_all(8 * CAIRN_BLOCK_BYTES, true);
    struct cairn_client_options options = {CAIRN_CLIENT_OPTIONS_INIT,
                                           .agent_socket = stored.agent->path, .world = 3,
                                           .connect_timeout_ms = 3000, .log = note_line};
    struct listing listing = {0};
    struct cairn_generation generation;
    struct rank rank = {.count = 0};
    struct cairn_restored restored = {CAIRN_RESTORED_INIT};
    struct cairn_client *client = NULL;

    assert_int_equal(cairn_client_open(&options, &client), CAIRN_OK);
    assert_int_equal(cairn_client_list(client, NULL, NULL, NULL), CAIRN_INVAL);
    assert_int_equal(cairn_client_list(client, note_tensor, &listing, &generation), CAIRN_OK);
    assert_true(generation.epoch == 2 && generation.step == 40);
    assert_true(listing.matrices == 1 && listing.vectors == 1 && listing.blobs == 1 &&
                listing.others == 0);
    stored.agent->generation.step++; /* manifests of another one */
    assert_int_equal(cairn_client_list(client, note_tensor, &listing, NULL), CAIRN_CORRUPT);
    stored.agent->generation.step--;
    assert_true(listing.matrices == 1 && listing.others == 0);
    add(&rank, matrix(0, ROWS, 0, COLUMNS), false);
    assert_int_equal(cairn_client_register(client, rank.slices, rank.count), CAIRN_OK);
    assert_int_equal(cairn_client_restore(client, &restored), CAIRN_OK);
    check_filled(&rank);
    cairn_client_close(client);
    rank_fini(&rank);
    stored_fini(&stored);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_layout),
        cmocka_unit_test(test_own_region),
        cmocka_unit_test(test_other_layout),
        cmocka_unit_test(test_prefers_own),
        cmocka_unit_test(test_whole_state),
        cmocka_unit_test(test_pipelined),
        cmocka_unit_test(test_damage_repaired),
        cmocka_unit_test(test_damage_everywhere),
        cmocka_unit_test(test_does_not_fit),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_waits_for_an_answer),
        cmocka_unit_test(test_hostile_manifests),
        cmocka_unit_test(test_without_slots),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_nothing_is_inherited),
        cmocka_unit_test(test_huge_pages_are_let_go_of),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
