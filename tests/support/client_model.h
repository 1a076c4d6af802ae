/*
 * tests/support/client_model.h - a client of the stand-in agent, a few tensors, and what the client
 * said.
 *
 * In a header as the stand-in agent is, and for the same reason.
 */
#ifndef CAIRN_TESTS_CLIENT_MODEL_H
#define CAIRN_TESTS_CLIENT_MODEL_H

#include "tests/support/cmocka.h"
#include "tests/support/fake_agent.h"

#include "cairn/client.h"

#include "base/crc.h"
#include "tests/support/client_lines.h"

enum { TENSORS = 6, SHORT_MS = 300 };

static inline int
count_lines(const char *part)
{
    return count_in(lines.text, part);
}

__attribute__((unused)) static int
reset(void **state)
{
    unsetenv("CAIRN_AGENT");
    unsetenv("CAIRN_JOB");
    forget_lines();
    return 0;
}

__attribute__((unused)) static struct cairn_client_options
options_for(const char *path)
{
    return (struct cairn_client_options){CAIRN_CLIENT_OPTIONS_INIT,
                                         .agent_socket = path,
                                         .job = "test",
                                         .rank = 1,
                                         .world = 4,
                                         .fence_timeout_ms = 5000,
                                         .connect_timeout_ms = 5000,
                                         .restore_timeout_ms = 5000,
                                         .log = note_line};
}

__attribute__((unused)) static struct cairn_client *
open_client(struct fake_agent *agent)
{
    struct cairn_client_options options = options_for(agent->path);
    struct cairn_client *client = NULL;

    assert_int_equal(cairn_client_open(&options, &client), CAIRN_OK);
    return client;
}

/* A few tensors of awkward sizes, a replica's share and flat ranges among them. */
struct model {
    struct cairn_slice slices[TENSORS];
    uint8_t *bytes[TENSORS];
    size_t sizes[TENSORS];
};

__attribute__((unused)) static void
model_add(struct model *model, int index, const char *name, enum cairn_dtype dtype,
          uint64_t elements, uint64_t flat_begin, uint64_t flat_end, uint32_t replica,
          uint32_t replicas)
{
    struct cairn_slice *slice = &model->slices[index];
    uint64_t held = flat_end ? flat_end - flat_begin : elements;

    model->sizes[index] = held * cairn_dtype_bytes(dtype);
    model->bytes[index] = malloc(model->sizes[index]);
    assert_non_null(model->bytes[index]);
    for (size_t i = 0; i < model->sizes[index]; i++)
        model->bytes[index][i] = (uint8_t)(i * 31 + i / 251 + (size_t)index * 17);
    *slice = (struct cairn_slice){CAIRN_SLICE_INIT,
                                  .name = name,
                                  .dtype = dtype,
                                  .kind = CAIRN_PARAM,
                                  .dims = 1,
                                  .shape = {elements + 10},
                                  .offset = {3},
                                  .extent = {elements},
                                  .flat_begin = flat_begin,
                                  .flat_end = flat_end,
                                  .replica_index = replica,
                                  .replica_count = replicas,
                                  .address = model->bytes[index],
                                  .device = -1};
}

__attribute__((unused)) static void
model_init(struct model *model)
{
    model_add(model, 0, "embed", CAIRN_F32, 300001, 0, 0, 1, 3);
    model_add(model, 1, "bias", CAIRN_BF16, 7, 0, 0, 0, 1);
    model_add(model, 2, "moment", CAIRN_F32, 90000, 100, 70001, 0, 1);
    model_add(model, 3, "tiny", CAIRN_F32, 1, 0, 0, 2, 3); /* its share is empty */
    model_add(model, 4, "flat", CAIRN_F64, 5000, 17, 4000, 0, 2);
    model_add(model, 5, "rng", CAIRN_U8, 999, 0, 0, 0, 1);
}

__attribute__((unused)) static void
model_fini(struct model *model)
{
    for (int i = 0; i < TENSORS; i++)
        free(model->bytes[i]);
}

/* Starts the agent and opens a client that has registered the model's first `count` tensors. */
__attribute__((unused)) static struct cairn_client *
attach_model(struct fake_agent *agent, struct model *model, uint32_t count)
{
    struct cairn_client *client;

    model_init(model);
    fake_agent_start(agent);
    client = open_client(agent);
    assert_int_equal(cairn_client_register(client, model->slices, count), CAIRN_OK);
    return client;
}

/* Ends agent and model, and the client unless it is NULL. */
__attribute__((unused)) static void
end_all(struct cairn_client *client, struct fake_agent *agent, struct model *model)
{
    cairn_client_close(client);
    fake_agent_stop(agent);
    fake_agent_destroy(agent);
    if (model)
        model_fini(model);
}

/* The region in a slot holds exactly what the plan says, padding zero, and the checksums are right.
 */
__attribute__((unused)) static void
check_region(const struct fake_agent *agent, const struct model *model, uint32_t slot)
{
    struct cairn_manifest_entry entries[TENSORS];
    uint64_t region_bytes, blocks;
    uint8_t *expected;
    const uint8_t *region = agent->slots[slot] + FAKE_REGION_STRIDE; /* of rank 1 */

    assert_int_equal(cairn_capture_plan(model->slices, TENSORS, entries, &region_bytes, NULL),
                     CAIRN_OK);
    expected = calloc(1, region_bytes);
    assert_non_null(expected);
    for (int i = 0; i < TENSORS; i++)
        memcpy(expected + entries[i].offset_bytes, entries[i].slice.address,
               cairn_capture_bytes(&entries[i]));
    assert_memory_equal(region, expected, region_bytes);
    blocks = region_bytes / CAIRN_BLOCK_BYTES;
    assert_int_equal(agent->blocks[1], blocks);
    for (uint64_t b = 0; b < blocks; b++)
        assert_int_equal(agent->crcs[1][b],
                         cairn_crc64(0, expected + b * CAIRN_BLOCK_BYTES, CAIRN_BLOCK_BYTES));
    free(expected);
}

__attribute__((unused)) static void
wait_attached(struct cairn_client *client, uint32_t attached)
{
    uint64_t until_ms = fake_now_ms() + 60000;
    struct cairn_client_stats stats = {CAIRN_CLIENT_STATS_INIT};

    do {
        assert_true(fake_now_ms() < until_ms);
        assert_int_equal(cairn_client_stats_read(client, &stats), CAIRN_OK);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    } while (stats.attached != attached);
}

/* begin until the agent answers: right after an attachment the tensors may still be on their way.
 */
__attribute__((unused)) static void
begin_soon(struct cairn_client *client, uint64_t step)
{
    uint64_t until_ms = fake_now_ms() + 60000;

    while (cairn_snapshot_begin(client, step) != CAIRN_OK) {
        assert_true(fake_now_ms() < until_ms);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
}

#endif
