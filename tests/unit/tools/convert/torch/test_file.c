/*
 * tests/unit/tools/convert/torch/test_file.c - files of torch.save against what PyTorch said of
 * them when it made them (tests/fixtures/make_torch.py), written again, and broken in many ways.
 *
 * For tests/interop it is a program, too:
 *   --list FILE            one line per tensor, as make_torch.py writes it
 *   --rewrite FROM TO      reads a file and writes it again, in the form since 1.6
 *   --sparse FILE GIB      a file with a storage of GIB GiB of zeroes, whose last element is
 *                          1
 *   --make FILE            a state dict of every dtype, from nothing
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/file.h"
#include "base/log.h"
#include "tools/convert/torch/carry.h"
#include "tools/convert/torch/file.h"
#include "tools/convert/torch/write.h"
#include "tests/support/cmocka.h"
#include "tests/support/write_archive.h"

#define FIXTURES "tests/fixtures/torch/"
enum { MEMORY_BYTES = 64 << 20, TEXT_BYTES = 1 << 16 };

static struct cairn_complaint complaint;

/* ---- listing ---- */

/* The CRC-32 of the elements in row-major order, one by one. */
static uint32_t
checksum_of(int fd, const struct cairn_torch_tensor *tensor)
{
    const struct cairn_torch_view *view = &tensor->view;
    uint64_t index[CAIRN_DIMS_MAX] = {0}, element_bytes = view->dtype->element_bytes;
    uint32_t crc = 0;

    for (uint64_t done = 0; done < tensor->bytes; done += element_bytes) {
        uint64_t at = tensor->at;
        uint8_t element[16];
        size_t got = 0;

        for (uint32_t d = 0; d < view->dims; d++)
            at += index[d] * view->stride[d] * element_bytes;
        assert_int_equal(cairn_file_read_at(fd, at, element, element_bytes, &got), CAIRN_OK);
        assert_int_equal(got, element_bytes);
        crc = cairn_crc32(crc, element, element_bytes);
        for (uint32_t d = view->dims; d-- > 0;) {
            if (++index[d] < view->shape[d])
                break;
            index[d] = 0;
        }
    }
    return crc;
}

static void
print_extents(FILE *out, const uint64_t *extents, uint32_t dims)
{
    (void)fprintf(out, "\t[");
    for (uint32_t d = 0; d < dims; d++)
        (void)fprintf(out, "%s%" PRIu64, d > 0 ? ", " : "", extents[d]);
    (void)fprintf(out, "]");
}

static void
print_tensors(FILE *out, int fd, const struct cairn_torch_file *file)
{
    for (uint32_t t = 0; t < file->tensor_count; t++) {
        const struct cairn_torch_tensor *tensor = &file->tensors[t];
        const struct cairn_torch_view *view = &tensor->view;
        bool marks[] = {tensor->contiguous, view->requires_grad, view->parameter, view->conjugate};
        static const char *const names[] = {"contiguous", "grad", "parameter", "conj"};
        const char *gap = "";

        (void)fprintf(out, "%s\t%s", tensor->name, view->dtype->name);
        print_extents(out, view->shape, view->dims);
        print_extents(out, view->stride, view->dims);
        (void)fprintf(out, "\t%" PRIu64 "\t", view->offset);
        for (size_t i = 0; i < 4; i++) {
            if (marks[i])
                (void)fprintf(out, "%s%s", gap, names[i]);
            if (marks[i])
                gap = " ";
        }
        (void)fprintf(out, "\t%08x\n", checksum_of(fd, tensor));
    }
}

static int
open_fixture(const char *path, struct cairn_torch_file *file)
{
    uint64_t bytes;
    int fd = -1;

    assert_int_equal(cairn_file_open(AT_FDCWD, path, CAIRN_FILE_READ, &fd), CAIRN_OK);
    assert_int_equal(cairn_file_size(fd, &bytes), CAIRN_OK);
    if (cairn_torch_open(fd, path, 0, bytes, MEMORY_BYTES, file, &complaint) != CAIRN_OK)
        fail_msg("%s: %s", path, complaint.text);
    return fd;
}

static char *
listing_of(const char *path)
{
    struct cairn_torch_file file;
    int fd = open_fixture(path, &file);
    char *text = NULL;
    size_t text_bytes = 0;
    FILE *out = open_memstream(&text, &text_bytes);

    assert_non_null(out);
    print_tensors(out, fd, &file);
    assert_int_equal(fclose(out), 0);
    cairn_torch_close(&file);
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
    return text;
}

