/*
 * tests/unit/erasure/test_repair.c - the repair schedule: every loss set of small groups with
 * shards of unequal lengths, executed in memory and compared byte for byte.
 */
#include "erasure/code.h"
#include "erasure/repair.h"
#include "tests/support/cmocka.h"
#include "tests/support/random.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 24 };

static uint64_t random_state = 11;

static uint64_t
bit(uint32_t position)
{
    return (uint64_t)1 << position;
}

/* ---- a group of nodes in memory ---- */

struct nodes {
    struct cairn_stripes stripes;
    struct cairn_code *code;
    uint8_t *area[CAIRN_SHARDS_MAX][2];   /* by position and area */
    uint8_t *good[CAIRN_SHARDS_MAX][2];   /* what it must be */
    uint32_t *times[CAIRN_SHARDS_MAX][2]; /* how often each block was rebuilt */
};

static size_t
area_bytes(const struct nodes *nodes, uint32_t p, int area)
{
    return (size_t)cairn_stripes_area_blocks(&nodes->stripes, p, (enum cairn_area)area) *
           BLOCK_BYTES;
}

/* Folds every block of every shard into its stripe's parity, in random order. */
static void
protect(struct nodes *nodes)
{
    const struct cairn_geometry *g = &nodes->stripes.geometry;
    uint32_t count = 0, *order;
    uint8_t *folded[CAIRN_SHARDS_MAX]; /* by stripe: lines that have had their first contribution */

    for (uint32_t p = 0; p < g->n; p++)
        count += (uint32_t)nodes->stripes.shard_blocks[p];
    order = malloc((count + 1) * sizeof *order);
    assert_non_null(order);
    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    for (uint32_t i = count; i > 1; i--) {
        uint32_t other = (uint32_t)(splitmix(&random_state) % i), kept = order[i - 1];

        order[i - 1] = order[other];
        order[other] = kept;
    }
    for (uint32_t s = 0; s < g->n; s++)
        folded[s] = calloc(nodes->stripes.parity_blocks[s] + 1, 1);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t p = 0;
        uint64_t block = order[i], first_block;
        struct cairn_place place;

        while (block >= nodes->stripes.shard_blocks[p])
            block -= nodes->stripes.shard_blocks[p++];
        assert_int_equal(cairn_stripes_place(&nodes->stripes, p, CAIRN_AREA_DATA, block, &place),
                         CAIRN_OK);
        for (uint32_t r = 0; r < g->m; r++) {
            uint32_t owner = cairn_stripe_parity_position(g, place.stripe, r);

            cairn_stripes_area(&nodes->stripes, place.stripe, owner, &first_block);
            cairn_code_fold(nodes->code, r, place.shard, BLOCK_BYTES,
                            nodes->area[p][0] + block * BLOCK_BYTES,
                            nodes->area[owner][1] + (first_block + place.line) * BLOCK_BYTES,
                            folded[place.stripe][place.line] == 0);
        }
        folded[place.stripe][place.line] = 1;
    }
    for (uint32_t s = 0; s < g->n; s++)
        free(folded[s]);
    free(order);
}

static void
nodes_init(struct nodes *nodes, uint32_t k, uint32_t m, const uint64_t *shard_bytes)
{
    struct cairn_geometry geometry;

    memset(nodes, 0, sizeof *nodes);
    assert_int_equal(cairn_geometry_init(k, m, BLOCK_BYTES, &geometry), CAIRN_OK);
    assert_int_equal(cairn_stripes_init(&geometry, shard_bytes, &nodes->stripes), CAIRN_OK);
    assert_int_equal(cairn_code_create(k, m, &nodes->code), CAIRN_OK);
    for (uint32_t p = 0; p < k + m; p++)
        for (int area = 0; area < 2; area++) {
            size_t bytes = area_bytes(nodes, p, area);

            nodes->area[p][area] = malloc(bytes + 1);
            nodes->good[p][area] = malloc(bytes + 1);
            nodes->times[p][area] = calloc(bytes / BLOCK_BYTES + 1, sizeof(uint32_t));
            assert_non_null(nodes->times[p][area]);
            for (size_t at = 0; at < bytes; at++)
                nodes->area[p][area][at] = (uint8_t)(splitmix(&random_state) | 1);
            if (area == CAIRN_AREA_DATA) /* the last block is padded with zeros */
                memset(nodes->area[p][0] + shard_bytes[p], 0, bytes - (size_t)shard_bytes[p]);
        }
    protect(nodes);
    for (uint32_t p = 0; p < k + m; p++)
        for (int area = 0; area < 2; area++)
            memcpy(nodes->good[p][area], nodes->area[p][area], area_bytes(nodes, p, area));
}

