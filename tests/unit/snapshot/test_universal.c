/* tests/unit/snapshot/test_universal.c - the plan, the headers, the index and the directory of a
 * universal checkpoint. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/log.h"
#include "snapshot/reshard.h"
#include "snapshot/spill.h"
#include "snapshot/universal.h"
#include "tests/support/cmocka.h"
#include "tests/support/kept_lines.h"
#include "tests/support/folder.h"

enum { NODES = 4 };

static int
setup(void **state)
{
    cairn_log_setup(CAIRN_LOG_INFO, keep_line, NULL);
    return root_make("universal");
}

static struct cairn_slice
slice_of(const char *name, enum cairn_kind kind, enum cairn_dtype dtype, uint64_t rows,
         uint64_t columns)
{
    struct cairn_slice slice = {
        .name = name, .dtype = dtype, .kind = kind, .dims = 2, .device = -1};

    if (kind == CAIRN_OPAQUE) {
        slice.dims = 1;
        slice.shape[0] = slice.extent[0] = rows * columns;
        return slice;
    }
    slice.shape[0] = slice.extent[0] = rows;
    slice.shape[1] = slice.extent[1] = columns;
    return slice;
}

struct member {
    const char *name;
    enum cairn_kind kind;
    enum cairn_dtype dtype;
    uint64_t rows, columns;
    uint32_t holder; /* NODES: an equal part on every node */
};

static const struct member members[] = {
    {"wte", CAIRN_PARAM, CAIRN_F32, 256, 64, NODES},
    {"h.0.attn", CAIRN_PARAM, CAIRN_BF16, 64, 192, 0},
    {"h.1.attn", CAIRN_PARAM, CAIRN_BF16, 64, 192, 1},
    {"h.2.attn", CAIRN_PARAM, CAIRN_BF16, 64, 192, 2},
    {"h.3.attn", CAIRN_PARAM, CAIRN_BF16, 64, 192, 3},
    {"adam.m.wte", CAIRN_OPTIMIZER, CAIRN_F32, 256, 64, NODES},
    {"adam.v.wte", CAIRN_OPTIMIZER, CAIRN_F32, 256, 64, NODES},
    {"adam.m.h.0", CAIRN_OPTIMIZER, CAIRN_F32, 64, 192, 0},
    {"adam.m.h.1", CAIRN_OPTIMIZER, CAIRN_F32, 64, 192, 1},
    {"adam.m.h.2", CAIRN_OPTIMIZER, CAIRN_F32, 64, 192, 2},
    {"adam.m.h.3", CAIRN_OPTIMIZER, CAIRN_F32, 64, 192, 3},
    {"step \"quoted\" \xc3\xa4", CAIRN_BUFFER, CAIRN_I64, 1, 1, 0},
    {"empty", CAIRN_BUFFER, CAIRN_F64, 0, 7, 1},
    {"rng.3", CAIRN_OPAQUE, CAIRN_U8, 1, 2503, 3},
};
enum { MEMBERS = sizeof(members) / sizeof(members[0]) };

/* The layout of the members over the nodes, each node's parts one after the other; `backwards` adds
 * them in the opposite order. */
static struct cairn_layout *
make_layout(bool backwards)
{
    struct cairn_layout *layout = NULL;
    uint64_t used[NODES] = {0};

    assert_int_equal(cairn_layout_create(&layout), CAIRN_OK);
    for (int i = 0; i < MEMBERS; i++) {
        const struct member *member = &members[backwards ? MEMBERS - 1 - i : i];
        struct cairn_slice slice =
            slice_of(member->name, member->kind, member->dtype, member->rows, member->columns);
        uint64_t elements = member->rows * member->columns;
        uint64_t bytes = elements * cairn_dtype_bytes(member->dtype);

        for (uint32_t node = 0; node < NODES; node++) {
            uint64_t part = member->holder == NODES ? elements / NODES : elements;
            uint64_t begin = member->holder == NODES ? node * part : 0;

            if (member->holder != NODES && member->holder != node)
                continue;
            assert_int_equal(
                cairn_layout_add(layout, node, &slice, begin, begin + part, used[node], NULL),
                CAIRN_OK);
            used[node] += (member->holder == NODES ? bytes / NODES : bytes) + 64;
        }
    }
    return layout;
}

