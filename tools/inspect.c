/* tools/inspect.c - `cairn inspect`: describes a checkpoint from its metadata alone. */
#include "snapshot/reshard_pieces.h"
#include "tools/convert/formats.h"
#include "snapshot/box.h"
#include "tools/checkpoint_verbs.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <stdlib.h>

enum {
    SHAPE_BYTES = 192,
    PART_TENSORS = 256,
    LISTED_MAX = 1000 /* in the table, which people read */
};

static const char about[] =
    "Shows the metadata of the checkpoint PATH: format, writer, parallelism, and tensors with type "
    "and shape. The table has the first 1000 tensors, JSON all of them and where their parts are. "
    "Reads no tensor data and executes nothing.";
static const char examples[] = "  cairn inspect ckpt/step-1000\n"
                               "  cairn inspect ckpt/step-1000 -o json | jq '.tensors[].name'\n";

/* A checkpoint, and which pieces belong to which tensor. */
struct view {
    const struct cairn_checkpoint *checkpoint;
    struct cairn_piece_table table; /* pieces by tensor */
    uint32_t *tied_to;              /* [tensors], UINT32_MAX where it is not an alias */
};

static cairn_err
view_init(struct view *view, const struct cairn_checkpoint *checkpoint)
{
    uint32_t count = cairn_layout_tensor_count(checkpoint->layout);

    view->checkpoint = checkpoint;
    view->tied_to = malloc(((size_t)count + 1) * sizeof(*view->tied_to));
    if (!view->tied_to)
        return CAIRN_NOMEM;
    for (uint32_t t = 0; t < count; t++)
        view->tied_to[t] = UINT32_MAX;
    for (uint32_t i = 0; i < checkpoint->alias_count; i++)
        view->tied_to[checkpoint->aliases[i].tensor] = checkpoint->aliases[i].of;
    return cairn_piece_table_init(&view->table, checkpoint->layout);
}

static void
view_fini(struct view *view)
{
    cairn_piece_table_fini(&view->table);
    free(view->tied_to);
}

/* ---- table ---- */

static void
print_summary(const struct cairn_checkpoint *checkpoint)
{
    const struct cairn_parallelism *p = &checkpoint->parallelism;
    uint64_t bytes[CAIRN_OPAQUE + 1] = {0}, file_bytes = 0;
    uint32_t counts[CAIRN_OPAQUE + 1] = {0}, files = 0;
    char shown[CAIRN_SHOWN_BYTES];

    for (uint32_t t = 0; t < cairn_layout_tensor_count(checkpoint->layout); t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(checkpoint->layout, t);

        counts[tensor->kind]++;
        bytes[tensor->kind] += cairn_tensor_bytes(tensor);
    }
    for (uint32_t c = 0; c < checkpoint->container_count; c++)
        if (checkpoint->containers[c].path) {
            files++;
            file_bytes += checkpoint->containers[c].bytes;
        }
    printf("path       %s\nformat     %s%s%s\n", checkpoint->place.path, checkpoint->format->name,
           checkpoint->framework[0] ? ", by " : "", checkpoint->framework);
    if (checkpoint->step_known)
        printf("step       %" PRIu64 "\n", checkpoint->step);
    if (p->tp || p->pp || p->vpp || p->dp || p->ep || p->etp)
        printf("parallel   tp %" PRIu32 ", pp %" PRIu32 ", vpp %" PRIu32 ", dp %" PRIu32
               ", ep %" PRIu32 ", etp %" PRIu32 " (0: unknown)\n",
               p->tp, p->pp, p->vpp, p->dp, p->ep, p->etp);
    printf("files      %" PRIu32 ", %s\n", files, cairn_show_bytes(file_bytes, shown));
    for (enum cairn_kind kind = CAIRN_PARAM; kind <= CAIRN_OPAQUE; kind++)
        if (counts[kind])
            printf("%-10s %" PRIu32 ", %s\n", cairn_kind_name(kind), counts[kind],
                   cairn_show_bytes(bytes[kind], shown));
    if (checkpoint->alias_count)
        printf("tied       %" PRIu32 " of them to others\n", checkpoint->alias_count);
}

