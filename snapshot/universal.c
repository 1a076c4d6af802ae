/*
 * snapshot/universal.c - the plan of a universal checkpoint: the file and place of each tensor, and
 * the files' headers.
 *
 * Assignment: tensors from large to small (then by name); each goes to the writer that holds most
 * of its bytes (then has the least assigned, then the smallest number) among those that stay within
 * their fair share plus a twentieth; if none of the holders does, to the writer with the least
 * assigned. In a file larger elements come first, then names in byte order, so every tensor is
 * aligned to its elements.
 */
#include "snapshot/universal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "snapshot/box.h"
#include "snapshot/universal_index.h"
#include "base/wire.h"

static const char *const class_names[] = {[CAIRN_CLASS_PARAM] = "param",
                                          [CAIRN_CLASS_OPTIMIZER] = "optimizer",
                                          [CAIRN_CLASS_OPAQUE] = "opaque"};
enum { CLASS_COUNT = 3 };

const char *
cairn_universal_class_name(enum cairn_universal_class kind)
{
    return (unsigned)kind < CLASS_COUNT ? class_names[kind] : "?";
}

enum cairn_universal_class
cairn_universal_class_of(enum cairn_kind kind)
{
    switch (kind) {
    case CAIRN_OPTIMIZER:
        return CAIRN_CLASS_OPTIMIZER;
    case CAIRN_OPAQUE:
        return CAIRN_CLASS_OPAQUE;
    default:
        return CAIRN_CLASS_PARAM; /* a model's state is its parameters and its buffers */
    }
}

void
cairn_universal_fini(struct cairn_universal *universal)
{
    for (uint32_t f = 0; universal->files && f < universal->file_count; f++)
        free(universal->files[f].block_crcs);
    free(universal->files);
    free(universal->tensors);
    memset(universal, 0, sizeof(*universal));
}

cairn_err
cairn_universal_tensor_bytes(const struct cairn_tensor *tensor, uint64_t *bytes)
{
    uint64_t sum = cairn_dtype_bytes(tensor->dtype);
    bool empty = false;

    if (sum == 0 || tensor->dims > CAIRN_DIMS_MAX)
        return CAIRN_INVAL;
    for (uint32_t d = 0; d < tensor->dims; d++) {
        empty = empty || tensor->shape[d] == 0;
        if (tensor->shape[d] > INT64_MAX) /* what readers count in */
            return CAIRN_INVAL;
        if (!empty && __builtin_mul_overflow(sum, tensor->shape[d], &sum))
            return CAIRN_INVAL;
    }
    if (!empty && sum > INT64_MAX)
        return CAIRN_INVAL;
    *bytes = empty ? 0 : sum;
    return CAIRN_OK;
}

bool
cairn_universal_name_fits(const char *name, size_t bytes_max)
{
    size_t bytes = strnlen(name, bytes_max);

    return bytes > 0 && bytes < bytes_max && cairn_utf8_valid(name, bytes) &&
           strcmp(name, "__metadata__") != 0;
}

struct cairn_slice
cairn_universal_slice(const struct cairn_tensor *tensor, const char *name)
{
    struct cairn_slice slice = {.name = name,
                                .dtype = tensor->dtype,
                                .kind = tensor->kind,
                                .dims = tensor->dims,
                                .replica_count = 1,
                                .device = -1};

    memcpy(slice.shape, tensor->shape, sizeof(slice.shape));
    memcpy(slice.extent, tensor->shape, sizeof(slice.extent));
    return slice;
}

/* ---- headers ---- */