static void
nodes_fini(struct nodes *nodes)
{
    for (uint32_t p = 0; p < nodes->stripes.geometry.n; p++)
        for (int area = 0; area < 2; area++) {
            free(nodes->area[p][area]);
            free(nodes->good[p][area]);
            free(nodes->times[p][area]);
        }
    cairn_code_destroy(nodes->code);
}

static void
spoil(struct nodes *nodes, uint64_t positions)
{
    for (uint32_t p = 0; p < nodes->stripes.geometry.n; p++)
        for (int area = 0; area < 2; area++) {
            size_t bytes = area_bytes(nodes, p, area);

            memset(nodes->times[p][area], 0, bytes / BLOCK_BYTES * sizeof(uint32_t));
            if (positions & bit(p))
                for (size_t at = 0; at < bytes; at++)
                    nodes->area[p][area][at] ^= 0xff;
        }
}

/* Carries out one item the way an agent would, and checks what repair.h promises. */
static void
carry_out(struct nodes *nodes, const struct cairn_repair_request *request,
          const struct cairn_repair_item *item)
{
    const struct cairn_geometry *g = &nodes->stripes.geometry;
    uint8_t *shards[CAIRN_SHARDS_MAX] = {NULL};

    assert_true(item->line_count >= 1 && item->line_count <= CAIRN_MESSAGE_BLOCKS_MAX);
    assert_true(item->rebuild != 0);
    assert_int_equal(__builtin_popcountll(item->sources), g->k);
    assert_true((item->sources & item->rebuild) == 0);
    assert_true((item->reads & ~item->sources) == 0);
    assert_true((item->reads & ~request->intact) == 0);
    assert_true(item->reads & bit(item->worker));
    for (uint32_t p = 0; p < g->n; p++) {
        uint64_t first, blocks = cairn_stripes_blocks(&nodes->stripes, item->stripe, p);
        enum cairn_area area = cairn_stripes_area(&nodes->stripes, item->stripe, p, &first);

        if (!((item->sources | item->rebuild) & bit(p)))
            continue;
        if (item->sources & ~item->reads & bit(p)) {
            assert_true(blocks <= item->line_first); /* zeros at every line */
            continue;
        }
        assert_true(item->line_first + item->line_count <= blocks); /* real at every line */
        shards[cairn_stripe_shard(g, item->stripe, p)] =
            nodes->area[p][area] + (first + item->line_first) * BLOCK_BYTES;
        if (item->rebuild & bit(p))
            for (uint32_t i = 0; i < item->line_count; i++)
                nodes->times[p][area][first + item->line_first + i]++;
    }
    assert_int_equal(cairn_code_rebuild_some(nodes->code, (size_t)item->line_count * BLOCK_BYTES,
                                             cairn_stripe_shards_of(g, item->stripe, item->sources),
                                             cairn_stripe_shards_of(g, item->stripe, item->rebuild),
                                             shards),
                     CAIRN_OK);
}

/* Runs the whole schedule and compares it with its totals. */
static void
run(struct nodes *nodes, const struct cairn_repair_request *request)
{
    struct cairn_repair repair;
    struct cairn_repair_item item;
    struct cairn_repair_totals totals, counted = {0};

    assert_int_equal(cairn_repair_init(request, NULL, &totals, &repair), CAIRN_OK);
    while (cairn_repair_next(&repair, &item)) {
        carry_out(nodes, request, &item);
        counted.items++;
        counted.rebuilt_blocks +=
            (uint64_t)item.line_count * (uint64_t)__builtin_popcountll(item.rebuild);
        counted.read_blocks +=
            (uint64_t)item.line_count * (uint64_t)__builtin_popcountll(item.reads);
    }
    assert_memory_equal(&counted, &totals, sizeof totals);
    assert_false(cairn_repair_next(&repair, &item)); /* stays at the end */
}

/* All bytes are good again; each lost block was rebuilt exactly once, and no other ever. */
static void
check_repaired(const struct nodes *nodes, uint64_t lost_data, uint64_t lost_parity)
{
    for (uint32_t p = 0; p < nodes->stripes.geometry.n; p++)
        for (int area = 0; area < 2; area++) {
            uint64_t lost = area == CAIRN_AREA_DATA ? lost_data : lost_parity;
            size_t bytes = area_bytes(nodes, p, area);

            assert_memory_equal(nodes->area[p][area], nodes->good[p][area], bytes);
            for (size_t b = 0; b < bytes / BLOCK_BYTES; b++)
                assert_int_equal(nodes->times[p][area][b], lost >> p & 1);
        }
}