static const char *const fixtures[] = {
    "dtypes",       "training",  "views",         "bare",         "stream",
    "no_checksums", "protocol4", "legacy_dtypes", "legacy_views", "legacy_training"};
enum { FIXTURE_COUNT = sizeof(fixtures) / sizeof(fixtures[0]) };

static void
tensors_are_what_pytorch_says(void **state)
{
    for (size_t i = 0; i < FIXTURE_COUNT; i++) {
        char path[128], expected_path[128];
        uint8_t *expected = NULL;
        size_t expected_bytes = 0;
        char *listing;

        (void)snprintf(path, sizeof(path), FIXTURES "%s.pt", fixtures[i]);
        (void)snprintf(expected_path, sizeof(expected_path), FIXTURES "%s.txt", fixtures[i]);
        assert_int_equal(
            cairn_file_load(AT_FDCWD, expected_path, TEXT_BYTES, &expected, &expected_bytes),
            CAIRN_OK);
        assert_true(expected_bytes > 0);
        listing = listing_of(path);
        assert_string_equal(listing, (char *)expected);
        free(listing);
        free(expected);
    }
}

/* ---- rewriting ---- */

static void
copy_storage(int from, const struct cairn_torch_stored *stored, int to,
             struct cairn_zip_planned *planned)
{
    uint8_t bytes[4096];

    for (uint64_t done = 0; done < stored->bytes;) {
        uint64_t left = stored->bytes - done;
        size_t part = left < sizeof(bytes) ? (size_t)left : sizeof(bytes), got = 0;

        assert_int_equal(cairn_file_read_at(from, stored->at + done, bytes, part, &got), CAIRN_OK);
        assert_int_equal(got, part);
        assert_int_equal(cairn_file_write_at(to, planned->at + done, bytes, part), CAIRN_OK);
        planned->crc32 = cairn_crc32(planned->crc32, bytes, part);
        done += part;
    }
}

/* Storages of a file that is written are called by their indexes. */
static cairn_err
name_by_index(void *context, struct cairn_pickle_node *node)
{
    struct cairn_torch_file *file = context;
    struct cairn_pickle_node **key = &node->items[0]->items[2];
    char text[CAIRN_TORCH_KEY_BYTES_MAX], index[24];

    assert_true(cairn_pickle_copy_text(*key, text, sizeof(text)));
    (void)snprintf(index, sizeof(index), "%td",
                   cairn_torch_find_storage(file, text) - file->storages);
    if (strcmp(text, index) != 0)
        *key = cairn_pickle_text(&file->tree, index);
    return CAIRN_OK;
}

static void
rewrite(const char *from_path, const char *to_path, const char *folder)
{
    struct cairn_torch_filled *storages;
    struct cairn_torch_plan plan;
    struct cairn_torch_file file;
    int from = open_fixture(from_path, &file), to = -1;
    uint64_t bytes;

    storages = calloc(file.storage_count + 1u, sizeof(*storages));
    assert_non_null(storages);
    for (uint32_t i = 0; i < file.storage_count; i++)
        storages[i] = (struct cairn_torch_filled){.bytes = file.storages[i].bytes};
    assert_int_equal(cairn_torch_visit_persistent(&file.tree, file.root, name_by_index, &file),
                     CAIRN_OK);
    assert_int_equal(cairn_torch_plan_init(&plan, folder, &file.tree, file.root, storages,
                                           file.storage_count, NULL),
                     CAIRN_OK);
    assert_int_equal(cairn_file_open(AT_FDCWD, to_path, CAIRN_FILE_CREATE, &to), CAIRN_OK);
    /* the order in which storages are written is free */
    for (uint32_t i = file.storage_count; i-- > 0;)
        copy_storage(from, &file.storages[i], to, cairn_torch_plan_storage_at(&plan, i));
    assert_int_equal(write_torch_plan(&plan, to), CAIRN_OK);
    assert_int_equal(cairn_file_size(to, &bytes), CAIRN_OK);
    assert_int_equal(bytes, cairn_zip_plan_bytes(&plan.zip));
    assert_int_equal(cairn_file_close(to), CAIRN_OK);
    assert_int_equal(cairn_file_close(from), CAIRN_OK);
    cairn_torch_plan_fini(&plan);
    cairn_torch_close(&file);
    free(storages);
}

static void
temporary_path(char path[64])
{
    (void)snprintf(path, 64, "/tmp/cairn-torch-%ld.pt", (long)getpid());
}

