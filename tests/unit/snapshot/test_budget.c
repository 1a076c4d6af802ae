/* tests/unit/snapshot/test_budget.c - the sum, its text, and what counts as free. */
#include "snapshot/budget.h"
#include "tests/support/cmocka.h"
#include "tests/support/folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB (UINT64_C(1) << 30)

static void
test_sum(void **state)
{
    struct cairn_budget_demand demand = {6 * GIB, 2, 4, 2, GIB / 16};
    struct cairn_budget_free memory = {40 * GIB, UINT64_MAX};
    struct cairn_budget budget;
    char text[256];

    assert_int_equal(cairn_budget_check(&demand, &memory, GIB, &budget), CAIRN_OK);
    assert_int_equal(budget.state_bytes, 12 * GIB);
    assert_int_equal(budget.parity_bytes, 6 * GIB);
    assert_int_equal(budget.need_bytes, 18 * GIB + GIB / 16);
    assert_int_equal(budget.free_bytes, 40 * GIB);
    cairn_budget_text(&demand, &memory, &budget, text, sizeof text);
    assert_string_equal(text,
                        "2 x 6.00 GiB state + 2 x 3.00 GiB parity (4+2) + 64.00 MiB buffers = "
                        "18.06 GiB needed; 40.00 GiB free (MemAvailable), 1.00 GiB "
                        "reserved for the job: enough");
    memory.cgroup_bytes = 15 * GIB + GIB * 2 / 5;
    assert_int_equal(cairn_budget_check(&demand, &memory, GIB, &budget), CAIRN_NOMEM);
    cairn_budget_text(&demand, &memory, &budget, text, sizeof text);
    assert_non_null(strstr(text, "15.40 GiB free (memory cgroup)"));
    assert_non_null(strstr(text, "3.66 GiB short"));
}

static void
test_exact_edge(void **state)
{
    struct cairn_budget_demand demand = {65536, 2, 1, 1, 0};
    struct cairn_budget_free memory = {4 * 65536 + 10, UINT64_MAX};
    struct cairn_budget budget;

    assert_int_equal(cairn_budget_check(&demand, &memory, 10, &budget), CAIRN_OK);
    assert_int_equal(cairn_budget_check(&demand, &memory, 11, &budget), CAIRN_NOMEM);
    demand.state_bytes = 1; /* parity is made of whole blocks */
    assert_int_equal(cairn_budget_check(&demand, &memory, 0, &budget), CAIRN_OK);
    assert_int_equal(budget.parity_bytes, 2 * 65536);
}

static void
test_overflow_and_zero(void **state)
{
    struct cairn_budget_free memory = {UINT64_MAX, UINT64_MAX};
    struct cairn_budget_demand wrong[] = {{UINT64_MAX / 2 + 1, 2, 1, 0, 0},
                                          {UINT64_MAX / 3 + 1, 1, 1, 3, 0},
                                          {UINT64_MAX - 5, 1, 1, 1, 0},
                                          {UINT64_MAX - 5, 1, 1, 0, 10},
                                          {10, 0, 1, 0, 0},
                                          {10, 2, 0, 1, 0}};
    struct cairn_budget budget;

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(cairn_budget_check(&wrong[i], &memory, 0, &budget), CAIRN_INVAL);
}

static void
test_short_text_is_ended(void **state)
{
    struct cairn_budget_demand demand = {GIB, 2, 4, 2, 1};
    struct cairn_budget_free memory = {GIB, GIB};
    struct cairn_budget budget;
    char text[10];

    assert_int_equal(cairn_budget_check(&demand, &memory, 0, &budget), CAIRN_NOMEM);
    cairn_budget_text(&demand, &memory, &budget, text, sizeof text);
    assert_int_equal(strlen(text), 9);
}

