/*
 * tests/unit/tools/convert/maps/test_map.c - maps: every element of random models arrives where
 * plain loops say, out of any pieces, and comes back; the language says where it was misused.
 *
 * Checkpoints are in memory. An element's 4 bytes are its tensor's number and its row-major index.
 */
#include "tools/convert/maps/map.h"
#include "tools/convert/maps/language.h"
#include "tools/convert/maps/proof.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "tests/support/cmocka.h"
#include "tests/support/random.h"
enum { SEEDS = 60, ELEMENTS_MAX = 1 << 20, INDEX_BITS = 20 };

static uint64_t seed_now;

/* ---- checkpoints in memory ---- */

static void
start(struct cairn_checkpoint *checkpoint)
{
    struct cairn_complaint complaint = {""};

    *checkpoint = (struct cairn_checkpoint){.place.dir_fd = -1};
    assert_int_equal(cairn_place_open("tests/unit/tools", &checkpoint->place, &complaint), 0);
    assert_int_equal(cairn_layout_create(&checkpoint->layout), 0);
}

/* A container of `bytes` zeros, which the caller fills. */
static uint8_t *
add_memory(struct cairn_checkpoint *checkpoint, uint64_t bytes, uint32_t *container)
{
    assert_true(cairn_array_grow(&checkpoint->containers, checkpoint->container_count,
                                 sizeof(*checkpoint->containers)));
    *container = checkpoint->container_count++;
    checkpoint->containers[*container] =
        (struct cairn_container){.literal = calloc(1, (size_t)bytes + 1), .bytes = bytes};
    assert_non_null(checkpoint->containers[*container].literal);
    return checkpoint->containers[*container].literal;
}

/* A box of a tensor of two dimensions at most, row by row or column by column, elements as said
 * above. */
static void
add_box(struct cairn_checkpoint *checkpoint, uint32_t tensor, uint32_t number,
        const uint64_t *start_at, const uint64_t *extent)
{
    struct cairn_tensor known = *cairn_layout_tensor(checkpoint->layout, tensor);
    uint64_t stride[CAIRN_DIMS_MAX] = {0}, elements = 1, at[CAIRN_DIMS_MAX] = {0};
    bool turned = lcg_below(&seed_now, 2);
    uint32_t container;
    uint8_t *bytes;

    for (uint32_t i = 0; i < known.dims; i++) {
        uint32_t d = turned ? i : known.dims - 1 - i;

        stride[d] = 4 * elements;
        elements *= extent[d];
    }
    bytes = add_memory(checkpoint, 4 * elements, &container);
    for (uint64_t e = 0; e < elements; e++) {
        uint64_t index = 0, offset = 0;
        uint32_t value;

        for (uint32_t d = 0; d < known.dims; d++) {
            index = index * known.shape[d] + start_at[d] + at[d];
            offset += at[d] * stride[d];
        }
        assert_true(index < ELEMENTS_MAX);
        value = number << INDEX_BITS | (uint32_t)index;
        memcpy(bytes + offset, &value, 4);
        for (uint32_t d = known.dims; d-- > 0 && ++at[d] == extent[d];)
            at[d] = 0;
    }
    assert_int_equal(
        cairn_checkpoint_add_box(checkpoint, tensor, container, start_at, extent, 0, stride), 0);
}

/* A tensor in random boxes: cut at one place of one dimension, each part again. */
static void
add_tensor(struct cairn_checkpoint *checkpoint, const char *name, uint32_t number, uint32_t dims,
           const uint64_t *shape)
{
    uint64_t start_at[CAIRN_DIMS_MAX] = {0}, extent[CAIRN_DIMS_MAX] = {0};
    uint32_t tensor;

    assert_int_equal(
        cairn_checkpoint_add_tensor(checkpoint, name, CAIRN_F32, CAIRN_PARAM, dims, shape, &tensor),
        0);
    memcpy(extent, shape, dims * sizeof(*shape));
    for (uint32_t cuts = (uint32_t)lcg_below(&seed_now, 3); cuts > 0 && dims > 0; cuts--) {
        uint32_t d = (uint32_t)lcg_below(&seed_now, dims);
        uint64_t cut, rest = extent[d];

        if (rest < 2)
            continue;
        cut = 1 + lcg_below(&seed_now, rest - 1);
        extent[d] = cut;
        add_box(checkpoint, tensor, number, start_at, extent);
        start_at[d] += cut;
        extent[d] = rest - cut;
    }
    add_box(checkpoint, tensor, number, start_at, extent);
}