static void
make_plan(struct cairn_universal *universal)
{
    static const uint32_t writers[NODES] = {2, 0, 3, 1};
    struct cairn_layout *layout = make_layout(false);

    memset(universal, 0, sizeof(*universal));
    assert_int_equal(cairn_universal_plan(layout, writers, NODES, "gpt", 0x1234,
                                          (struct cairn_generation_id){.epoch = 3, .step = 120},
                                          universal),
                     CAIRN_OK);
    cairn_layout_destroy(layout);
}

static void
fill_crcs(struct cairn_universal *universal)
{
    for (uint32_t f = 0; f < universal->file_count; f++) {
        uint64_t count = universal->files[f].block_count;
        uint64_t *crcs = count ? malloc(count * sizeof(*crcs)) : NULL;

        for (uint64_t i = 0; i < count; i++)
            crcs[i] = 0x9e3779b97f4a7c15ull * (f * 1000 + i + 1);
        assert_int_equal(cairn_universal_crcs_set(universal, f, crcs, count), CAIRN_OK);
    }
}

static void
test_plan(void **state)
{
    struct cairn_universal universal;
    uint64_t written[NODES] = {0}, total = 0, local = 0;
    uint32_t seen = 0;

    make_plan(&universal);
    assert_int_equal(universal.tensor_count, MEMBERS);
    for (uint32_t f = 0; f < universal.file_count; f++) {
        const struct cairn_universal_file *file = &universal.files[f];
        uint64_t end = 0;

        assert_int_equal(file->tensor_first, seen);
        assert_int_equal(file->data_offset % 4096, 0);
        for (uint32_t i = 0; i < file->tensor_count; i++) {
            const struct cairn_universal_tensor *tensor = &universal.tensors[seen + i];

            assert_int_equal(tensor->file, f);
            assert_int_equal(tensor->offset_bytes, end);
            assert_int_equal(tensor->offset_bytes % cairn_dtype_bytes(tensor->tensor.dtype), 0);
            end += tensor->bytes;
            for (int m = 0; m < MEMBERS; m++)
                if (strcmp(members[m].name, tensor->tensor.name) == 0 &&
                    members[m].holder == file->writer)
                    local += tensor->bytes;
        }
        assert_int_equal(end, file->data_bytes);
        written[file->writer] += end;
        total += end;
        seen += file->tensor_count;
    }
    assert_int_equal(seen, MEMBERS);
    for (int n = 0; n < NODES; n++)
        assert_in_range(written[n], total / NODES * 4 / 5, total / NODES * 6 / 5);
    assert_true(local >= 4 * 64 * 192 * 4); /* the larger of those that one node holds */
    cairn_universal_fini(&universal);
}

static void
test_plan_is_deterministic(void **state)
{
    static const uint32_t one[NODES] = {0, 1, 2, 3}, other[NODES] = {3, 2, 1, 0};
    struct cairn_layout *forwards = make_layout(false), *backwards = make_layout(true);
    struct cairn_universal a = {0}, b = {0};
    char *a_text, *b_text;
    size_t a_bytes, b_bytes;

    assert_int_equal(cairn_universal_plan(forwards, one, NODES, "gpt", 1,
                                          (struct cairn_generation_id){.epoch = 1, .step = 2}, &a),
                     CAIRN_OK);
    assert_int_equal(cairn_universal_plan(backwards, other, NODES, "gpt", 1,
                                          (struct cairn_generation_id){.epoch = 1, .step = 2}, &b),
                     CAIRN_OK);
    assert_int_equal(cairn_universal_index_pack(&a, &a_text, &a_bytes),
                     CAIRN_INVAL); /* no checksums */
    fill_crcs(&a);
    fill_crcs(&b);
    assert_int_equal(cairn_universal_index_pack(&a, &a_text, &a_bytes), CAIRN_OK);
    assert_int_equal(cairn_universal_index_pack(&b, &b_text, &b_bytes), CAIRN_OK);
    assert_string_equal(a_text, b_text);
    free(a_text);
    free(b_text);
    cairn_universal_fini(&a);
    cairn_universal_fini(&b);
    cairn_layout_destroy(forwards);
    cairn_layout_destroy(backwards);
}