static void
random_lengths(uint32_t n, int round, uint64_t *shard_bytes)
{
    for (uint32_t p = 0; p < n; p++)
        switch (round) {
        case 0: /* all alike: several full messages per chunk */
            shard_bytes[p] = (uint64_t)n * 37 * BLOCK_BYTES;
            break;
        case 1: /* some empty, some a few bytes */
            shard_bytes[p] = splitmix(&random_state) % 3 * (splitmix(&random_state) % 200);
            break;
        default:
            shard_bytes[p] = splitmix(&random_state) % (uint64_t)(n * 20 * BLOCK_BYTES);
        }
}

static void
every_loss_of_every_small_group(void **state)
{
    for (uint32_t k = 1; k <= 5; k++)
        for (uint32_t m = 0; m <= 3; m++)
            for (int round = 0; round < 4; round++) {
                struct nodes nodes;
                uint64_t shard_bytes[CAIRN_SHARDS_MAX], all = bit(k + m) - 1;

                random_lengths(k + m, round, shard_bytes);
                nodes_init(&nodes, k, m, shard_bytes);
                for (uint64_t lost = 0; lost <= all; lost++) {
                    struct cairn_repair_request request = {.stripes = &nodes.stripes,
                                                           .intact = all & ~lost,
                                                           .rebuild_data = lost,
                                                           .rebuild_parity = lost};

                    if (__builtin_popcountll(lost) > (int)m)
                        continue;
                    spoil(&nodes, lost);
                    run(&nodes, &request);
                    check_repaired(&nodes, lost, lost);
                }
                nodes_fini(&nodes);
            }
}

/* What init says must be what counting the missing chunks of every line says. */
static void
more_than_parity_is_lost(void **state)
{
    for (uint32_t k = 1; k <= 5; k++)
        for (uint32_t m = 0; m <= 3; m++)
            for (int round = 0; round < 4; round++) {
                struct nodes nodes;
                uint64_t shard_bytes[CAIRN_SHARDS_MAX], all = bit(k + m) - 1;

                random_lengths(k + m, round, shard_bytes);
                nodes_init(&nodes, k, m, shard_bytes);
                for (uint64_t lost = 1; lost <= all; lost++) {
                    struct cairn_repair_request request = {.stripes = &nodes.stripes,
                                                           .intact = all & ~lost,
                                                           .rebuild_data = lost,
                                                           .rebuild_parity = lost};
                    struct cairn_repair_loss loss = {0}, most = {0};
                    struct cairn_repair repair;
                    cairn_err err;

                    for (uint32_t s = k + m; s-- > 0;)
                        for (uint64_t line = nodes.stripes.parity_blocks[s]; line-- > 0;) {
                            uint64_t missing = 0;

                            for (uint32_t p = 0; p < k + m; p++)
                                if ((lost & bit(p)) &&
                                    line < cairn_stripes_blocks(&nodes.stripes, s, p))
                                    missing |= bit(p);
                            if (__builtin_popcountll(missing) > (int)m &&
                                __builtin_popcountll(missing) >= (int)most.missing)
                                most = (struct cairn_repair_loss){
                                    .stripe = s,
                                    .line = line,
                                    .positions = missing,
                                    .missing = (uint32_t)__builtin_popcountll(missing)};
                        }
                    err = cairn_repair_init(&request, &loss, NULL, &repair);
                    if (round == 0 && __builtin_popcountll(lost) == (int)m + 1)
                        assert_int_equal(err, CAIRN_LOST);
                    assert_int_equal(err, most.missing > 0 ? CAIRN_LOST : CAIRN_OK);
                    assert_memory_equal(&loss, &most, sizeof loss);
                    if (err)
                        continue;
                    /* Short chunks may leave more than m lost nodes restorable: it must be true. */
                    spoil(&nodes, lost);
                    run(&nodes, &request);
                    check_repaired(&nodes, lost, lost);
                }
                nodes_fini(&nodes);
            }
}