static void
add(struct cairn_checkpoint *checkpoint, uint32_t number, uint32_t dims, uint64_t rows,
    uint64_t columns, uint64_t third, const char *format, int layer, int expert)
{
    const uint64_t shape[3] = {rows, columns, third};
    char name[CAIRN_NAME_BYTES_MAX], with_layer[CAIRN_NAME_BYTES_MAX];
    const char *hash = strchr(format, '#'), *at = strchr(format, '@');

    (void)snprintf(with_layer, sizeof(with_layer), "%.*s", (int)(hash ? hash - format : 250),
                   format);
    if (hash)
        (void)snprintf(with_layer + strlen(with_layer), 200, "%d%s", layer, hash + 1);
    (void)snprintf(name, sizeof(name), "%s", with_layer);
    at = strchr(with_layer, '@');
    if (at)
        (void)snprintf(name + (at - with_layer), 200, "%d%s", expert, at + 1);
    add_tensor(checkpoint, name, number, dims, shape);
}

/* The element of a tensor at an index, found by looking through all pieces. */
static uint32_t
element(const struct cairn_checkpoint *checkpoint, const char *name, uint64_t index)
{
    uint32_t tensor = cairn_layout_tensor_find(checkpoint->layout, name), value = 0, found = 0;
    const struct cairn_tensor *known;
    uint64_t at[CAIRN_DIMS_MAX];

    if (tensor == UINT32_MAX)
        fail_msg("there is no %s", name);
    known = cairn_layout_tensor(checkpoint->layout, tensor);
    for (uint32_t d = known->dims; d-- > 0; index /= known->shape[d])
        at[d] = index % known->shape[d];
    for (size_t i = 0; i < cairn_layout_piece_count(checkpoint->layout); i++) {
        const struct cairn_piece *piece = cairn_layout_piece(checkpoint->layout, i);
        uint64_t offset = piece->offset_bytes;
        bool inside = piece->tensor == tensor;

        for (uint32_t d = 0; inside && d < known->dims; d++) {
            inside = at[d] >= piece->start[d] && at[d] - piece->start[d] < piece->extent[d];
            offset += (at[d] - piece->start[d]) * piece->stride_bytes[d];
        }
        if (!inside)
            continue;
        assert_true(offset + 4 <= checkpoint->containers[piece->container].bytes);
        memcpy(&value, checkpoint->containers[piece->container].literal + offset, 4);
        found++;
    }
    assert_int_equal(found, 1);
    return value;
}

static uint32_t
marker(uint32_t number, uint64_t index)
{
    return number << INDEX_BITS | (uint32_t)index;
}

static void
map_by(struct cairn_checkpoint *checkpoint, const char *map, const char *set)
{
    struct cairn_complaint complaint = {""};
    struct cairn_map_report report;
    const char *sets[8];
    char words[200], *rest = NULL;
    size_t count = 0;

    (void)snprintf(words, sizeof(words), "%s", set);
    for (char *word = strtok_r(words, ",", &rest); word; word = strtok_r(NULL, ",", &rest))
        sets[count++] = word;
    checkpoint->complaint = &complaint;
    if (cairn_checkpoint_map(checkpoint, map, sets, count, &report) != CAIRN_OK)
        fail_msg("%s, %s: %s", map, set, complaint.text);
    checkpoint->complaint = NULL;
}

static void
assert_whole(const struct cairn_checkpoint *checkpoint)
{
    char report[512] = "";

    if (cairn_layout_check_tiling(checkpoint->layout, true, report, sizeof(report)) != CAIRN_OK)
        fail_msg("seed %" PRIu64 ": %s", seed_now, report);
}

/* ---- a model with experts ---- */

enum { Q = 1, K, V, GATE, UP, DOWN, GATES_UPS, EMBED, NORM };

struct sizes {
    uint64_t groups, each, head_dim, hidden, ffn, experts, vocab;
};

static struct sizes
random_sizes(void)
{
    return (struct sizes){1 + lcg_below(&seed_now, 4),       1 + lcg_below(&seed_now, 4),
                          2 * (1 + lcg_below(&seed_now, 4)), 1 + lcg_below(&seed_now, 9),
                          1 + lcg_below(&seed_now, 9),       1 + lcg_below(&seed_now, 5),
                          3 + lcg_below(&seed_now, 20)};
}

