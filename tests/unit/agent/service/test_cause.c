/*
 * tests/unit/agent/service/test_cause.c - what two readings of a node say: each cause by itself
 * with its numbers, and nothing on a healthy node.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/service/cause.h"
#include "tests/support/cmocka.h"

static struct health_reading before, now;

static void
start(void)
{
    memset(&before, 0, sizeof before);
    before.gpu_count = before.link_count = before.nic_count = 1;
    before.gpus[0] = (struct reading_gpu){.clock_mhz = 1950,
                                          .clock_max_mhz = 1980,
                                          .pcie_gen = 5,
                                          .pcie_gen_max = 5,
                                          .pcie_width = 16,
                                          .pcie_width_max = 16,
                                          .ecc_corrected = 7};
    before.links[0] = (struct reading_link){
        .name = "0000:3b:00.0", .speed_mts = 16000, .speed_max_mts = 32000, .width = 16};
    before.nics[0] = (struct reading_nic){
        .name = "eth0", .speed_mbps = 100000, .is_up = true, .errors = 3, .outages = 1};
    before.rank_count = 1;
    before.ranks[0] = (struct reading_rank){
        .rank = 5, .workers = 4, .used_percent = 80, .worked_percent = 120, .samples = 10};
    now = before;
}

/* The only cause, or a failure. */
static struct cause
only(void)
{
    struct cause causes[CAUSES_MAX];

    assert_int_equal(cause_find(&before, &now, causes), 1);
    assert_true(strlen(causes[0].what) > 10);
    start();
    return causes[0];
}

static void
expect(enum cause_kind kind, uint64_t value, uint64_t normal)
{
    struct cause cause = only();

    assert_string_equal(cause_text(cause.kind), cause_text(kind));
    assert_int_equal(cause.value, value);
    assert_int_equal(cause.normal, normal);
}

static void
test_a_healthy_node_has_none(void **state)
{
    struct cause causes[CAUSES_MAX];

    start();
    assert_int_equal(cause_find(&before, &now, causes), 0);
    now.gpus[0].clock_reasons = READING_CLOCKS_POWER_CAP; /* a little below, as all are */
    now.gpus[0].pcie_replays = 5;
    now.links[0].errors_corrected = 5;
    now.ranks[0].disk_samples = 1;
    assert_int_equal(cause_find(&before, &now, causes), 0);
    start();
    now.gpus[0].clock_reasons = READING_CLOCKS_IDLE; /* whose link saves power */
    now.gpus[0].pcie_gen = 1;
    assert_int_equal(cause_find(&before, &now, causes), 0);
    start();
    strcpy(now.nics[0].name, "eth9"); /* another one */
    now.nics[0].errors = 1000;
    assert_int_equal(cause_find(&before, &now, causes), 0);
}

static void
test_each_cause(void **state)
{
    start();
    now.gpus[0].clock_reasons = READING_CLOCKS_HW_THERMAL;
    now.gpus[0].clock_mhz = 1900;
    expect(CAUSE_CLOCKS_THROTTLED, 1900, 1980);
    now.gpus[0].clock_reasons = READING_CLOCKS_POWER_CAP;
    now.gpus[0].clock_mhz = 1700;
    expect(CAUSE_CLOCKS_THROTTLED, 1700, 1980);
    now.gpus[0].xid_count = 1;
    now.gpus[0].xid = 48;
    expect(CAUSE_XID_ERROR, 48, 0);
    now.gpus[0].ecc_uncorrected = 2;
    expect(CAUSE_ECC_ERROR, 2, 0);
    now.gpus[0].ecc_corrected = 507;
    expect(CAUSE_ECC_ERROR, 500, 0);
    now.gpus[0].pcie_width = 4;
    expect(CAUSE_PCIE_SLOW, 4, 16);
    now.gpus[0].pcie_replays = 1000;
    expect(CAUSE_PCIE_ERRORS, 1000, 0);
    now.links[0].speed_mts = 8000;
    expect(CAUSE_PCIE_SLOW, 8000, 16000);
    now.links[0].errors_nonfatal = 1;
    expect(CAUSE_PCIE_ERRORS, 1, 0);
    now.nics[0].is_up = false;
    expect(CAUSE_NIC_DOWN, 0, 100000);
    now.nics[0].outages = 3;
    expect(CAUSE_NIC_DOWN, 2, 0);
    now.nics[0].speed_mbps = 25000;
    expect(CAUSE_NIC_SLOW, 25000, 100000);
    now.nics[0].errors = 10;
    expect(CAUSE_NIC_ERRORS, 7, 0);
    now.memory_uncorrected = 1;
    expect(CAUSE_MEMORY_ERRORS, 1, 0);
    now.cpu_throttles = 9;
    expect(CAUSE_CPU_THROTTLED, 9, 0);
}

static void
test_ranks_that_wait(void **state)
{
    struct cause cause;

    start();
    now.ranks[0].disk_samples = 8;
    cause = only();
    assert_int_equal(cause.kind, CAUSE_STORAGE);
    assert_int_equal(cause.rank, 5);
    assert_int_equal(cause.value, 80);
    now.ranks[0].used_percent = 4;
    now.ranks[0].worked_percent = 190;
    cause = only();
    assert_int_equal(cause.kind, CAUSE_DATA_LOADER);
    assert_int_equal(cause.rank, 5);
    assert_int_equal(cause.value, 190);
    assert_int_equal(cause.normal, 4);
}

/* More than fit: the strongest are kept. */
static void
test_many(void **state)
{
    struct cause causes[CAUSES_MAX];

    start();
    now.gpu_count = READING_GPUS_MAX;
    for (uint32_t i = 0; i < READING_GPUS_MAX; i++)
        now.gpus[i].xid_count = 1;
    assert_int_equal(cause_find(&before, &now, causes), CAUSES_MAX);
}

/* A real reading, of this process and of a machine without anything. */
static void
test_a_reading(void **state)
{
    static struct health_reading reading;

    reading.rank_count = 2;
    reading.ranks[0] = (struct reading_rank){.rank = 1, .pid = getpid()};
    reading.ranks[1] = (struct reading_rank){.rank = 2, .pid = INT32_MAX};
    assert_null(health_gpus_open("libthere-is-none.so"));
    health_read(NULL, "/nowhere", &reading);
    assert_int_equal(reading.gpu_count + reading.link_count + reading.nic_count, 0);
    assert_int_equal(reading.ranks[0].samples, READING_SAMPLES);
    assert_int_equal(reading.ranks[0].rank, 1);
    assert_int_equal(reading.ranks[1].samples, 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_healthy_node_has_none),
        cmocka_unit_test(test_each_cause),
        cmocka_unit_test(test_ranks_that_wait),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_a_reading),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