/* Overwrites the 40 digits of .data/serialization_id and every copy of their checksum. */
static void
blank_id(const char *path, uint8_t *bytes, size_t bytes_len)
{
    struct cairn_zip zip;
    const struct cairn_zip_entry *entry;
    uint8_t crc[4];
    int fd = -1;

    assert_int_equal(cairn_file_open(AT_FDCWD, path, CAIRN_FILE_READ, &fd), CAIRN_OK);
    assert_int_equal(cairn_zip_open(fd, path, 0, bytes_len, &zip, &complaint), CAIRN_OK);
    entry = cairn_zip_find(&zip, ".data/serialization_id");
    assert_non_null(entry);
    memset(bytes + entry->at, '0', entry->bytes);
    for (size_t i = 0; i < 4; i++)
        crc[i] = (uint8_t)(entry->crc32 >> 8 * i);
    for (size_t at = (size_t)entry->at; at + 4 <= bytes_len; at++)
        if (memcmp(bytes + at, crc, 4) == 0)
            memset(bytes + at, 0, 4);
    cairn_zip_fini(&zip);
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
}

static void
a_file_written_again_is_the_same_file(void **state)
{
    static const char *const names[] = {"dtypes", "training", "views", "bare"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char from_path[128], to_path[64];
        uint8_t *from = NULL, *to = NULL;
        size_t from_bytes = 0, to_bytes = 0;

        (void)snprintf(from_path, sizeof(from_path), FIXTURES "%s.pt", names[i]);
        temporary_path(to_path);
        rewrite(from_path, to_path, names[i]);
        assert_int_equal(cairn_file_load(AT_FDCWD, from_path, TEXT_BYTES, &from, &from_bytes),
                         CAIRN_OK);
        assert_int_equal(cairn_file_load(AT_FDCWD, to_path, TEXT_BYTES, &to, &to_bytes), CAIRN_OK);
        assert_int_equal(from_bytes, to_bytes);
        blank_id(from_path, from, from_bytes);
        blank_id(to_path, to, to_bytes);
        assert_memory_equal(from, to, from_bytes);
        assert_int_equal(unlink(to_path), 0);
        free(from);
        free(to);
    }
}

/* The old form has other keys, and a later protocol other opcodes, but the tensors stay. */
static void
another_form_written_again_has_the_same_tensors(void **state)
{
    for (size_t i = 0; i < FIXTURE_COUNT; i++) {
        char from_path[128], to_path[64];
        char *from, *to;

        (void)snprintf(from_path, sizeof(from_path), FIXTURES "%s.pt", fixtures[i]);
        temporary_path(to_path);
        rewrite(from_path, to_path, "archive");
        from = listing_of(from_path);
        to = listing_of(to_path);
        assert_string_equal(from, to);
        assert_int_equal(unlink(to_path), 0);
        free(from);
        free(to);
    }
}

/* ---- what is broken ---- */