static void
add_model(struct cairn_checkpoint *checkpoint, const struct sizes *s, bool stacked)
{
    const uint64_t kv = s->groups * s->head_dim;

    start(checkpoint);
    add(checkpoint, EMBED, 2, s->vocab, s->hidden, 0, "model.embed_tokens.weight", 0, 0);
    add(checkpoint, NORM, 1, s->hidden, 0, 0, "model.layers.#.input_layernorm.weight", 3, 0);
    add(checkpoint, Q, 2, kv * s->each, s->hidden, 0, "model.layers.#.self_attn.q_proj.weight", 3,
        0);
    add(checkpoint, K, 2, kv, s->hidden, 0, "model.layers.#.self_attn.k_proj.weight", 3, 0);
    add(checkpoint, V, 2, kv, s->hidden, 0, "model.layers.#.self_attn.v_proj.weight", 3, 0);
    if (stacked) {
        add(checkpoint, GATES_UPS, 3, s->experts, 2 * s->ffn, s->hidden,
            "model.layers.#.mlp.experts.gate_up_proj", 3, 0);
        add(checkpoint, DOWN, 3, s->experts, s->hidden, s->ffn,
            "model.layers.#.mlp.experts.down_proj", 3, 0);
        return;
    }
    for (int e = 0; e < (int)s->experts; e++) {
        add(checkpoint, GATE + 16 * (uint32_t)e, 2, s->ffn, s->hidden, 0,
            "model.layers.#.mlp.experts.@.gate_proj.weight", 3, e);
        add(checkpoint, UP + 16 * (uint32_t)e, 2, s->ffn, s->hidden, 0,
            "model.layers.#.mlp.experts.@.up_proj.weight", 3, e);
        add(checkpoint, DOWN + 16 * (uint32_t)e, 2, s->hidden, s->ffn, 0,
            "model.layers.#.mlp.experts.@.down_proj.weight", 3, e);
    }
}

/* Where an element of the fused projections comes from, by hand. */
static uint32_t
expected_qkv(const struct sizes *s, uint64_t row, uint64_t column)
{
    uint64_t block = (s->each + 2) * s->head_dim, group = row / block, inside = row % block;

    if (inside < s->each * s->head_dim)
        return marker(Q, (group * s->each * s->head_dim + inside) * s->hidden + column);
    inside -= s->each * s->head_dim;
    return inside < s->head_dim
               ? marker(K, (group * s->head_dim + inside) * s->hidden + column)
               : marker(V, (group * s->head_dim + inside - s->head_dim) * s->hidden + column);
}

static uint32_t
expected_fc1(const struct sizes *s, uint32_t expert, uint64_t row, uint64_t column, bool stacked)
{
    if (stacked)
        return marker(GATES_UPS, (expert * 2 * s->ffn + row) * s->hidden + column);
    return row < s->ffn ? marker(GATE + 16 * expert, row * s->hidden + column)
                        : marker(UP + 16 * expert, (row - s->ffn) * s->hidden + column);
}

static void
check_megatron(const struct cairn_checkpoint *checkpoint, const struct sizes *s, bool stacked,
               bool grouped)
{
    char name[CAIRN_NAME_BYTES_MAX];

    assert_whole(checkpoint);
    for (uint64_t row = 0; row < s->groups * (s->each + 2) * s->head_dim; row++)
        for (uint64_t column = 0; column < s->hidden; column++)
            assert_int_equal(element(checkpoint,
                                     "decoder.layers.3.self_attention.linear_qkv.weight",
                                     row * s->hidden + column),
                             expected_qkv(s, row, column));
    for (uint32_t e = 0; e < s->experts; e++) {
        (void)snprintf(name, sizeof(name), "decoder.layers.3.mlp.experts.%s%" PRIu32 "%s",
                       grouped ? "linear_fc1.weight" : "local_experts.", e,
                       grouped ? "" : ".linear_fc1.weight");
        for (uint64_t row = 0; row < 2 * s->ffn; row++)
            for (uint64_t column = 0; column < s->hidden; column++)
                assert_int_equal(element(checkpoint, name, row * s->hidden + column),
                                 expected_fc1(s, e, row, column, stacked));
    }
}

