/*
 * tests/unit/client/test_abi.c - callers and libraries of different versions.
 *
 * Two libraries, today's and one whose structs have more fields at their end, serve two callers,
 * one compiled with each one's headers (tests/support/abi). All four pairs protect and restore
 * through the stand-in agent. Each rule of cairn/client.h on structs that grow is then broken.
 */
#include "tests/support/abi/caller.h"
#include "tests/support/cmocka.h"
#include "tests/support/fake_agent.h"

#include "cairn/client.h"

#include <dlfcn.h>

enum { LIBRARIES = 2, MARKS = CALLER_TENSORS * CALLER_ELEMENTS };

static const struct {
    const char *path; /* below the build folder */
    bool is_larger;
} libraries[LIBRARIES] = {{"/libcairn.so", false}, {"/larger/libcairn.so", true}};

static const struct caller *const callers[] = {&caller_today, &caller_newer};

static const char *const struct_names[CALLER_STRUCTS] = {
    [CALLER_OPTIONS] = "struct cairn_client_options: ",
    [CALLER_SLICES] = "struct cairn_slice index=1: ",
    [CALLER_UNCOVERED] = "struct cairn_uncovered index=0: ",
    [CALLER_RESTORED] = "struct cairn_restored: ",
    [CALLER_STATS] = "struct cairn_client_stats: "};

static void *
load(size_t index)
{
    char path[4096];
    ssize_t len = readlink("/proc/self/exe", path, sizeof path - 64);
    void *library;

    assert_true(len > 0);
    path[len] = '\0';
    for (int i = 0; i < 4; i++)
        *strrchr(path, '/') = '\0';
    strcat(path, libraries[index].path);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail_msg("%s", dlerror());
    return library;
}

/* Offers what rank 0 has captured as a generation of one container. */
static void
store(struct fake_agent *agent, const struct caller *caller)
{
    struct cairn_slice slices[CALLER_TENSORS];
    struct cairn_manifest_entry entries[CALLER_TENSORS];
    struct cairn_manifest manifest = {.job_id = 5,
                                      .generation = {1, CALLER_STEP},
                                      .container_count = 1,
                                      .rank_count = 1,
                                      .entry_count = CALLER_TENSORS};
    struct cairn_manifest_rank owner = {.world = 1};
    uint8_t *packed;
    size_t packed_bytes;

    for (size_t i = 0; i < CALLER_TENSORS; i++)
        slices[i] = (struct cairn_slice){.name = caller->tensor_names[i],
                                         .dtype = CAIRN_F32,
                                         .kind = CAIRN_PARAM,
                                         .dims = 1,
                                         .device = -1,
                                         .shape = {CALLER_ELEMENTS},
                                         .extent = {CALLER_ELEMENTS}};
    assert_int_equal(cairn_capture_plan(slices, CALLER_TENSORS, entries, &owner.region_bytes, NULL),
                     CAIRN_OK);
    manifest.container_bytes = owner.region_bytes;
    manifest.block_count = owner.region_bytes / CAIRN_BLOCK_BYTES;
    manifest.ranks = &owner;
    manifest.entries = entries;
    manifest.block_crcs = agent->crcs[0];
    assert_int_equal(cairn_manifest_pack(&manifest, &packed, &packed_bytes), CAIRN_OK);
    agent->manifests[0] = (struct cairn_session_bytes){packed, packed_bytes};
    agent->containers[0] = agent->slots[agent->last_slot];
    agent->container_bytes[0] = owner.region_bytes;
    agent->container_count = 1;
    agent->generation = manifest.generation;
}

static void
serve(size_t library_index, const struct caller *caller)
{
    struct fake_agent *agent = fake_agent_create(4 * CAIRN_BLOCK_BYTES);
    float *marks = calloc(MARKS, sizeof *marks);
    struct caller_log log = {""};
    void *library = load(library_index);

    assert_non_null(marks);
    for (int i = 0; i < MARKS; i++)
        marks[i] = (float)i;
    fake_agent_start(agent);
    caller->protect(library, agent->path, marks, &log);
    assert_true(fake_reaches(&agent->dones, 1));
    assert_int_equal(agent->last_step, CALLER_STEP);
    assert_true(fake_reaches(&agent->coverages, 1));
    assert_int_equal(agent->coverage.count, 2);
    assert_string_equal(agent->coverage.items[0].name, "moment");
    assert_string_equal(agent->coverage.items[1].reason, "lazy");
    store(agent, caller);
    memset(marks, 0xff, MARKS * sizeof *marks);
    caller->restore(library, agent->path, marks, &log);
    for (int i = 0; i < MARKS; i++)
        if (marks[i] != (float)i)
            fail_msg("%s: element %d was not restored", caller->name, i);
    assert_string_equal(log.text, "");
    fake_agent_stop(agent);
    assert_int_equal(agent->damaged, 0);
    free((void *)(uintptr_t)agent->manifests[0].bytes);
    fake_agent_destroy(agent);
    free(marks);
}

static void
test_every_pair_protects_and_restores(void **state)
{
    assert_true(caller_newer.slice_bytes > caller_today.slice_bytes);
    for (size_t l = 0; l < LIBRARIES; l++)
        for (size_t c = 0; c < 2; c++)
            serve(l, callers[c]);
}

/* What a call returns without a fault: nothing is stored. */
static int
usual_err(enum caller_struct which)
{
    return which == CALLER_RESTORED ? CAIRN_NOT_FOUND : CAIRN_OK;
}

static void
break_rules(size_t library_index, const struct caller *caller, struct fake_agent *agent,
            enum caller_fault fault, const char *said)
{
    void *library = load(library_index);

    for (enum caller_struct which = 0; which < CALLER_STRUCTS; which++) {
        struct caller_log log = {""};
        bool possible = true;
        int err = caller->err_of(library, agent->path, which, fault, &log, &possible);

        if (!possible || !said) {
            assert_int_equal(err, usual_err(which));
            assert_string_equal(log.text, "");
        } else if (err != CAIRN_INVAL || !strstr(log.text, struct_names[which]) ||
                   !strstr(log.text, said) || !strstr(log.text, "_INIT")) {
            fail_msg("%s, library %zu, fault %d: %s%s: \"%s\"", caller->name, library_index, fault,
                     struct_names[which], cairn_err_name((cairn_err)err), log.text);
        }
    }
}

static void
test_broken_rules(void **state)
{
    static const char *const said[CALLER_FAULTS] = {
        [CALLER_SIZE_ZERO] = "struct_bytes is",        [CALLER_SIZE_SMALL] = "struct_bytes is",
        [CALLER_SIZE_ODD] = "struct_bytes is",         [CALLER_SIZE_HUGE] = "struct_bytes is",
        [CALLER_SIZE_OTHER] = "not that of element 0", [CALLER_RESERVED] = "reserved must be 0",
        [CALLER_TAIL] = "does not know the field"};
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);

    agent->restore_err = CAIRN_NOT_FOUND;
    fake_agent_start(agent);
    for (size_t l = 0; l < LIBRARIES; l++)
        for (size_t c = 0; c < 2; c++)
            for (enum caller_fault fault = 0; fault < CALLER_FAULTS; fault++) {
                bool known = fault == CALLER_TAIL && libraries[l].is_larger;

                break_rules(l, callers[c], agent, fault, known ? NULL : said[fault]);
            }
    fake_agent_stop(agent);
    assert_int_equal(agent->damaged, 0);
    fake_agent_destroy(agent);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pair_protects_and_restores),
        cmocka_unit_test(test_broken_rules),
    };

    unsetenv("CAIRN_AGENT");
    unsetenv("CAIRN_JOB");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