static cairn_err
open_bytes(const void *bytes, size_t bytes_len, struct cairn_torch_file *file)
{
    char path[] = "/tmp/cairn-torch-XXXXXX";
    int fd = mkstemp(path);
    cairn_err err;

    assert_true(fd >= 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(cairn_file_write_at(fd, 0, bytes, bytes_len), CAIRN_OK);
    complaint.text[0] = '\0';
    err = cairn_torch_open(fd, "broken.pt", 0, bytes_len, MEMORY_BYTES, file, &complaint);
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
    return err;
}

static void
refused(const void *bytes, size_t bytes_len, const char *why)
{
    struct cairn_torch_file file;

    assert_int_equal(open_bytes(bytes, bytes_len, &file), CAIRN_CORRUPT);
    assert_null(file.tensors);
    if (!strstr(complaint.text, why) || !strstr(complaint.text, "broken.pt"))
        fail_msg("it said: %s, and not: %s", complaint.text, why);
}

static uint8_t *
load_fixture(const char *name, size_t *bytes_len)
{
    uint8_t *bytes = NULL;
    char path[128];

    (void)snprintf(path, sizeof(path), FIXTURES "%s", name);
    assert_int_equal(cairn_file_load(AT_FDCWD, path, TEXT_BYTES, &bytes, bytes_len), CAIRN_OK);
    return bytes;
}

static void
every_cut_is_refused(void **state)
{
    static const char *const names[] = {"stream.pt", "legacy_views.pt"};

    for (size_t i = 0; i < 2; i++) {
        size_t bytes_len;
        uint8_t *bytes = load_fixture(names[i], &bytes_len);

        for (size_t cut = 0; cut < bytes_len; cut++) {
            struct cairn_torch_file file;

            if (open_bytes(bytes, cut, &file) != CAIRN_CORRUPT)
                fail_msg("%s cut at %zu is taken", names[i], cut);
            assert_non_null(strstr(complaint.text, "broken.pt"));
        }
        free(bytes);
    }
}

/* A flipped bit may make another valid file; it never leads outside of the file. */
static void
every_flipped_byte_is_refused_or_stays_inside(void **state)
{
    static const char *const names[] = {"stream.pt", "legacy_views.pt"};

    for (size_t i = 0; i < 2; i++) {
        size_t bytes_len;
        uint8_t *bytes = load_fixture(names[i], &bytes_len);

        for (size_t at = 0; at < bytes_len * 2; at++) {
            struct cairn_torch_file file;
            uint8_t flip = at % 2 ? 0x80 : 0x01;

            bytes[at / 2] ^= flip;
            if (open_bytes(bytes, bytes_len, &file) == CAIRN_OK) {
                for (uint32_t t = 0; t < file.tensor_count; t++) {
                    const struct cairn_torch_tensor *tensor = &file.tensors[t];
                    uint64_t last = tensor->at;

                    for (uint32_t d = 0; d < tensor->view.dims && tensor->bytes > 0; d++)
                        last += (tensor->view.shape[d] - 1) * tensor->view.stride[d] *
                                tensor->view.dtype->element_bytes;
                    if (tensor->bytes > 0)
                        assert_true(last + tensor->view.dtype->element_bytes <= bytes_len);
                }
                cairn_torch_close(&file);
            }
            bytes[at / 2] ^= flip;
        }
        free(bytes);
    }
}

static void
other_files_are_told_by_name(void **state)
{
    uint8_t tar[CAIRN_TORCH_PROBE_BYTES] = {0};
    size_t bytes_len;
    uint8_t *compressed = load_fixture("compressed.zip", &bytes_len);

    memcpy(tar + 257, "ustar", 5);
    refused(tar, sizeof(tar), "tar archive");
    refused("hello", 5, "torch.save did not write it");
    refused("", 0, "torch.save did not write it");
    refused("\x80\x02K\x01.", 5, "not from torch.save");
    refused(compressed, bytes_len, "archive/data.pkl is compressed");
    free(compressed);
}

/* An archive of torch.save with this object and one storage "0" of 16 bytes. */
static void
make_archive(const char *path, struct cairn_pickle *tree, struct cairn_pickle_node *root)
{
    struct cairn_torch_filled storage = {.bytes = 16};
    struct cairn_torch_plan plan;
    uint8_t zeroes[16] = {0};
    int fd = -1;

    assert_int_equal(cairn_pickle_done(tree), CAIRN_OK);
    assert_int_equal(cairn_torch_plan_init(&plan, "archive", tree, root, &storage, 1, NULL),
                     CAIRN_OK);
    assert_int_equal(cairn_file_open(AT_FDCWD, path, CAIRN_FILE_CREATE, &fd), CAIRN_OK);
    assert_int_equal(cairn_file_write_at(fd, cairn_torch_plan_storage_at(&plan, 0)->at, zeroes, 16),
                     CAIRN_OK);
    cairn_torch_plan_storage_at(&plan, 0)->crc32 = cairn_crc32(0, zeroes, 16);
    assert_int_equal(write_torch_plan(&plan, fd), CAIRN_OK);
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
    cairn_torch_plan_fini(&plan);
}

struct bounds_case {
    uint64_t offset, shape[2], stride[2];
    uint32_t dims;
    bool fits;
};

static void
a_tensor_never_reaches_past_its_storage(void **state)
{
    /* over 4 elements of 4 bytes */
    static const struct bounds_case cases[] = {
        {0, {4}, {1}, 1, true},
        {0, {5}, {1}, 1, false},
        {3, {1}, {1}, 1, true},
        {4, {1}, {1}, 1, false},
        {3, {0}, {0}, 0, true},
        {4, {0}, {0}, 0, false},
        {9, {0}, {1}, 1, true},
        {0, {2, 2}, {2, 1}, 2, true},
        {0, {2, 2}, {3, 1}, 2, false},
        {0, {2, 2}, {1, 2}, 2, true},
        {0, {1000, 4}, {0, 1}, 2, true},
        {0, {UINT64_C(1) << 40, UINT64_C(1) << 40}, {0, 0}, 2, false},
        {0, {2, 1}, {INT64_MAX, 1}, 2, false},
        {INT64_MAX, {2, 1}, {INT64_MAX, 1}, 2, false},
        {0, {UINT64_C(1) << 40, 0}, {1, 1}, 2, true},
    };
    char path[64];

    temporary_path(path);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cairn_torch_view view = {.dtype = cairn_torch_dtype_named("float32"),
                                        .offset = cases[i].offset,
                                        .dims = cases[i].dims};
        struct cairn_torch_builder builder;
        struct cairn_torch_file file;
        struct cairn_pickle tree;
        uint8_t *bytes = NULL;
        size_t bytes_len = 0;

        memcpy(view.shape, cases[i].shape, sizeof(cases[i].shape));
        memcpy(view.stride, cases[i].stride, sizeof(cases[i].stride));
        cairn_pickle_init(&tree, MEMORY_BYTES);
        cairn_torch_builder_init(&builder, &tree);
        make_archive(path, &tree,
                     cairn_torch_tensor_node(
                         &builder, cairn_torch_storage(&builder, view.dtype, "0", 16), &view));
        assert_int_equal(cairn_file_load(AT_FDCWD, path, TEXT_BYTES, &bytes, &bytes_len), CAIRN_OK);
        if (cases[i].fits)
            assert_int_equal(open_bytes(bytes, bytes_len, &file), CAIRN_OK);
        else
            refused(bytes, bytes_len,
                    i == 11 ? "too many elements" : "past the end of its storage");
        if (cases[i].fits)
            cairn_torch_close(&file);
        cairn_pickle_fini(&tree);
        free(bytes);
    }
    assert_int_equal(unlink(path), 0);
}