static void
test_plan_refuses(void **state)
{
    static const uint32_t twice[2] = {1, 1}, one[1] = {0};
    struct cairn_generation_id generation = {.epoch = 1, .step = 1};
    struct cairn_layout *layout = make_layout(false), *empty = NULL, *reserved = NULL;
    struct cairn_universal out = {0};
    struct cairn_slice slice = slice_of("__metadata__", CAIRN_PARAM, CAIRN_F32, 1, 1);
    char job[200];

    memset(job, 'j', sizeof(job));
    job[sizeof(job) - 1] = '\0';
    assert_int_equal(cairn_layout_create(&empty), CAIRN_OK);
    assert_int_equal(cairn_layout_create(&reserved), CAIRN_OK);
    assert_int_equal(cairn_layout_add(reserved, 0, &slice, 0, 0, 0, NULL), CAIRN_OK);
    assert_int_equal(cairn_universal_plan(layout, twice, 2, "j", 1, generation, &out), CAIRN_INVAL);
    assert_int_equal(cairn_universal_plan(layout, one, 0, "j", 1, generation, &out), CAIRN_INVAL);
    assert_int_equal(cairn_universal_plan(layout, one, 1, "", 1, generation, &out), CAIRN_INVAL);
    assert_int_equal(cairn_universal_plan(layout, one, 1, job, 1, generation, &out), CAIRN_INVAL);
    assert_int_equal(cairn_universal_plan(layout, one, 1, "\xff", 1, generation, &out),
                     CAIRN_INVAL);
    assert_int_equal(cairn_universal_plan(empty, one, 1, "j", 1, generation, &out), CAIRN_INVAL);
    assert_int_equal(cairn_universal_plan(reserved, one, 1, "j", 1, generation, &out), CAIRN_INVAL);
    assert_non_null(strstr(last_line, "__metadata__"));
    assert_int_equal(out.file_count, 0);
    /* A writer that holds nothing still writes when it is the only one. */
    assert_int_equal(cairn_universal_plan(layout, &(uint32_t){77}, 1, "j", 1, generation, &out),
                     CAIRN_OK);
    assert_int_equal(out.file_count, 3);
    assert_int_equal(out.files[0].writer, 77);
    assert_string_equal(out.files[1].name, "optimizer-00001-of-00001.safetensors");
    cairn_universal_fini(&out);
    cairn_layout_destroy(layout);
    cairn_layout_destroy(empty);
    cairn_layout_destroy(reserved);
}

static void
test_index_round_trip(void **state)
{
    struct cairn_universal universal, back = {0};
    char *text = NULL, *again = NULL;
    size_t bytes = 0, again_bytes = 0;

    make_plan(&universal);
    fill_crcs(&universal);
    assert_int_equal(cairn_universal_index_pack(&universal, &text, &bytes), CAIRN_OK);
    assert_int_equal(cairn_universal_index_parse(text, bytes, &back), CAIRN_OK);
    assert_int_equal(cairn_universal_index_pack(&back, &again, &again_bytes), CAIRN_OK);
    assert_int_equal(bytes, again_bytes);
    assert_memory_equal(text, again, bytes);
    assert_int_equal(back.job_id, 0x1234);
    assert_int_equal(back.generation.step, 120);
    for (uint32_t f = 0; f < back.file_count; f++) {
        struct cairn_manifest manifest = {0}, unpacked = {0};
        uint8_t *packed = NULL;
        size_t packed_bytes = 0;

        assert_int_equal(back.files[f].tensor_first, universal.files[f].tensor_first);
        assert_int_equal(cairn_universal_manifest(&back, f, &manifest), CAIRN_OK);
        assert_int_equal(cairn_manifest_pack(&manifest, &packed, &packed_bytes), CAIRN_OK);
        assert_int_equal(cairn_manifest_unpack(packed, packed_bytes, &unpacked), CAIRN_OK);
        assert_int_equal(unpacked.container, f);
        assert_int_equal(unpacked.container_bytes, universal.files[f].data_bytes);
        assert_int_equal(unpacked.entry_count, universal.files[f].tensor_count);
        assert_memory_equal(unpacked.block_crcs, universal.files[f].block_crcs,
                            unpacked.block_count * 8);
        free(packed);
        cairn_manifest_fini(&manifest);
        cairn_manifest_fini(&unpacked);
    }
    free(text);
    free(again);
    cairn_universal_fini(&universal);
    cairn_universal_fini(&back);
}