cairn_err
cairn_universal_header_pack(const struct cairn_universal *universal, uint32_t file, uint8_t **bytes,
                            size_t *bytes_len)
{
    const struct cairn_universal_file *described = &universal->files[file];
    struct cairn_json_writer writer;
    char number[24], *text = NULL;
    uint8_t *header = NULL;
    size_t text_bytes = 0, total;
    cairn_err err;

    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_write_key(&writer, "__metadata__"); /* strings only, by the format */
    cairn_json_write_object_begin(&writer);
    cairn_json_put_string(&writer, "format", "pt");
    cairn_json_put_string(&writer, "cairn_job", universal->job);
    cairn_json_write_key(&writer, "cairn_epoch");
    (void)snprintf(number, sizeof(number), "%" PRIu64, universal->generation.epoch);
    cairn_json_write_string(&writer, number);
    cairn_json_write_key(&writer, "cairn_step");
    (void)snprintf(number, sizeof(number), "%" PRIu64, universal->generation.step);
    cairn_json_write_string(&writer, number);
    cairn_json_write_object_end(&writer);
    for (uint32_t i = 0; i < described->tensor_count; i++) {
        const struct cairn_universal_tensor *tensor =
            &universal->tensors[described->tensor_first + i];

        cairn_json_put_object(&writer, tensor->tensor.name);
        cairn_json_put_string(&writer, "dtype", cairn_dtype_name(tensor->tensor.dtype));
        cairn_json_put_array(&writer, "shape");
        for (uint32_t d = 0; d < tensor->tensor.dims; d++)
            cairn_json_write_u64(&writer, tensor->tensor.shape[d]);
        cairn_json_write_array_end(&writer);
        cairn_json_put_array(&writer, "data_offsets");
        cairn_json_write_u64(&writer, tensor->offset_bytes);
        cairn_json_write_u64(&writer, tensor->offset_bytes + tensor->bytes);
        cairn_json_write_array_end(&writer);
        cairn_json_write_object_end(&writer);
    }
    cairn_json_write_object_end(&writer);
    err = cairn_json_writer_done(&writer, &text, &text_bytes);
    if (err)
        return err;
    total = (8 + text_bytes + CAIRN_UNIVERSAL_ALIGN_BYTES - 1) / CAIRN_UNIVERSAL_ALIGN_BYTES *
            CAIRN_UNIVERSAL_ALIGN_BYTES;
    header = total - 8 > CAIRN_UNIVERSAL_HEADER_BYTES_MAX ? NULL : malloc(total);
    if (!header) {
        free(text);
        return total - 8 > CAIRN_UNIVERSAL_HEADER_BYTES_MAX ? CAIRN_INVAL : CAIRN_NOMEM;
    }
    cairn_little_put(header, 8, total - 8);
    memcpy(header + 8, text, text_bytes);
    memset(header + 8 + text_bytes, ' ', total - 8 - text_bytes);
    free(text);
    *bytes = header;
    *bytes_len = total;
    return CAIRN_OK;
}

/* ---- the plan ---- */

struct candidate {
    const struct cairn_tensor *tensor;
    uint64_t bytes;
    uint32_t index;  /* in the layout */
    uint32_t writer; /* index into the sorted writers */
};

static int
by_size(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return strcmp(x->tensor->name, y->tensor->name);
}

static int
by_place(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    enum cairn_universal_class x_class = cairn_universal_class_of(x->tensor->kind);
    enum cairn_universal_class y_class = cairn_universal_class_of(y->tensor->kind);
    size_t x_element = cairn_dtype_bytes(x->tensor->dtype);
    size_t y_element = cairn_dtype_bytes(y->tensor->dtype);

    if (x_class != y_class)
        return x_class < y_class ? -1 : 1;
    if (x->writer != y->writer)
        return x->writer < y->writer ? -1 : 1;
    if (x_element != y_element)
        return x_element > y_element ? -1 : 1;
    return strcmp(x->tensor->name, y->tensor->name);
}

static int
by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* What one writer holds of one tensor. */
struct held {
    uint64_t bytes;
    uint32_t tensor; /* in the layout */
    uint32_t writer;
};

struct plan {
    uint32_t *writers; /* sorted */
    uint32_t writer_count;
    uint32_t tensor_count;
    struct candidate *candidates;
    struct held *held;  /* by tensor, then writer */
    size_t *first;      /* [tensor_count + 1]: where those of a tensor begin */
    uint64_t *assigned; /* [writer_count] */
    uint64_t total;
};

static void
plan_fini(struct plan *plan)
{
    free(plan->writers);
    free(plan->candidates);
    free(plan->held);
    free(plan->first);
    free(plan->assigned);
}

static int
by_tensor(const void *a, const void *b)
{
    const struct held *x = a, *y = b;

    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    return x->writer < y->writer ? -1 : x->writer > y->writer;
}