struct text_entry {
    const char *name, *text;
};

/* An archive of these entries, refused for this reason. */
static void
archive_refused(const struct text_entry *entries, size_t count, const char *why)
{
    struct cairn_zip_plan plan;
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    char path[64];
    int fd = -1;

    temporary_path(path);
    assert_int_equal(cairn_zip_plan_init(&plan, "x"), CAIRN_OK);
    assert_int_equal(cairn_file_open(AT_FDCWD, path, CAIRN_FILE_CREATE, &fd), CAIRN_OK);
    for (size_t i = 0; i < count; i++) {
        size_t text_bytes = strlen(entries[i].text);
        uint32_t index;

        assert_int_equal(cairn_zip_plan_add(&plan, entries[i].name, text_bytes, &index), CAIRN_OK);
        plan.entries[index].crc32 = cairn_crc32(0, entries[i].text, text_bytes);
        assert_int_equal(
            cairn_file_write_at(fd, plan.entries[index].at, entries[i].text, text_bytes), CAIRN_OK);
    }
    assert_int_equal(write_zip_plan(&plan, fd, 0), CAIRN_OK);
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
    cairn_zip_plan_fini(&plan);
    assert_int_equal(cairn_file_load(AT_FDCWD, path, TEXT_BYTES, &bytes, &bytes_len), CAIRN_OK);
    refused(bytes, bytes_len, why);
    assert_int_equal(unlink(path), 0);
    free(bytes);
}

static void
archives_that_say_something_else_are_refused(void **state)
{
    static const struct text_entry big[] = {{"data.pkl", "\x80\2}."}, {"byteorder", "big"}};
    static const struct text_entry order[] = {{"data.pkl", "\x80\2}."}, {"byteorder", "middle"}};
    static const struct text_entry program_entries[] = {{"data.pkl", "\x80\2}."},
                                                        {"constants.pkl", "\x80\2)."}};
    static const struct text_entry nothing[] = {{"readme", "hello"}};
    static const struct text_entry more[] = {{"data.pkl", "\x80\2}.}."}};
    static const struct text_entry broken[] = {{"data.pkl", "\x80\2\x97."}};

    archive_refused(big, 2, "big-endian");
    archive_refused(order, 2, "unknown byte order");
    archive_refused(program_entries, 2, "TorchScript");
    archive_refused(nothing, 1, "data.pkl is missing");
    archive_refused(more, 1, "bytes follow the pickle");
    archive_refused(broken, 1, "byte 2, opcode NEXT_BUFFER");
}