/* The layout of the files takes every byte from the nodes and covers each tensor exactly once. */
static void
test_layout_is_a_target(void **state)
{
    struct cairn_universal universal;
    struct cairn_layout *source = make_layout(false), *target = NULL;
    struct cairn_moves moves = {0};
    uint64_t total = 0;
    char report[256];

    make_plan(&universal);
    for (uint32_t f = 0; f < universal.file_count; f++)
        total += universal.files[f].data_bytes;
    assert_int_equal(cairn_universal_layout(&universal, &target), CAIRN_OK);
    assert_int_equal(cairn_layout_check_tiling(target, true, report, sizeof(report)), CAIRN_OK);
    assert_int_equal(cairn_reshard_plan(source, target, &(struct cairn_reshard_options){0}, &moves,
                                        report, sizeof(report)),
                     CAIRN_OK);
    assert_int_equal(moves.bytes, total);
    cairn_moves_fini(&moves);
    cairn_layout_destroy(source);
    cairn_layout_destroy(target);
    cairn_universal_fini(&universal);
}

static void
test_index_damage(void **state)
{
    struct cairn_universal universal, back = {0};
    char *text = NULL, *cut, *changed;
    size_t bytes = 0;
    unsigned random = 12345, accepted = 0;

    make_plan(&universal);
    fill_crcs(&universal);
    assert_int_equal(cairn_universal_index_pack(&universal, &text, &bytes), CAIRN_OK);
    for (size_t length = 0; length < bytes - 1; length++) { /* the last byte is white space */
        cut = malloc(length + 1); /* so that a read past the end is seen */
        memcpy(cut, text, length);
        assert_int_equal(cairn_universal_index_parse(cut, length, &back), CAIRN_CORRUPT);
        free(cut);
    }
    for (int round = 0; round < 4000; round++) {
        size_t at;

        changed = malloc(bytes);
        memcpy(changed, text, bytes);
        random = random * 1664525u + 1013904223u;
        at = (random >> 8) % bytes;
        random = random * 1664525u + 1013904223u;
        changed[at] = (char)(changed[at] ^ (1 << (random >> 13 & 7)));
        if (cairn_universal_index_parse(changed, bytes, &back) == CAIRN_OK) {
            accepted++; /* a digit of a checksum or a letter of a name: COMMIT knows, the parser
                           cannot */
            cairn_universal_fini(&back);
        }
        free(changed);
    }
    assert_in_range(accepted, 1, 3000);
    free(text);
    cairn_universal_fini(&universal);
}

/* Replaces the first `from` in a small sound index and tells what the parser says. */
static cairn_err
parse_with(const char *from, const char *to)
{
    static const char sound[] = "{\"cairn_universal\":1,\"job\":\"j\",\"job_id\":"
                                "\"0000000000000001\",\"epoch\":1,\"step\":2,"
                                "\"files\":[{\"name\":\"a.safetensors\",\"class\":\"param\","
                                "\"writer\":0,\"data_offset\":4096,"
                                "\"data_bytes\":12,\"block_crcs\":\"00000000000000ff\"}],"
                                "\"tensors\":[{\"name\":\"x\",\"kind\":\"param\",\"dtype\":\"F32\","
                                "\"shape\":[2],\"file\":0,"
                                "\"offset\":0,\"bytes\":8},{\"name\":\"y\",\"kind\":\"buffer\","
                                "\"dtype\":\"F32\",\"shape\":[],"
                                "\"file\":0,\"offset\":8,\"bytes\":4}]}";
    struct cairn_universal out = {0};
    const char *at = strstr(sound, from);
    char text[4096];
    cairn_err err;

    assert_non_null(at);
    (void)snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - sound), sound, to, at + strlen(from));
    err = cairn_universal_index_parse(text, strlen(text), &out);
    cairn_universal_fini(&out);
    return err;
}

