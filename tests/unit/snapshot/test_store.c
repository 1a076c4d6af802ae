/* tests/unit/snapshot/test_store.c - both stores behave the same: the table's contract, and a
 * random history against each other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "snapshot/store.h"
#include "tests/support/cmocka.h"
#include "tests/support/folder.h"
#include "tests/support/quiet_log.h"

static int
setup(void **state)
{
    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    return root_make("store");
}

static struct cairn_store *
open_store(const struct cairn_store_ops *ops, const char *name, bool create)
{
    struct cairn_store *store = NULL;
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    assert_int_equal(ops->open(path, create, &store), CAIRN_OK);
    return store;
}

static cairn_err
append(void *context, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
    char *text = context;

    assert_in_range(strlen(text) + key_bytes + value_bytes + 2, 0, 65535);
    (void)snprintf(text + strlen(text), 65536 - strlen(text), "%.*s=%.*s;", (int)key_bytes,
                   (const char *)key, (int)value_bytes, (const char *)value);
    return CAIRN_OK;
}

static cairn_err
stop(void *context, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
    (void)key, (void)key_bytes, (void)value, (void)value_bytes;
    ++*(int *)context;
    return CAIRN_LOST;
}

static void
contract(const struct cairn_store_ops *ops)
{
    static const uint8_t binary[] = {0, 1, 0, 255};
    struct cairn_store *store = open_store(ops, ops->name, true);
    const struct cairn_store_change changes[] = {
        {CAIRN_TABLE_FACTS, "b", 1, "1", 1},       {CAIRN_TABLE_FACTS, "a", 1, "2", 1},
        {CAIRN_TABLE_FACTS, "ab", 2, "3", 1},      {CAIRN_TABLE_FACTS, "b", 1, NULL, 0},
        {CAIRN_TABLE_FACTS, "none", 4, NULL, 0},   {CAIRN_TABLE_PLANS, binary, 4, binary, 4},
        {CAIRN_TABLE_PLANS, "empty", 5, binary, 0}};
    uint8_t *value = NULL;
    size_t value_bytes = 9;
    char *text = calloc(1, 65536);
    int visits = 0;

    assert_int_equal(ops->write(store, changes, sizeof(changes) / sizeof(changes[0])), CAIRN_OK);
    assert_int_equal(ops->get(store, CAIRN_TABLE_FACTS, "b", 1, &value, &value_bytes),
                     CAIRN_NOT_FOUND);
    assert_null(value);
    assert_int_equal(ops->get(store, CAIRN_TABLE_PLANS, binary, 4, &value, &value_bytes), CAIRN_OK);
    assert_int_equal(value_bytes, 4);
    assert_memory_equal(value, binary, 4);
    free(value);
    assert_int_equal(ops->get(store, CAIRN_TABLE_PLANS, "empty", 5, &value, &value_bytes),
                     CAIRN_OK);
    assert_int_equal(value_bytes, 0);
    assert_non_null(value);
    free(value);
    assert_int_equal(ops->scan(store, CAIRN_TABLE_FACTS, "a", 1, append, text), CAIRN_OK);
    assert_string_equal(text, "a=2;ab=3;");
    assert_int_equal(ops->scan(store, CAIRN_TABLE_FACTS, NULL, 0, stop, &visits), CAIRN_LOST);
    assert_int_equal(visits, 1);
    ops->close(store);
    ops->close(NULL);
    free(text);
}

static void
test_contract(void **state)
{
    contract(&cairn_store_mem);
    contract(&cairn_store_rocksdb);
}

/* The same random writes to both; after each few, and after reopening, both show the same. */
static void
test_same_history(void **state)
{
    const struct cairn_store_ops *const ops[2] = {&cairn_store_mem, &cairn_store_rocksdb};
    struct cairn_store *stores[2];
    char *texts[2] = {malloc(65536), malloc(65536)};
    unsigned random = 4711;

    for (int s = 0; s < 2; s++)
        stores[s] = open_store(ops[s], "history", true);
    for (int round = 0; round < 300; round++) {
        struct cairn_store_change changes[8];
        char keys[8][16], values[8][32];

        for (int i = 0; i < 8; i++) {
            random = random * 1664525u + 1013904223u;
            (void)snprintf(keys[i], sizeof(keys[i]), "k%u", random >> 20 & 63);
            (void)snprintf(values[i], sizeof(values[i]), "v%d.%d", round, i);
            changes[i] = (struct cairn_store_change){
                (enum cairn_table)(1 + (random >> 10) % (CAIRN_TABLE_COUNT - 1)), keys[i],
                strlen(keys[i]), (random >> 28) % 3 ? values[i] : NULL, strlen(values[i])};
        }
        for (int s = 0; s < 2; s++)
            assert_int_equal(ops[s]->write(stores[s], changes, 8), CAIRN_OK);
        if (round % 100 == 99) {
            ops[1]->close(stores[1]);
            stores[1] = open_store(ops[1], "history", false);
        }
        for (int t = 0; round % 10 == 9 && t < CAIRN_TABLE_COUNT; t++) {
            for (int s = 0; s < 2; s++) {
                texts[s][0] = '\0';
                assert_int_equal(
                    ops[s]->scan(stores[s], (enum cairn_table)t, "k", 1, append, texts[s]),
                    CAIRN_OK);
            }
            assert_string_equal(texts[0], texts[1]);
        }
    }
    for (int s = 0; s < 2; s++) {
        ops[s]->close(stores[s]);
        free(texts[s]);
    }
}

static void
test_open_without_create(void **state)
{
    struct cairn_store *store = NULL;
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/missing", root);
    assert_int_equal(cairn_store_rocksdb.open(path, false, &store), CAIRN_CORRUPT);
    (void)snprintf(path, sizeof(path), "%s/no/such/parent", root);
    assert_int_not_equal(cairn_store_rocksdb.open(path, true, &store), CAIRN_OK);
    assert_null(store);
    for (int t = 0; t < CAIRN_TABLE_COUNT; t++)
        assert_string_not_equal(cairn_table_name((enum cairn_table)t), "?");
    assert_string_equal(cairn_table_name(CAIRN_TABLE_COUNT), "?");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contract),
        cmocka_unit_test(test_same_history),
        cmocka_unit_test(test_open_without_create),
    };

    return cmocka_run_group_tests(tests, setup, root_remove);
}