static void
an_old_file_of_a_big_endian_machine_is_refused(void **state)
{
    size_t bytes_len;
    uint8_t *bytes = load_fixture("legacy_views.pt", &bytes_len);
    uint8_t *said = memmem(bytes, bytes_len, "little_endian", 13);

    assert_non_null(said);
    said = memchr(said, 0x88, 32); /* True */
    assert_non_null(said);
    *said = 0x89;
    refused(bytes, bytes_len, "big-endian");
    free(bytes);
}

/*
 * A tensor over a storage that the file does not have, and over one that is shorter than it says.
 */
static void
storages_must_be_there_and_whole(void **state)
{
    static const struct {
        const char *key;
        uint64_t bytes;
        const char *why;
    } cases[] = {{"1", 16, "entry data/1 is missing"},
                 {"0", 20, "entry data/0 has 16 bytes, expected 20"}};
    char path[64];

    temporary_path(path);
    for (size_t i = 0; i < 2; i++) {
        struct cairn_torch_view view = {.dtype = cairn_torch_dtype_named("float32")};
        struct cairn_torch_builder builder;
        struct cairn_pickle tree;
        uint8_t *bytes = NULL;
        size_t bytes_len = 0;

        cairn_pickle_init(&tree, MEMORY_BYTES);
        cairn_torch_builder_init(&builder, &tree);
        make_archive(path, &tree,
                     cairn_torch_tensor_node(
                         &builder,
                         cairn_torch_storage(&builder, view.dtype, cases[i].key, cases[i].bytes),
                         &view));
        assert_int_equal(cairn_file_load(AT_FDCWD, path, TEXT_BYTES, &bytes, &bytes_len), CAIRN_OK);
        refused(bytes, bytes_len, cases[i].why);
        cairn_pickle_fini(&tree);
        free(bytes);
    }
    assert_int_equal(unlink(path), 0);
}

/* A tree of 60 lists, each with the next one twice, has 2^60 paths to its tensor. */
static void
endless_paths_are_refused(void **state)
{
    struct cairn_torch_view view = {.dtype = cairn_torch_dtype_named("float32")};
    struct cairn_torch_builder builder;
    struct cairn_torch_file file;
    struct cairn_pickle tree;
    struct cairn_pickle_node *node;
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    char path[64];

    temporary_path(path);
    cairn_pickle_init(&tree, MEMORY_BYTES);
    cairn_torch_builder_init(&builder, &tree);
    node = cairn_torch_tensor_node(&builder, cairn_torch_storage(&builder, view.dtype, "0", 16),
                                   &view);
    for (int i = 0; i < 60; i++) {
        struct cairn_pickle_node *twice[2] = {node, node};

        node = cairn_pickle_sequence(&tree, CAIRN_PICKLE_LIST, twice, 2);
    }
    make_archive(path, &tree, node);
    assert_int_equal(cairn_file_load(AT_FDCWD, path, TEXT_BYTES, &bytes, &bytes_len), CAIRN_OK);
    assert_int_equal(open_bytes(bytes, bytes_len, &file), CAIRN_NOMEM);
    assert_non_null(strstr(complaint.text, "no memory"));
    cairn_pickle_fini(&tree);
    free(bytes);
    assert_int_equal(unlink(path), 0);
}

/* ---- the program ---- */

static void
make_sparse(const char *path, uint64_t gib)
{
    uint64_t elements = gib << 28;
    struct cairn_torch_view view = {
        .dtype = cairn_torch_dtype_named("float32"), .dims = 1, .shape = {elements}, .stride = {1}};
    struct cairn_torch_view last = {.dtype = view.dtype, .dims = 1, .shape = {4}, .stride = {1}};
    struct cairn_torch_filled storages[2] = {{.bytes = gib << 30}, {.bytes = 16}};
    const float one = 1.0f, four[4] = {1, 2, 3, 4};
    struct cairn_torch_builder builder;
    struct cairn_pickle tree;
    struct cairn_torch_plan plan;
    struct cairn_pickle_node *dict;
    int fd = -1;

    cairn_pickle_init(&tree, MEMORY_BYTES);
    cairn_torch_builder_init(&builder, &tree);
    dict = cairn_pickle_dict(&tree);
    cairn_pickle_put(
        &tree, dict, cairn_pickle_text(&tree, "large"),
        cairn_torch_tensor_node(&builder, cairn_torch_storage(&builder, view.dtype, "0", gib << 30),
                                &view));
    cairn_pickle_put(&tree, dict, cairn_pickle_text(&tree, "behind"),
                     cairn_torch_tensor_node(
                         &builder, cairn_torch_storage(&builder, view.dtype, "1", 16), &last));
    assert_int_equal(cairn_pickle_done(&tree), CAIRN_OK);
    assert_int_equal(cairn_torch_plan_init(&plan, "archive", &tree, dict, storages, 2, NULL),
                     CAIRN_OK);
    assert_int_equal(cairn_file_open(AT_FDCWD, path, CAIRN_FILE_CREATE, &fd), CAIRN_OK);
    assert_int_equal(
        cairn_file_write_at(fd, plan.zip.entries[plan.first_storage].at + (gib << 30) - 4, &one, 4),
        CAIRN_OK);
    assert_int_equal(cairn_file_write_at(fd, plan.zip.entries[plan.first_storage + 1].at, four, 16),
                     CAIRN_OK);
    assert_int_equal(write_torch_plan(&plan, fd), CAIRN_OK);
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
    cairn_torch_plan_fini(&plan);
    cairn_pickle_fini(&tree);
}