static void
test_index_hostile(void **state)
{
    static const char *const wrong[][2] = {
        {"\"a.safetensors\"", "\"../a.safetensors\""},
        {"\"a.safetensors\"", "\"/etc/passwd\""},
        {"\"a.safetensors\"", "\"..\""},
        {"\"a.safetensors\"", "\"\""},
        {"\"data_bytes\":12", "\"data_bytes\":13"},
        {"\"data_bytes\":12", "\"data_bytes\":8"},
        {"\"data_bytes\":12", "\"data_bytes\":-12"},
        {"\"data_bytes\":12", "\"data_bytes\":12.0"},
        {"\"data_bytes\":12", "\"data_bytes\":18446744073709551628"},
        {"\"data_bytes\":12", "\"data_bytes\":9223372036854775807"},
        {"\"data_bytes\":12", "\"data_bytes\":12,\"data_bytes\":12"},
        {"\"data_offset\":4096", "\"data_offset\":4095"},
        {"\"data_offset\":4096", "\"data_offset\":0"},
        {"\"data_offset\":4096", "\"data_offset\":4096000000000"},
        {"\"00000000000000ff\"", "\"\""},
        {"\"00000000000000ff\"", "\"00000000000000fg\""},
        {"\"00000000000000ff\"", "\"00000000000000FF\""},
        {"\"00000000000000ff\"", "\"00000000000000ff00000000000000ff\""},
        {"\"name\":\"y\"", "\"name\":\"x\""},
        {"\"name\":\"y\"", "\"name\":\"__metadata__\""},
        {"\"name\":\"y\"", "\"name\":\"\""},
        {"\"name\":\"y\"", "\"name\":\"\\u0000\""},
        {"\"name\":\"y\"", "\"name\":\"\\ud800\""},
        {"\"name\":\"y\"", "\"name\":\"\xff\""},
        {"\"name\":\"y\",", ""},
        {"\"name\":\"y\"", "\"name\":\"y\",\"extra\":[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]"},
        {"\"kind\":\"buffer\"", "\"kind\":\"optimizer\""},
        {"\"kind\":\"buffer\"", "\"kind\":\"code\""},
        {"\"dtype\":\"F32\"", "\"dtype\":\"F33\""},
        {"\"shape\":[2]", "\"shape\":[3]"},
        {"\"shape\":[2]", "\"shape\":[2,]"},
        {"\"shape\":[2]", "\"shape\":[[2]]"},
        {"\"shape\":[2]", "\"shape\":[4294967296,4294967296,2]"},
        {"\"shape\":[2]", "\"shape\":[1,1,1,1,1,1,1,1,2]"},
        {"\"offset\":8", "\"offset\":4"},
        {"\"offset\":8", "\"offset\":9"},
        {"\"file\":0,\"offset\":8", "\"file\":1,\"offset\":8"},
        {"\"file\":0,\"offset\":8", "\"file\":4294967296,\"offset\":8"},
        {"\"job\":\"j\"", "\"job\":\"\""},
        {"]}", "]}]}"},
        {"{\"cairn", "[{\"cairn"},
    };

    assert_int_equal(parse_with("x", "z"), CAIRN_OK);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        cairn_err err = parse_with(wrong[i][0], wrong[i][1]);

        if (err != CAIRN_CORRUPT)
            print_error("accepted: %s\n", wrong[i][1]);
        assert_int_equal(err, CAIRN_CORRUPT);
    }
    assert_int_equal(parse_with("\"cairn_universal\":1", "\"cairn_universal\":2"), CAIRN_VERSION);
}