static void
put(const char *directory, const char *name, const char *text)
{
    char path[256];
    FILE *file;

    snprintf(path, sizeof path, "mkdir -p %s/%s", root, directory);
    assert_int_equal(system(path), 0);
    snprintf(path, sizeof path, "%s/%s/%s", root, directory, name);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int
make_root(void **state)
{
    return root_make("budget");
}

static struct cairn_budget_free
read_free(void)
{
    struct cairn_budget_free memory;

    assert_int_equal(cairn_budget_free_read(root, &memory), CAIRN_OK);
    return memory;
}

static void
test_nothing_to_read(void **state)
{
    struct cairn_budget_free memory;

    assert_int_equal(cairn_budget_free_read(root, &memory), CAIRN_IO);
}

static void
test_meminfo(void **state)
{
    put("proc", "meminfo", "MemTotal: 999 kB\nMemFree: 1 kB\nMemAvailable:    2048 kB\n");
    assert_int_equal(read_free().available_bytes, 2048 * 1024);
    assert_true(read_free().cgroup_bytes == UINT64_MAX);
}

/* The tightest level counts, cache that can be dropped does not, "max" sets no limit. */
static void
test_cgroup_2(void **state)
{
    put("proc/self", "cgroup", "0::/job/rank0\n");
    put("sys/fs/cgroup/job/rank0", "memory.max", "max\n");
    put("sys/fs/cgroup/job/rank0", "memory.current", "5\n");
    assert_true(read_free().cgroup_bytes == UINT64_MAX);
    put("sys/fs/cgroup/job", "memory.max", "10000\n");
    put("sys/fs/cgroup/job", "memory.current", "4000\n");
    assert_int_equal(read_free().cgroup_bytes, 6000);
    put("sys/fs/cgroup/job", "memory.stat", "anon 1\nactive_file 7\ninactive_file 500\n");
    assert_int_equal(read_free().cgroup_bytes, 6500);
    put("sys/fs/cgroup/job/rank0", "memory.max", "100\n");
    assert_int_equal(read_free().cgroup_bytes, 95);
    put("sys/fs/cgroup/job/rank0", "memory.current", "200\n");
    assert_int_equal(read_free().cgroup_bytes, 0);
}

static void
test_cgroup_1(void **state)
{
    put("proc/self", "cgroup", "9:cpu,memoryless:/x\n4:cpu,memory:/not/mounted/here\n0::/\n");
    put("sys/fs/cgroup/memory", "memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory", "memory.usage_in_bytes", "300\n");
    assert_true(read_free().cgroup_bytes == UINT64_MAX);
    put("sys/fs/cgroup/memory", "memory.limit_in_bytes", "1000\n"); /* the container's own */
    assert_int_equal(read_free().cgroup_bytes, 700);
    put("sys/fs/cgroup/memory", "memory.stat", "inactive_file 1\ntotal_inactive_file 20\n");
    assert_int_equal(read_free().cgroup_bytes, 720);
}

static void
test_nonsense(void **state)
{
    put("proc/self", "cgroup", "\n::\nmemory\n0:\n0::\n5:memory\n7:memory:/../..//\n");
    put("proc", "meminfo", "MemAvailable: many kB\n");
    assert_true(read_free().available_bytes == UINT64_MAX);
}

static void
test_this_machine(void **state)
{
    struct cairn_budget_free memory;

    assert_int_equal(cairn_budget_free_read("/", &memory), CAIRN_OK);
    assert_true(memory.available_bytes > 1 << 20);
    assert_true(memory.available_bytes != UINT64_MAX);
}

int
main(void)
{
#define WITH_ROOT(test) cmocka_unit_test_setup_teardown(test, make_root, root_remove)
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sum),
                                       cmocka_unit_test(test_exact_edge),
                                       cmocka_unit_test(test_overflow_and_zero),
                                       cmocka_unit_test(test_short_text_is_ended),
                                       WITH_ROOT(test_nothing_to_read),
                                       WITH_ROOT(test_meminfo),
                                       WITH_ROOT(test_cgroup_2),
                                       WITH_ROOT(test_cgroup_1),
                                       WITH_ROOT(test_nonsense),
                                       cmocka_unit_test(test_this_machine)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