static void
more_than_4_gib_is_found_again(void **state)
{
    struct cairn_torch_file file;
    struct cairn_torch_tensor *tensor;
    char path[64];
    float values[4] = {0};
    size_t got = 0;
    int fd;

    temporary_path(path);
    make_sparse(path, 5);
    fd = open_fixture(path, &file);
    assert_int_equal(file.tensor_count, 2);
    tensor = &file.tensors[0];
    assert_string_equal(tensor->name, "large");
    assert_true(tensor->bytes == UINT64_C(5) << 30 && tensor->at % 64 == 0);
    assert_int_equal(cairn_file_read_at(fd, tensor->at + tensor->bytes - 4, values, 4, &got),
                     CAIRN_OK);
    assert_true(values[0] == 1.0f);
    tensor = &file.tensors[1];
    assert_true(tensor->at > UINT64_C(5) << 30);
    assert_int_equal(cairn_file_read_at(fd, tensor->at, values, 16, &got), CAIRN_OK);
    assert_true(values[0] == 1.0f && values[3] == 4.0f);
    cairn_torch_close(&file);
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
    assert_int_equal(unlink(path), 0);
}

static const char *const made_dtypes[] = {
    "float32", "float64",   "float16",    "bfloat16",      "int64",       "int32",
    "int16",   "int8",      "uint8",      "bool",          "uint16",      "uint32",
    "uint64",  "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"};
enum { MADE_COUNT = sizeof(made_dtypes) / sizeof(made_dtypes[0]), MADE_ELEMENTS = 6 };

/*
 * {"weights": OrderedDict of a [2, 3] tensor per dtype, "size": …, "dtype": …, "raw": …}; byte i of
 * storage s is i + s, those of bool are 0 and 1.
 */
static struct cairn_pickle_node *
made_tree(struct cairn_pickle *tree, struct cairn_torch_filled *storages, char keys[MADE_COUNT][8])
{
    struct cairn_torch_builder builder;
    struct cairn_pickle_node *root, *weights;
    static const uint8_t raw[] = {0, 1, 254, 255};
    static const uint64_t extents[] = {4, 5};

    cairn_torch_builder_init(&builder, tree);
    root = cairn_pickle_dict(tree);
    weights = cairn_torch_ordered_dict(&builder);
    cairn_pickle_put(tree, root, cairn_pickle_text(tree, "weights"), weights);
    for (uint32_t i = 0; i < MADE_COUNT; i++) {
        const struct cairn_torch_dtype *dtype = cairn_torch_dtype_named(made_dtypes[i]);
        struct cairn_torch_view view = {.dtype = dtype,
                                        .dims = 2,
                                        .shape = {2, 3},
                                        .stride = {3, 1},
                                        .requires_grad = i == 1,
                                        .parameter = i < 2};

        (void)snprintf(keys[i], 8, "%u", i);
        storages[i] = (struct cairn_torch_filled){.bytes = MADE_ELEMENTS * dtype->element_bytes};
        cairn_pickle_put(
            tree, weights, cairn_pickle_text(tree, made_dtypes[i]),
            cairn_torch_tensor_node(
                &builder, cairn_torch_storage(&builder, dtype, keys[i], storages[i].bytes), &view));
    }
    cairn_pickle_put(tree, root, cairn_pickle_text(tree, "size"),
                     cairn_torch_size(&builder, extents, 2));
    cairn_pickle_put(tree, root, cairn_pickle_text(tree, "dtype"),
                     cairn_torch_dtype_node(&builder, cairn_torch_dtype_named("bfloat16")));
    cairn_pickle_put(tree, root, cairn_pickle_text(tree, "raw"),
                     cairn_pickle_borrow(tree, CAIRN_PICKLE_BYTES, raw, sizeof(raw)));
    return root;
}