static void
print_tensors(const struct view *view)
{
    const struct cairn_checkpoint *checkpoint = view->checkpoint;
    char shape[SHAPE_BYTES], shown[CAIRN_SHOWN_BYTES];
    uint32_t count = cairn_layout_tensor_count(checkpoint->layout);

    printf("\n%-9s %-8s %-20s %10s %6s  %s\n", "kind", "type", "shape", "bytes", "parts", "name");
    for (uint32_t t = 0; t < count && t < LISTED_MAX; t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(checkpoint->layout, t);
        uint32_t of = view->tied_to[t];

        printf("%-9s %-8s %-20s %10s %6zu  %s", cairn_kind_name(tensor->kind),
               cairn_dtype_name(tensor->dtype), cairn_show_shape(tensor, shape, sizeof(shape)),
               cairn_show_bytes(cairn_tensor_bytes(tensor), shown),
               view->table.begin[t + 1] - view->table.begin[t], tensor->name);
        if (of != UINT32_MAX)
            printf(" = %s", cairn_layout_tensor(checkpoint->layout, of)->name);
        printf("\n");
    }
    if (count > LISTED_MAX)
        printf("… and %" PRIu32 " more; -o json lists every one\n", count - LISTED_MAX);
}

/* ---- json ---- */

static void
write_numbers(struct cairn_json_writer *writer, const char *key, const uint64_t *values,
              uint32_t count)
{
    cairn_json_put_array(writer, key);
    for (uint32_t d = 0; d < count; d++)
        cairn_json_write_u64(writer, values[d]);
    cairn_json_write_array_end(writer);
}

static void
write_piece(struct cairn_json_writer *writer, const struct cairn_checkpoint *checkpoint,
            const struct cairn_tensor *tensor, const struct cairn_piece *piece)
{
    const struct cairn_container *container = &checkpoint->containers[piece->container];

    cairn_json_write_object_begin(writer);
    cairn_json_write_key(writer, "file");
    if (container->path) /* "": the checkpoint is this one file */
        cairn_json_write_string(writer, container->path);
    else
        cairn_json_write_null(writer);
    cairn_json_put_u64(writer, "offset_bytes", piece->offset_bytes);
    write_numbers(writer, "start", piece->start, tensor->dims);
    write_numbers(writer, "extent", piece->extent, tensor->dims);
    write_numbers(writer, "stride_bytes", piece->stride_bytes, tensor->dims);
    cairn_json_write_object_end(writer);
}

static void
write_tensor(struct cairn_json_writer *writer, const struct view *view, uint32_t t)
{
    const struct cairn_checkpoint *checkpoint = view->checkpoint;
    const struct cairn_piece_table *table = &view->table;
    const struct cairn_tensor *tensor = cairn_layout_tensor(checkpoint->layout, t);
    uint32_t of = view->tied_to[t];

    cairn_json_write_line(writer);
    cairn_json_write_object_begin(writer);
    cairn_json_put_string(writer, "name", tensor->name);
    cairn_json_put_string(writer, "kind", cairn_kind_name(tensor->kind));
    cairn_json_put_string(writer, "dtype", cairn_dtype_name(tensor->dtype));
    write_numbers(writer, "shape", tensor->shape, tensor->dims);
    cairn_json_put_u64(writer, "bytes", cairn_tensor_bytes(tensor));
    if (of != UINT32_MAX) {
        cairn_json_put_string(writer, "tied_to", cairn_layout_tensor(checkpoint->layout, of)->name);
    }
    cairn_json_put_array(writer, "slices");
    for (size_t i = table->begin[t]; i < table->begin[t + 1]; i++)
        write_piece(writer, checkpoint, tensor, table->piece[i]);
    cairn_json_write_array_end(writer);
    cairn_json_write_object_end(writer);
}