/* Sums what each writer holds of each tensor. */
static cairn_err
sum_held(struct plan *plan, const struct cairn_layout *source)
{
    size_t piece_count = cairn_layout_piece_count(source), used = 0, merged = 0;

    plan->held = malloc((piece_count + 1) * sizeof(*plan->held));
    plan->first = calloc((size_t)plan->tensor_count + 1, sizeof(*plan->first));
    if (!plan->held || !plan->first)
        return CAIRN_NOMEM;
    for (size_t p = 0; p < piece_count; p++) {
        const struct cairn_piece *piece = cairn_layout_piece(source, p);
        const struct cairn_tensor *tensor = cairn_layout_tensor(source, piece->tensor);
        const uint32_t *found = bsearch(&piece->container, plan->writers, plan->writer_count,
                                        sizeof(*found), by_number);

        if (!found)
            continue;
        plan->held[used++] = (struct held){cairn_dtype_bytes(tensor->dtype) *
                                               cairn_shape_elements(tensor->dims, piece->extent),
                                           piece->tensor, (uint32_t)(found - plan->writers)};
    }
    qsort(plan->held, used, sizeof(*plan->held), by_tensor);
    for (size_t i = 0; i < used; i++) {
        if (merged > 0 && by_tensor(&plan->held[merged - 1], &plan->held[i]) == 0) {
            plan->held[merged - 1].bytes += plan->held[i].bytes;
            continue;
        }
        plan->held[merged++] = plan->held[i];
        plan->first[plan->held[i].tensor + 1]++;
    }
    for (uint32_t t = 0; t < plan->tensor_count; t++)
        plan->first[t + 1] += plan->first[t];
    return CAIRN_OK;
}

/* Copies the inputs and checks them. */
static cairn_err
plan_init(struct plan *plan, const struct cairn_layout *source, const uint32_t *writers,
          uint32_t writer_count)
{
    uint32_t count = cairn_layout_tensor_count(source);

    if (writer_count == 0 || writer_count > CAIRN_NODES_MAX || count == 0) {
        CAIRN_LOG_AT(ERROR, "spill: nothing to plan writers=%u tensors=%u", writer_count, count);
        return CAIRN_INVAL;
    }
    plan->writer_count = writer_count;
    plan->tensor_count = count;
    plan->writers = malloc(writer_count * sizeof(*plan->writers));
    plan->candidates = calloc(count, sizeof(*plan->candidates));
    plan->assigned = calloc(writer_count, sizeof(*plan->assigned));
    if (!plan->writers || !plan->candidates || !plan->assigned)
        return CAIRN_NOMEM;
    memcpy(plan->writers, writers, writer_count * sizeof(*writers));
    qsort(plan->writers, writer_count, sizeof(*writers), by_number);
    for (uint32_t w = 1; w < writer_count; w++)
        if (plan->writers[w] == plan->writers[w - 1]) {
            CAIRN_LOG_AT(ERROR, "spill: a writer is named twice container=%u", plan->writers[w]);
            return CAIRN_INVAL;
        }
    for (uint32_t t = 0; t < count; t++) {
        struct candidate *candidate = &plan->candidates[t];

        candidate->tensor = cairn_layout_tensor(source, t);
        candidate->index = t;
        if (!cairn_universal_name_fits(candidate->tensor->name, CAIRN_NAME_BYTES_MAX) ||
            cairn_universal_tensor_bytes(candidate->tensor, &candidate->bytes) ||
            __builtin_add_overflow(plan->total, candidate->bytes, &plan->total) ||
            plan->total > INT64_MAX) {
            CAIRN_LOG_AT(ERROR, "spill: a tensor cannot be written name=%s: its name or size",
                         candidate->tensor->name);
            return CAIRN_INVAL;
        }
    }
    return sum_held(plan, source);
}

static void
assign(struct plan *plan)
{
    uint64_t share = plan->total / plan->writer_count;
    uint64_t limit = share + share / 20;

    qsort(plan->candidates, plan->tensor_count, sizeof(*plan->candidates), by_size);
    for (uint32_t t = 0; t < plan->tensor_count; t++) {
        struct candidate *candidate = &plan->candidates[t];
        size_t end = plan->first[candidate->index + 1];
        uint32_t holder = UINT32_MAX, least = 0;
        uint64_t most = 0;

        for (uint32_t w = 1; w < plan->writer_count; w++)
            if (plan->assigned[w] < plan->assigned[least])
                least = w;
        for (size_t h = plan->first[candidate->index]; h < end; h++) {
            const struct held *held = &plan->held[h];
            uint64_t assigned = plan->assigned[held->writer];

            if (held->bytes < most || assigned + candidate->bytes > limit ||
                (held->bytes == most && holder != UINT32_MAX && assigned >= plan->assigned[holder]))
                continue;
            holder = held->writer;
            most = held->bytes;
        }
        candidate->writer = holder != UINT32_MAX ? holder : least;
        plan->assigned[candidate->writer] += candidate->bytes;
    }
    qsort(plan->candidates, plan->tensor_count, sizeof(*plan->candidates), by_place);
}