static void
bad_blocks_are_rebuilt_and_not_read(void **state)
{
    for (int round = 0; round < 400; round++) {
        struct nodes nodes;
        uint32_t k = 1 + (uint32_t)(splitmix(&random_state) % 6),
                 m = 1 + (uint32_t)(splitmix(&random_state) % 3);
        uint32_t n = k + m, lost_count = (uint32_t)(splitmix(&random_state) % m);
        uint64_t shard_bytes[CAIRN_SHARDS_MAX], all = bit(n) - 1, lost = 0;
        struct cairn_bad_block bad[64];
        struct cairn_repair_request request = {.stripes = &nodes.stripes, .bad = bad};
        uint32_t *expected[CAIRN_SHARDS_MAX][2];

        random_lengths(n, round % 3 == 0 ? 0 : 2, shard_bytes);
        nodes_init(&nodes, k, m, shard_bytes);
        for (uint32_t i = 0; i < lost_count; i++)
            lost |= bit((uint32_t)(splitmix(&random_state) % n));
        spoil(&nodes, lost);
        for (uint32_t p = 0; p < n; p++)
            for (int area = 0; area < 2; area++)
                expected[p][area] =
                    calloc(area_bytes(&nodes, p, area) / BLOCK_BYTES + 1, sizeof(uint32_t));
        /* One bad position at most besides the lost: every line stays restorable. */
        for (uint32_t i = 0, p = (uint32_t)(splitmix(&random_state) % n); i < 60; i++) {
            int area = (int)(splitmix(&random_state) % 2);
            uint64_t blocks = area_bytes(&nodes, p, area) / BLOCK_BYTES;
            uint64_t block = blocks ? splitmix(&random_state) % blocks : 0;

            if (blocks == 0)
                continue;
            /* make neighbours frequent */
            if (i < 20 && i > 0 && request.bad_count > 0 && block > 0)
                block = (bad[request.bad_count - 1].block + 1) % blocks;
            bad[request.bad_count++] = (struct cairn_bad_block){
                .position = p, .area = (enum cairn_area)area, .block = block};
            if (lost & bit(p))
                continue;
            expected[p][area][block] = 1;
            memset(nodes.area[p][area] + block * BLOCK_BYTES, 0xee, BLOCK_BYTES);
        }
        request.intact = all & ~lost;
        request.rebuild_data = request.rebuild_parity = lost;
        run(&nodes, &request);
        for (uint32_t p = 0; p < n; p++)
            for (int area = 0; area < 2; area++) {
                size_t bytes = area_bytes(&nodes, p, area);

                assert_memory_equal(nodes.area[p][area], nodes.good[p][area], bytes);
                for (size_t b = 0; b < bytes / BLOCK_BYTES; b++)
                    assert_int_equal(nodes.times[p][area][b],
                                     lost & bit(p) ? 1 : expected[p][area][b]);
                free(expected[p][area]);
            }
        nodes_fini(&nodes);
    }
}

static void
a_long_run_of_bad_blocks_is_cut(void **state)
{
    enum { BLOCKS = 400 };
    struct nodes nodes;
    uint64_t shard_bytes[6];
    struct cairn_bad_block bad[BLOCKS];
    struct cairn_repair_request request = {
        .stripes = &nodes.stripes, .intact = 0x3f, .bad = bad, .bad_count = BLOCKS};

    for (uint32_t p = 0; p < 6; p++)
        shard_bytes[p] = BLOCKS * BLOCK_BYTES;
    nodes_init(&nodes, 4, 2, shard_bytes);
    for (uint32_t b = 0; b < BLOCKS; b++)
        bad[b] = (struct cairn_bad_block){
            .position = 3, .area = CAIRN_AREA_DATA, .block = BLOCKS - 1 - b};
    spoil(&nodes, 0);
    memset(nodes.area[3][0], 0, area_bytes(&nodes, 3, 0));
    run(&nodes, &request);
    check_repaired(&nodes, bit(3), 0);
    nodes_fini(&nodes);
}

static void
data_alone_can_be_rebuilt(void **state)
{
    struct nodes nodes;
    uint64_t shard_bytes[6] = {5000, 9000, 0, 7777, 9000, 1};

    nodes_init(&nodes, 4, 2, shard_bytes);
    for (uint32_t a = 0; a < 6; a++)
        for (uint32_t b = 0; b < 6; b++) {
            uint64_t lost = bit(a) | bit(b);
            /* A bad block of what is not to be rebuilt, on a lost position, asks for nothing. */
            struct cairn_bad_block bad = {.position = a, .area = CAIRN_AREA_PARITY, .block = 1};
            struct cairn_repair_request request = {.stripes = &nodes.stripes,
                                                   .intact = 0x3f & ~lost,
                                                   .rebuild_data = lost,
                                                   .bad = &bad,
                                                   .bad_count = 1};

            spoil(&nodes, lost);
            run(&nodes, &request);
            for (uint32_t p = 0; p < 6; p++) {
                assert_memory_equal(nodes.area[p][0], nodes.good[p][0], area_bytes(&nodes, p, 0));
                if (lost & bit(p)) /* its parity was left alone; mend it for the next round */
                    memcpy(nodes.area[p][1], nodes.good[p][1], area_bytes(&nodes, p, 1));
            }
            check_repaired(&nodes, lost, 0);
        }
    nodes_fini(&nodes);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_loss_of_every_small_group),
        cmocka_unit_test(more_than_parity_is_lost),
        cmocka_unit_test(bad_blocks_are_rebuilt_and_not_read),
        cmocka_unit_test(a_long_run_of_bad_blocks_is_cut),
        cmocka_unit_test(data_alone_can_be_rebuilt),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