/* Two checkpoints have the same tensors with the same elements. */
static void
assert_same(const struct cairn_checkpoint *a, const struct cairn_checkpoint *b)
{
    assert_int_equal(cairn_layout_tensor_count(a->layout), cairn_layout_tensor_count(b->layout));
    for (uint32_t t = 0; t < cairn_layout_tensor_count(a->layout); t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(a->layout, t);
        uint64_t elements = 1;

        for (uint32_t d = 0; d < tensor->dims; d++)
            elements *= tensor->shape[d];
        for (uint64_t i = 0; i < elements; i++)
            if (element(a, tensor->name, i) != element(b, tensor->name, i))
                fail_msg("%s[%" PRIu64 "] differs", tensor->name, i);
    }
}

static void
experts_and_groups(void **state)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        bool stacked = seed % 2, grouped = seed / 2 % 2;
        struct cairn_checkpoint checkpoint, before;
        struct sizes s;
        char set[200];

        seed_now = seed;
        s = random_sizes();
        add_model(&checkpoint, &s, stacked);
        seed_now = seed;
        s = random_sizes();
        add_model(&before, &s, stacked);
        (void)snprintf(set, sizeof(set),
                       "heads=%" PRIu64 ",groups=%" PRIu64 ",expert_modules=%s,experts=%s",
                       s.groups * s.each, s.groups, grouped ? "grouped" : "local",
                       stacked ? "stacked" : "single");
        map_by(&checkpoint, "qwen3-moe", set);
        check_megatron(&checkpoint, &s, stacked, grouped);
        map_by(&checkpoint, "qwen3-moe", set);
        assert_whole(&checkpoint);
        assert_same(&before, &checkpoint);
        cairn_checkpoint_close(&before);
        cairn_checkpoint_close(&checkpoint);
    }
}

static void
transposed(void **state)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct cairn_checkpoint checkpoint;
        uint64_t heads, d, hidden;
        char set[40];

        seed_now = seed;
        heads = 1 + lcg_below(&seed_now, 5);
        d = 1 + lcg_below(&seed_now, 5);
        hidden = 1 + lcg_below(&seed_now, 7);
        start(&checkpoint);
        /* Without the prefix, as GPT-2's own files have it. */
        add(&checkpoint, Q, 2, hidden, 3 * heads * d, 0, "h.#.attn.c_attn.weight", 0, 0);
        (void)snprintf(set, sizeof(set), "heads=%" PRIu64, heads);
        map_by(&checkpoint, "gpt2", set);
        assert_whole(&checkpoint);
        for (uint64_t row = 0; row < 3 * heads * d; row++)
            for (uint64_t column = 0; column < hidden; column++) {
                uint64_t head = row / (3 * d), which = row / d % 3;

                assert_int_equal(
                    element(&checkpoint, "decoder.layers.0.self_attention.linear_qkv.weight",
                            row * hidden + column),
                    marker(Q, column * 3 * heads * d + which * heads * d + head * d + row % d));
            }
        map_by(&checkpoint, "gpt2", set);
        for (uint64_t i = 0; i < hidden * 3 * heads * d; i++)
            assert_int_equal(element(&checkpoint, "transformer.h.0.attn.c_attn.weight", i),
                             marker(Q, i));
        cairn_checkpoint_close(&checkpoint);
    }
}

static void
padding(void **state)
{
    struct cairn_checkpoint checkpoint;

    for (uint64_t seed = 1; seed <= 10; seed++) {
        seed_now = seed;
        start(&checkpoint);
        add(&checkpoint, EMBED, 2, 11, 3, 0, "model.embed_tokens.weight", 0, 0);
        map_by(&checkpoint, "llama", "padded_vocab=16");
        assert_whole(&checkpoint);
        for (uint64_t i = 0; i < 16 * 3; i++)
            assert_int_equal(element(&checkpoint, "embedding.word_embeddings.weight", i),
                             i < 11 * 3 ? marker(EMBED, i) : 0);
        map_by(&checkpoint, "llama", "vocab=11");
        assert_int_equal(checkpoint.warning_count, 1);
        for (uint64_t i = 0; i < 11 * 3; i++)
            assert_int_equal(element(&checkpoint, "model.embed_tokens.weight", i),
                             marker(EMBED, i));
        cairn_checkpoint_close(&checkpoint);
    }
}

