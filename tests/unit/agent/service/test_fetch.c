/* tests/unit/agent/service/test_fetch.c - blocks that another node sends are taken from the node
 * that was asked, and from no other. */
#include "agent/process/agent_state.h"
#include "agent/process/mail.h"
#include "agent/service/fetch.h"
#include "agent/service/fetch_state.h"
#include "base/crc.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 2, BYTES = BLOCKS * CAIRN_BLOCK_BYTES, ASKED = 3, OTHER = 4, REQUEST = 7 };

static uint8_t sent[BYTES], target[BYTES];
static uint32_t ended;

static void
note_end(void *context, uint64_t tag, cairn_err err)
{
    assert_int_equal(err, CAIRN_OK);
    ended++;
}

/* A fetcher of one container that has asked one node for one run of blocks. */
struct fixture {
    struct cairn_agent agent;
    struct fetch_table table;
    struct fetcher fetcher;
    struct container container;
    uint64_t crcs[BLOCKS];
};

static int
setup(void **state)
{
    struct fixture *made = calloc(1, sizeof *made);
    struct batch *batch = calloc(1, sizeof *batch);
    struct read *read = calloc(1, sizeof *read);

    assert_true(made && batch && read);
    memset(sent, 0x5a, sizeof sent);
    memset(target, 0, sizeof target);
    ended = 0;
    for (uint32_t i = 0; i < BLOCKS; i++)
        made->crcs[i] = cairn_crc64(0, sent + i * CAIRN_BLOCK_BYTES, CAIRN_BLOCK_BYTES);
    *batch = (struct batch){.left = 1, .done = note_end};
    *read = (struct read){.batch = batch,
                          .id = REQUEST,
                          .count = BLOCKS,
                          .target = target,
                          .sent_ns = 1,
                          .asked = ASKED};
    made->container.manifest.container_bytes = BYTES;
    made->container.manifest.block_count = BLOCKS;
    made->container.manifest.block_crcs = made->crcs;
    made->fetcher.agent = &made->agent;
    made->fetcher.containers = &made->container;
    made->fetcher.container_count = 1;
    made->fetcher.is_ready = true;
    made->fetcher.compares = true;
    made->fetcher.reads = read;
    made->fetcher.read_count = made->fetcher.in_flight = 1;
    made->table.fetchers = &made->fetcher;
    made->agent.fetches = &made->table;
    *state = made;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *made = *state;

    if (made->fetcher.reads) {
        free(made->fetcher.reads->batch);
        free(made->fetcher.reads);
    }
    free(made);
    return 0;
}

static void
answer(struct fixture *made, uint32_t from)
{
    struct cairn_service_message message = {.kind = CAIRN_SERVICE_FETCHED,
                                            .from = from,
                                            .verb = ASK_BLOCKS,
                                            .request = REQUEST,
                                            .block_count = BLOCKS};

    fetch_message(&made->agent, &message, sent, sizeof sent);
}

static void
a_payload_has_a_place_if_its_sender_was_asked(void **state)
{
    struct fixture *made = *state;

    assert_ptr_equal(fetch_place(&made->agent, ASKED, REQUEST, BYTES), target);
    assert_null(fetch_place(&made->agent, OTHER, REQUEST, BYTES));
    assert_null(fetch_place(&made->agent, ASKED, REQUEST + 1, BYTES));
    assert_null(fetch_place(&made->agent, ASKED, REQUEST, BYTES - CAIRN_BLOCK_BYTES));
    made->fetcher.reads->asked = UINT32_MAX; /* a worker fills it */
    assert_null(fetch_place(&made->agent, ASKED, REQUEST, BYTES));
}

static void
only_the_node_that_was_asked_answers(void **state)
{
    struct fixture *made = *state;

    answer(made, OTHER);
    assert_int_equal(ended, 0);
    assert_int_equal(target[0], 0);
    answer(made, ASKED);
    assert_int_equal(ended, 1);
    assert_memory_equal(target, sent, sizeof sent);
    assert_null(fetch_place(&made->agent, ASKED, REQUEST, BYTES)); /* once */
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_payload_has_a_place_if_its_sender_was_asked, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(only_the_node_that_was_asked_answers, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