static void
write_head(struct cairn_json_writer *writer, const struct cairn_checkpoint *checkpoint)
{
    const struct cairn_parallelism *p = &checkpoint->parallelism;

    cairn_json_put_u64(writer, "schema", 1);
    cairn_json_put_string(writer, "path", checkpoint->place.path);
    cairn_json_put_string(writer, "format", checkpoint->format->name);
    cairn_json_put_string(writer, "framework", checkpoint->framework);
    cairn_json_write_key(writer, "step");
    if (checkpoint->step_known)
        cairn_json_write_u64(writer, checkpoint->step);
    else
        cairn_json_write_null(writer);
    cairn_json_write_key(writer, "parallelism"); /* 0: not said */
    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "tp", p->tp);
    cairn_json_put_u64(writer, "pp", p->pp);
    cairn_json_put_u64(writer, "vpp", p->vpp);
    cairn_json_put_u64(writer, "dp", p->dp);
    cairn_json_put_u64(writer, "ep", p->ep);
    cairn_json_put_u64(writer, "etp", p->etp);
    cairn_json_write_object_end(writer);
    cairn_json_put_array(writer, "files");
    for (uint32_t c = 0; c < checkpoint->container_count; c++) {
        if (!checkpoint->containers[c].path)
            continue;
        cairn_json_write_object_begin(writer);
        cairn_json_put_string(writer, "path", checkpoint->containers[c].path);
        cairn_json_put_u64(writer, "bytes", checkpoint->containers[c].bytes);
        cairn_json_write_object_end(writer);
    }
    cairn_json_write_array_end(writer);
    cairn_json_put_array(writer, "warnings");
    for (uint32_t i = 0; i < checkpoint->warning_count; i++)
        cairn_json_write_string(writer, checkpoint->warnings[i]);
    cairn_json_write_array_end(writer);
}

static bool
print_json(const struct view *view)
{
    const struct cairn_checkpoint *checkpoint = view->checkpoint;
    struct cairn_json_writer writer;

    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    write_head(&writer, checkpoint);
    cairn_json_put_array(&writer, "tensors");
    for (uint32_t t = 0; t < cairn_layout_tensor_count(checkpoint->layout); t++) {
        write_tensor(&writer, view, t);
        if (t % PART_TENSORS == 0)
            cairn_json_print_part(&writer);
    }
    cairn_json_write_array_end(&writer);
    cairn_json_write_object_end(&writer);
    return cairn_json_print_rest("inspect", &writer);
}

int
cairn_verb_inspect(int argc, char **argv)
{
    const char *output = NULL, *path;
    bool follow_links = false;
    const struct cairn_flag flags[] = {
        {"follow-links", 0, NULL, "follow links out of the checkpoint's folder", NULL,
         &follow_links},
        {"output", 'o', "table|json", "print a table (default) or JSON", &output, NULL},
    };
    const struct cairn_usage usage = {"inspect", "PATH [-o table|json]",       about,  examples,
                                      flags,     sizeof flags / sizeof *flags, "FILE", NULL};
    struct cairn_complaint complaint = {""};
    struct cairn_checkpoint checkpoint = {.place.dir_fd = -1};
    struct view view = {0};
    bool json, printed = true;
    int exit_code;
    cairn_err err;

    if (!cairn_words_parse(&usage, argc, argv, &path, 1, "the checkpoint", &exit_code))
        return exit_code;
    if (!cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o %s: expected table or json", output);
    cairn_checkpoint_log_setup();
    cairn_place_follow_links(follow_links);
    err = cairn_checkpoint_detect(path, cairn_formats, 0, &checkpoint, &complaint);
    if (!err)
        err = view_init(&view, &checkpoint);
    if (!err && json) {
        printed = print_json(&view);
    } else if (!err) {
        cairn_checkpoint_print_warnings("inspect", &checkpoint);
        print_summary(&checkpoint);
        print_tensors(&view);
        printed = fflush(stdout) == 0;
    }
    view_fini(&view);
    cairn_checkpoint_close(&checkpoint);
    if (err)
        return cairn_checkpoint_error("inspect", err, &complaint);
    return printed ? CAIRN_EXIT_OK : CAIRN_EXIT_IO;
}