static void
aliases_stay(void **state)
{
    struct cairn_checkpoint checkpoint;

    start(&checkpoint);
    add(&checkpoint, EMBED, 2, 11, 3, 0, "model.embed_tokens.weight", 0, 0);
    assert_int_equal(cairn_checkpoint_add_alias(&checkpoint, "lm_head.weight", 0), 0);
    map_by(&checkpoint, "llama", "");
    assert_int_equal(checkpoint.alias_count, 1);
    assert_string_equal(cairn_layout_tensor(checkpoint.layout, checkpoint.aliases[0].tensor)->name,
                        "output_layer.weight");
    assert_string_equal(cairn_layout_tensor(checkpoint.layout, checkpoint.aliases[0].of)->name,
                        "embedding.word_embeddings.weight");
    cairn_checkpoint_close(&checkpoint);
}

/* ---- refusals ---- */

static void
refused(struct cairn_checkpoint *checkpoint, cairn_err expected, const char *word)
{
    struct cairn_complaint complaint = {""};
    struct cairn_map_report report;
    const char *sets[] = {"heads=4", "groups=2", "padded_vocab=8"};

    checkpoint->complaint = &complaint;
    assert_int_equal(cairn_checkpoint_map(checkpoint, "llama", sets, 3, &report), expected);
    if (!strstr(complaint.text, word))
        fail_msg("\"%s\" is not in \"%s\"", word, complaint.text);
    checkpoint->complaint = NULL;
    cairn_checkpoint_close(checkpoint);
}

static void
misfits(void **state)
{
    struct cairn_checkpoint checkpoint;

    start(&checkpoint);
    add(&checkpoint, Q, 2, 16, 3, 0, "model.layers.#.self_attn.q_proj.weight", 0, 0);
    add(&checkpoint, K, 2, 8, 3, 0, "model.layers.#.self_attn.k_proj.weight", 0, 0);
    refused(&checkpoint, CAIRN_CORRUPT, "model.layers.0.self_attn.v_proj.weight");
    start(&checkpoint);
    add(&checkpoint, Q, 2, 16, 3, 0, "model.layers.#.self_attn.q_proj.weight", 0, 0);
    add(&checkpoint, K, 2, 8, 3, 0, "model.layers.#.self_attn.k_proj.weight", 0, 0);
    add(&checkpoint, V, 2, 8, 4, 0, "model.layers.#.self_attn.v_proj.weight", 0, 0);
    refused(&checkpoint, CAIRN_INVAL, "v_proj.weight: has the shape [8, 4]");
    start(&checkpoint);
    /* head_dim is 4 */
    add(&checkpoint, Q, 2, 16, 3, 0, "model.layers.#.self_attn.q_proj.weight", 0, 0);
    add(&checkpoint, K, 2, 8, 3, 0, "model.layers.#.self_attn.k_proj.weight", 0, 0);
    add(&checkpoint, V, 2, 8, 3, 0, "model.layers.#.self_attn.v_proj.weight", 0, 0);
    /* and here 5 */
    add(&checkpoint, GATE, 2, 3, 20, 0, "model.layers.#.self_attn.o_proj.weight", 0, 0);
    refused(&checkpoint, CAIRN_INVAL, "o_proj.weight: has the shape [3, 20]");
    start(&checkpoint);
    add(&checkpoint, GATE, 1, 16, 0, 0, "model.layers.#.mlp.gate_proj.weight", 0, 0);
    add(&checkpoint, UP, 1, 16, 0, 0, "model.layers.#.mlp.up_proj.weight", 0, 0);
    refused(&checkpoint, CAIRN_INVAL, "1 dimensions, and 2 by the map");
    start(&checkpoint);
    add(&checkpoint, NORM, 1, 16, 0, 0, "model.norm.weight", 0, 0);
    add(&checkpoint, UP, 1, 16, 0, 0, "model.layers.#.oddity", 0, 0);
    refused(&checkpoint, CAIRN_INVAL, "model.layers.0.oddity");
    start(&checkpoint);
    add(&checkpoint, EMBED, 2, 11, 3, 0, "model.embed_tokens.weight", 0, 0);
    refused(&checkpoint, CAIRN_INVAL, "needs 11 in dimension 0, and padded_vocab is 8");
}

/* The number of experts is what a file says; a step, which comes to each of them, is not made for a
 * trillion. */