/* Whether candidate t starts a new file. */
static bool
starts_file(const struct plan *plan, uint32_t t)
{
    const struct candidate *now = &plan->candidates[t], *before = now - 1;

    return t == 0 || now->writer != before->writer ||
           cairn_universal_class_of(now->tensor->kind) !=
               cairn_universal_class_of(before->tensor->kind);
}

/* Turns the ordered candidates into files and tensors. */
static cairn_err
lay_out(const struct plan *plan, struct cairn_universal *out)
{
    uint32_t per_class[CLASS_COUNT] = {0}, number[CLASS_COUNT] = {0};
    struct cairn_universal_file *file = NULL;

    for (uint32_t t = 0; t < plan->tensor_count; t++)
        if (starts_file(plan, t)) {
            per_class[cairn_universal_class_of(plan->candidates[t].tensor->kind)]++;
            out->file_count++;
        }
    out->tensor_count = plan->tensor_count;
    out->tensors = calloc(out->tensor_count, sizeof(*out->tensors));
    out->files = calloc(out->file_count, sizeof(*out->files));
    if (!out->tensors || !out->files)
        return CAIRN_NOMEM;
    for (uint32_t t = 0; t < plan->tensor_count; t++) {
        const struct candidate *candidate = &plan->candidates[t];
        enum cairn_universal_class kind = cairn_universal_class_of(candidate->tensor->kind);
        struct cairn_universal_tensor *tensor = &out->tensors[t];

        if (starts_file(plan, t)) {
            file = file ? file + 1 : out->files;
            file->kind = kind;
            file->writer = plan->writers[candidate->writer];
            file->tensor_first = t;
            (void)snprintf(file->name, sizeof(file->name), "%s-%05u-of-%05u.safetensors",
                           class_names[kind], ++number[kind], per_class[kind]);
        }
        tensor->tensor = *candidate->tensor;
        tensor->file = (uint32_t)(file - out->files);
        tensor->offset_bytes = file->data_bytes;
        tensor->bytes = candidate->bytes;
        file->data_bytes += candidate->bytes;
        file->tensor_count++;
    }
    for (uint32_t f = 0; f < out->file_count; f++)
        out->files[f].block_count = out->files[f].data_bytes / CAIRN_BLOCK_BYTES +
                                    (out->files[f].data_bytes % CAIRN_BLOCK_BYTES != 0);
    return CAIRN_OK;
}

cairn_err
cairn_universal_plan(const struct cairn_layout *source, const uint32_t *writers,
                     uint32_t writer_count, const char *job, uint64_t job_id,
                     struct cairn_generation_id generation, struct cairn_universal *out)
{
    struct cairn_universal universal = {.job_id = job_id, .generation = generation};
    struct plan plan = {0};
    cairn_err err;

    if (!cairn_universal_name_fits(job, sizeof(universal.job))) {
        CAIRN_LOG_AT(ERROR, "spill: the job's name is empty, too long or not UTF-8");
        return CAIRN_INVAL;
    }
    memcpy(universal.job, job, strlen(job) + 1);
    err = plan_init(&plan, source, writers, writer_count);
    if (err)
        goto done;
    assign(&plan);
    err = lay_out(&plan, &universal);
    if (err)
        goto done;
    for (uint32_t f = 0; f < universal.file_count; f++) {
        uint8_t *header = NULL;
        size_t header_bytes = 0;

        err = cairn_universal_header_pack(&universal, f, &header, &header_bytes);
        if (err)
            goto done;
        free(header);
        universal.files[f].data_offset = header_bytes;
    }
    *out = universal;
    memset(&universal, 0, sizeof(universal));
done:
    plan_fini(&plan);
    cairn_universal_fini(&universal);
    return err;
}