/* ---- the directory ---- */

static int
write_checkpoint(const char *name, struct cairn_universal *universal)
{
    char path[128];
    int dir_fd;

    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    assert_int_equal(cairn_dir_make(AT_FDCWD, path), CAIRN_OK);
    assert_int_equal(cairn_file_open(AT_FDCWD, path, CAIRN_FILE_DIRECTORY, &dir_fd), CAIRN_OK);
    make_plan(universal);
    for (uint32_t f = 0; f < universal->file_count; f++) {
        struct cairn_universal_file *file = &universal->files[f];
        uint64_t *crcs = file->block_count ? malloc(file->block_count * sizeof(*crcs)) : NULL;
        uint8_t *header = NULL, *data = malloc(file->data_bytes + 1);
        size_t header_bytes = 0;
        int fd;

        for (uint64_t i = 0; i < file->data_bytes; i++)
            data[i] = (uint8_t)(i * 31 + f);
        for (uint64_t b = 0; b < file->block_count; b++) {
            uint64_t left = file->data_bytes - b * CAIRN_BLOCK_BYTES;

            crcs[b] = cairn_crc64(0, data + b * CAIRN_BLOCK_BYTES,
                                  left < CAIRN_BLOCK_BYTES ? left : CAIRN_BLOCK_BYTES);
        }
        assert_int_equal(cairn_universal_crcs_set(universal, f, crcs, file->block_count), CAIRN_OK);
        assert_int_equal(cairn_universal_header_pack(universal, f, &header, &header_bytes),
                         CAIRN_OK);
        assert_int_equal(header_bytes, file->data_offset);
        assert_int_equal(cairn_file_open(dir_fd, file->name, CAIRN_FILE_CREATE, &fd), CAIRN_OK);
        assert_int_equal(cairn_file_write_at(fd, 0, header, header_bytes), CAIRN_OK);
        assert_int_equal(cairn_file_write_at(fd, header_bytes, data, file->data_bytes), CAIRN_OK);
        assert_int_equal(cairn_file_close(fd), CAIRN_OK);
        free(header);
        free(data);
    }
    return dir_fd;
}

static void
test_dir(void **state)
{
    struct cairn_universal universal, back = {0};
    char report[256], name[CAIRN_UNIVERSAL_NAME_BYTES_MAX];
    int dir_fd = write_checkpoint("dir", &universal), fd;
    uint64_t bytes;

    assert_int_equal(cairn_universal_dir_open(dir_fd, &back, report, sizeof(report)),
                     CAIRN_NOT_FOUND);
    assert_int_equal(cairn_universal_dir_commit(dir_fd, &universal), CAIRN_OK);
    assert_int_equal(cairn_universal_dir_open(dir_fd, &back, report, sizeof(report)), CAIRN_OK);
    assert_int_equal(cairn_universal_dir_verify(dir_fd, &back, report, sizeof(report)), CAIRN_OK);
    memcpy(name, universal.files[0].name, sizeof(name));

    /* A flipped data byte passes open and fails verify, which names the file. */
    assert_int_equal(cairn_file_open(dir_fd, name, CAIRN_FILE_UPDATE, &fd), CAIRN_OK);
    assert_int_equal(cairn_file_size(fd, &bytes), CAIRN_OK);
    assert_int_equal(cairn_file_write_at(fd, bytes - 1, "\x7f", 1), CAIRN_OK);
    assert_int_equal(cairn_universal_dir_verify(dir_fd, &back, report, sizeof(report)),
                     CAIRN_CORRUPT);
    assert_non_null(strstr(report, name));
    cairn_universal_fini(&back);

    /* A flipped header byte, a length that is off by one either way, and a missing file fail open.
     */
    assert_int_equal(cairn_file_write_at(fd, 100, "\x7f", 1), CAIRN_OK);
    assert_int_equal(cairn_universal_dir_open(dir_fd, &back, report, sizeof(report)),
                     CAIRN_CORRUPT);
    assert_non_null(strstr(report, "byte 100"));
    for (int off = -1; off <= 1; off += 2) {
        assert_int_equal(cairn_file_resize(fd, bytes + (uint64_t)off), CAIRN_OK);
        assert_int_equal(cairn_universal_dir_open(dir_fd, &back, report, sizeof(report)),
                         CAIRN_CORRUPT);
        assert_non_null(strstr(report, "where the index says"));
    }
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
    assert_int_equal(cairn_file_unlink(dir_fd, name), CAIRN_OK);
    assert_int_equal(cairn_universal_dir_open(dir_fd, &back, report, sizeof(report)),
                     CAIRN_CORRUPT);
    assert_non_null(strstr(report, "missing"));
    assert_int_equal(symlinkat("/etc/hostname", dir_fd, name), 0);
    assert_int_not_equal(cairn_universal_dir_open(dir_fd, &back, report, sizeof(report)), CAIRN_OK);
    assert_int_equal(cairn_file_close(dir_fd), CAIRN_OK);
    cairn_universal_fini(&universal);
}