static void
too_many_parts(void **state)
{
    const uint64_t shape[3] = {UINT64_C(1) << 40, 2, 1};
    struct cairn_complaint complaint = {""};
    struct cairn_checkpoint checkpoint;
    struct cairn_map_report report;
    uint32_t tensor, container;

    start(&checkpoint);
    checkpoint.complaint = &complaint;
    (void)add_memory(&checkpoint, 4, &container);
    assert_int_equal(cairn_checkpoint_add_tensor(&checkpoint,
                                                 "step.model.layers.0.mlp.experts.gate_up_proj",
                                                 CAIRN_F32, CAIRN_OPTIMIZER, 0, NULL, &tensor),
                     0);
    assert_int_equal(cairn_checkpoint_add_box(&checkpoint, tensor, container, NULL, NULL, 0, NULL),
                     0);
    assert_int_equal(cairn_checkpoint_add_tensor(&checkpoint,
                                                 "model.layers.0.mlp.experts.gate_up_proj",
                                                 CAIRN_F32, CAIRN_PARAM, 3, shape, &tensor),
                     0);
    assert_int_equal(cairn_checkpoint_map(&checkpoint, "qwen3-moe", NULL, 0, &report), CAIRN_INVAL);
    if (!strstr(complaint.text, "gate_up_proj: would become more than"))
        fail_msg("%s", complaint.text);
    cairn_checkpoint_close(&checkpoint);
}

/* A number is calculated before shapes are looked at; what a shape tells of its operand does not
 * help it. */
static void
advice(void **state)
{
    static const char text[] = "sides a b\nnumber n = k\np [k, n*m] = q [n*m, k]\n";
    struct cairn_complaint complaint = {""};
    struct cairn_checkpoint checkpoint;
    struct cairn_map_report report;
    struct cairn_map *map = NULL;
    const char *sets[] = {"n=4"};

    assert_int_equal(cairn_map_parse("own.map", text, sizeof(text) - 1, &map, &complaint), 0);
    start(&checkpoint);
    add(&checkpoint, Q, 2, 3, 8, 0, "p", 0, 0);
    checkpoint.complaint = &complaint;
    assert_int_equal(cairn_checkpoint_map_by(&checkpoint, map, NULL, 0, &report), CAIRN_INVAL);
    if (!strstr(complaint.text, "--set n=N"))
        fail_msg("%s", complaint.text);
    cairn_checkpoint_close(&checkpoint);
    start(&checkpoint);
    add(&checkpoint, Q, 2, 3, 8, 0, "p", 0, 0);
    assert_int_equal(cairn_checkpoint_map_by(&checkpoint, map, sets, 1, &report), 0);
    assert_whole(&checkpoint);
    cairn_checkpoint_close(&checkpoint);
    cairn_map_destroy(map);
}

/* Of the super-user, who may read everything, nothing is denied. */
static void
a_map_that_may_not_be_read_is_said_to_be(void **state)
{
    char path[] = "/tmp/cairn-map-XXXXXX";
    struct cairn_complaint complaint = {""};
    struct cairn_checkpoint checkpoint;
    struct cairn_map_report report;
    bool super = geteuid() == 0;
    int fd = mkstemp(path);
    cairn_err err;

    assert_true(fd >= 0);
    assert_int_equal(fchmod(fd, 0), 0);
    start(&checkpoint);
    checkpoint.complaint = &complaint;
    if (super)
        assert_int_equal(seteuid(65534), 0);
    err = cairn_checkpoint_map(&checkpoint, path, NULL, 0, &report);
    if (super)
        assert_int_equal(seteuid(0), 0);
    (void)close(fd);
    (void)unlink(path);
    assert_int_equal(err, CAIRN_DENIED);
    if (!strstr(complaint.text, path) || !strstr(complaint.text, "may not read"))
        fail_msg("%s", complaint.text);
    cairn_checkpoint_close(&checkpoint);
}