static void
make_every_dtype(const char *path)
{
    struct cairn_torch_filled storages[MADE_COUNT];
    char keys[MADE_COUNT][8];
    struct cairn_pickle tree;
    struct cairn_torch_plan plan;
    struct cairn_pickle_node *root;
    int fd = -1;

    cairn_pickle_init(&tree, MEMORY_BYTES);
    root = made_tree(&tree, storages, keys);
    assert_int_equal(cairn_pickle_done(&tree), CAIRN_OK);
    assert_int_equal(cairn_torch_plan_init(&plan, "made", &tree, root, storages, MADE_COUNT, NULL),
                     CAIRN_OK);
    assert_int_equal(cairn_file_open(AT_FDCWD, path, CAIRN_FILE_CREATE, &fd), CAIRN_OK);
    for (uint32_t i = 0; i < MADE_COUNT; i++) {
        struct cairn_zip_planned *planned = cairn_torch_plan_storage_at(&plan, i);
        uint8_t bytes[MADE_ELEMENTS * 16];

        for (uint64_t b = 0; b < planned->bytes; b++)
            bytes[b] = (uint8_t)(strcmp(made_dtypes[i], "bool") == 0 ? b % 2 : b + i);
        assert_int_equal(cairn_file_write_at(fd, planned->at, bytes, planned->bytes), CAIRN_OK);
        planned->crc32 = cairn_crc32(0, bytes, planned->bytes);
    }
    assert_int_equal(write_torch_plan(&plan, fd), CAIRN_OK);
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
    cairn_torch_plan_fini(&plan);
    cairn_pickle_fini(&tree);
}

static void
what_is_built_is_read_as_it_was_meant(void **state)
{
    struct cairn_torch_file file;
    char path[64];
    int fd;

    temporary_path(path);
    make_every_dtype(path);
    fd = open_fixture(path, &file);
    assert_int_equal(file.tensor_count, MADE_COUNT);
    for (uint32_t i = 0; i < MADE_COUNT; i++) {
        const struct cairn_torch_tensor *tensor = &file.tensors[i];

        assert_string_equal(tensor->name + strlen("weights."), made_dtypes[i]);
        assert_string_equal(tensor->view.dtype->name, made_dtypes[i]);
        assert_true(tensor->contiguous && tensor->view.parameter == (i < 2) &&
                    tensor->view.requires_grad == (i == 1));
        assert_int_equal(tensor->bytes, MADE_ELEMENTS * tensor->view.dtype->element_bytes);
    }
    cairn_torch_close(&file);
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
    assert_int_equal(unlink(path), 0);
}

static int
program(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--list") == 0) {
        char *listing = listing_of(argv[2]);

        (void)fputs(listing, stdout);
        free(listing);
    } else if (argc == 4 && strcmp(argv[1], "--rewrite") == 0) {
        rewrite(argv[2], argv[3], "archive");
    } else if (argc == 4 && strcmp(argv[1], "--sparse") == 0) {
        make_sparse(argv[2], (uint64_t)strtoul(argv[3], NULL, 10));
    } else if (argc == 3 && strcmp(argv[1], "--make") == 0) {
        make_every_dtype(argv[2]);
    } else {
        return 64;
    }
    return 0;
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_what_pytorch_says),
        cmocka_unit_test(a_file_written_again_is_the_same_file),
        cmocka_unit_test(another_form_written_again_has_the_same_tensors),
        cmocka_unit_test(what_is_built_is_read_as_it_was_meant),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(every_flipped_byte_is_refused_or_stays_inside),
        cmocka_unit_test(other_files_are_told_by_name),
        cmocka_unit_test(a_tensor_never_reaches_past_its_storage),
        cmocka_unit_test(archives_that_say_something_else_are_refused),
        cmocka_unit_test(an_old_file_of_a_big_endian_machine_is_refused),
        cmocka_unit_test(storages_must_be_there_and_whole),
        cmocka_unit_test(endless_paths_are_refused),
        cmocka_unit_test(more_than_4_gib_is_found_again),
    };

    if (argc > 1) {
        cairn_log_setup(CAIRN_LOG_INFO, NULL, NULL);
        return program(argc, argv);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