/* Every truncation and a flip of every byte of COMMIT and of (some bytes of) index.json is found.
 */
static void
test_dir_damage(void **state)
{
    static const char *const names[] = {"COMMIT", "index.json"};
    struct cairn_universal universal, back = {0};
    int dir_fd = write_checkpoint("damage", &universal);

    assert_int_equal(cairn_universal_dir_commit(dir_fd, &universal), CAIRN_OK);
    for (int n = 0; n < 2; n++) {
        uint8_t *bytes = NULL;
        size_t bytes_len = 0, step;
        int fd;

        assert_int_equal(cairn_file_load(dir_fd, names[n], 1 << 20, &bytes, &bytes_len), CAIRN_OK);
        assert_int_equal(cairn_file_open(dir_fd, names[n], CAIRN_FILE_UPDATE, &fd), CAIRN_OK);
        step = bytes_len / 100 + 1;
        for (size_t at = 0; at < bytes_len; at += step) {
            uint8_t flipped = bytes[at] ^ 0x10;
            cairn_err err;

            assert_int_equal(cairn_file_resize(fd, at), CAIRN_OK);
            assert_int_equal(cairn_universal_dir_open(dir_fd, &back, NULL, 0), CAIRN_CORRUPT);
            assert_int_equal(cairn_file_write_at(fd, 0, bytes, bytes_len), CAIRN_OK);
            assert_int_equal(cairn_file_write_at(fd, at, &flipped, 1), CAIRN_OK);
            err = cairn_universal_dir_open(dir_fd, &back, NULL, 0);
            assert_true(err == CAIRN_CORRUPT || err == CAIRN_VERSION);
            assert_int_equal(cairn_file_write_at(fd, at, &bytes[at], 1), CAIRN_OK);
        }
        assert_int_equal(cairn_universal_dir_open(dir_fd, &back, NULL, 0), CAIRN_OK);
        cairn_universal_fini(&back);
        assert_int_equal(cairn_file_close(fd), CAIRN_OK);
        free(bytes);
    }
    assert_int_equal(cairn_file_close(dir_fd), CAIRN_OK);
    cairn_universal_fini(&universal);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_plan_is_deterministic),
        cmocka_unit_test(test_plan_refuses),
        cmocka_unit_test(test_index_round_trip),
        cmocka_unit_test(test_layout_is_a_target),
        cmocka_unit_test(test_index_damage),
        cmocka_unit_test(test_index_hostile),
        cmocka_unit_test(test_dir),
        cmocka_unit_test(test_dir_damage),
    };

    if (argc == 3 && strcmp(argv[1], "--write") == 0) { /* a checkpoint for tests/interop to read */
        struct cairn_universal universal;
        cairn_err err;
        int dir_fd;

        (void)snprintf(root, sizeof(root), "%s", argv[2]);
        dir_fd = write_checkpoint("checkpoint", &universal);
        err = cairn_universal_dir_commit(dir_fd, &universal);
        cairn_universal_fini(&universal);
        return cairn_file_close(dir_fd) || err ? 1 : 0;
    }
    return cmocka_run_group_tests(tests, setup, root_remove);
}