static void
language_errors(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "has no rule"},
        {"a = b\n", "line 1, column 1: declare the two sides"},
        {"sides a a\na = b\n", "both sides are called a"},
        {" sides a b\nx = y\n", "line 1, column 2: a statement begins in the first column"},
        {"sides a b\n x = y\n", "line 2, column 2: \"x\" is too much for a statement \"sides\""},
        {"sides a b\nx [n = y [n]\n", "line 2, column 6: =, expected \",\""},
        {"sides a b\nx [n] = y [n\n", "the end of the statement, expected \",\""},
        {"sides a b\nx [n] = y [m]\n", "only the left side has the axis n"},
        {"sides a b\nx [n] = y\n", "brackets should follow all names or none"},
        {"sides a b\nx [n, n] = y [n, n]\n", "an axis is there twice"},
        {"sides a b\nx [n] z [m] = y [(n + m + n)]\n", "different numbers of parts"},
        {"sides a b\nx [n] z [m] = y [(n + m)*(n + m)]\n", "more than one sum"},
        {"sides a b\nx.{l}.{l} = y.{l}\n", "duplicate"},
        {"sides a b\nx.{l = y\n", "a { begins a name"},
        {"sides a b\nx.{l}{m} = y.{l}.{m}\n", "the number {l} is ambiguous"},
        {"sides a b\nx.{l} = y\n", "only the left side has the axis l"},
        {"sides a b\nx [0] = y [0]\n", "0 is not a size"},
        {"sides a b\nx = y when c=d\n", "there is no choice \"c\""},
        {"sides a b\nchoice b c = d\nx = y\n", "at least two values"},
        {"sides a b\nchoice b c = d e\nx = y when c=f\n", "f is not a value"},
        {"sides a b\nnumber n from k\nnumber n = 3\nx = y\n",
         "line 3, column 10: duplicate number n"},
        {"sides a b\ninclude nothing\n", "include takes the name of a preset"},
        {"sides a b\ninclude llama\n", "the sides are a and b already"},
        {"sides a b\nx ; y\n", "line 2, column 3: byte 0x3b"},
        {"sides a b\nx = y z\n", "several tensors need their axes"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cairn_complaint complaint = {""};
        struct cairn_map *map = NULL;

        assert_int_equal(
            cairn_map_parse("own.map", cases[i].text, strlen(cases[i].text), &map, &complaint),
            CAIRN_CORRUPT);
        assert_null(map);
        if (!strstr(complaint.text, cases[i].says))
            fail_msg("case %zu says \"%s\"", i, complaint.text);
    }
}

static void
presets_are_maps(void **state)
{
    uint32_t count = 0;

    for (; cairn_map_preset_name(count); count++) {
        struct cairn_complaint complaint = {""};
        struct cairn_map *map = NULL;
        size_t text_bytes = 0;
        const char *text = cairn_map_preset(cairn_map_preset_name(count), &text_bytes);

        if (cairn_map_parse(cairn_map_preset_name(count), text, text_bytes, &map, &complaint) !=
            CAIRN_OK)
            fail_msg("%s", complaint.text);
        assert_string_equal(map->sides[0], "hf");
        cairn_map_destroy(map);
    }
    assert_true(count >= 7);
}

/* ---- the proof ---- */

static void
places(void **state)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct cairn_map_places whole = {{0}}, parts = {{0}}, other = {{0}};
        struct cairn_piece piece = {.extent = {1 + seed % 7, 2 + seed % 5},
                                    .stride_bytes = {40 * seed, 4},
                                    .offset_bytes = seed * 8,
                                    .container = (uint32_t)seed % 3};
        struct cairn_piece left = piece, right = piece;

        left.extent[1] = 1;
        right.extent[1]--;
        right.offset_bytes += 4;
        cairn_map_places_add(&whole, &piece, 2);
        cairn_map_places_add(&parts, &right, 2);
        cairn_map_places_add(&parts, &left, 2);
        assert_true(cairn_map_places_equal(&whole, &parts));
        for (int change = 0; change < 4; change++) { /* a place too many, another, another file */
            struct cairn_piece changed = right;

            changed.container += change == 0;
            changed.offset_bytes += change == 1 ? 4 : 0;
            changed.stride_bytes[0] += change == 2 && changed.extent[0] > 1 ? 4 : 0;
            changed.extent[1] += change == 3;
            if (memcmp(&changed, &right, sizeof(right)) == 0)
                continue;
            other = (struct cairn_map_places){{0}};
            cairn_map_places_add(&other, &left, 2);
            cairn_map_places_add(&other, &changed, 2);
            assert_false(cairn_map_places_equal(&whole, &other));
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_and_groups),
        cmocka_unit_test(transposed),
        cmocka_unit_test(padding),
        cmocka_unit_test(aliases_stay),
        cmocka_unit_test(misfits),
        cmocka_unit_test(too_many_parts),
        cmocka_unit_test(advice),
        cmocka_unit_test(a_map_that_may_not_be_read_is_said_to_be),
        cmocka_unit_test(language_errors),
        cmocka_unit_test(presets_are_maps),
        cmocka_unit_test(places),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
