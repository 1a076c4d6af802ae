/* tools/convert.c - `cairn convert`: from one checkpoint to another, with the proof that they are
 * equal. */
#include "tools/convert/formats.h"
#include "tools/convert/engine/conversion.h"
#include "tools/convert/maps/language.h"
#include "tools/checkpoint_verbs.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    ABOUT_BYTES = 4096,
    DROPS_MAX = 64,
    SETS_MAX = 64,
    RANKS_MAX = 1 << 20,
    MAP_HELP_BYTES = 256
};

static const char about[] =
    "Converts the checkpoint SRC into DST: weights, optimizer state and everything else. Detects "
    "SRC's format, executes nothing, reads and writes every byte once, keeps memory below the "
    "limit, and finally compares the fingerprints of both sides. If a conversion was killed or "
    "failed, the same command continues it.\n"
    "\n"
    "DST is a directory, or for single-file formats a file (a directory if it ends in '/').";
static const char examples[] =
    "  cairn convert ckpt/ out/ --to universal\n"
    "  cairn convert ckpt/ model.safetensors --to safetensors --dry-run\n"
    "  cairn convert ckpt.pt zero/ --to deepspeed --zero 2 --dp 8 --dtype BF16\n"
    "  cairn convert Llama-3-8B/ out/ --to torch --map llama\n";

struct request {
    const char *to, *tp, *pp, *dp, *ep, *etp, *vpp, *dtype, *drop, *map, *set, *zero, *job,
        *threads, *memory, *output;
    bool dry_run, follow_links, allow_expanded, canonical_names, json;
};

static bool
take_ranks(const struct cairn_usage *usage, const char *name, const char *text, uint32_t *out,
           int *exit_code)
{
    char *end;
    unsigned long value;

    if (!text)
        return true;
    value = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || value < 1 || value > RANKS_MAX) {
        *exit_code = cairn_usage_error(usage, "--%s %s: expected a number from 1 to %d", name, text,
                                       RANKS_MAX);
        return false;
    }
    *out = (uint32_t)value;
    return true;
}

/* "bf16" and "BF16" are the same; 0 if it is not a floating type. */
static enum cairn_dtype
take_dtype(const char *text)
{
    static const struct {
        const char *name;
        enum cairn_dtype dtype;
    } known[] = {{"F64", CAIRN_F64},     {"F32", CAIRN_F32},      {"F16", CAIRN_F16},
                 {"BF16", CAIRN_BF16},   {"float64", CAIRN_F64},  {"float32", CAIRN_F32},
                 {"float16", CAIRN_F16}, {"bfloat16", CAIRN_BF16}};

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcasecmp(known[i].name, text) == 0)
            return known[i].dtype;
    return 0;
}

static bool
take_zero(const char *text, enum cairn_zero *out)
{
    static const char *const names[] = {"1", "2", "3", "bf16"};

    if (!text)
        return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcasecmp(names[i], text) == 0) {
            *out = (enum cairn_zero)(CAIRN_ZERO_1 + i);
            return true;
        }
    return false;
}

/* Splits "a,b" in place; false if there are more than parts_max. */
static bool
split_list(char *text, const char **parts, size_t parts_max, size_t *count)
{
    char *rest = NULL;

    *count = 0;
    for (char *part = strtok_r(text, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
        if (*count == parts_max)
            return false;
        parts[(*count)++] = part;
    }
    return true;
}

static const struct cairn_format *
find_target(const struct cairn_usage *usage, const char *name, int *exit_code)
{
    const struct cairn_format *format = name ? cairn_format_find(name) : NULL;
    char all[512] = "";
    size_t used = 0;

    if (format)
        return format;
    for (size_t i = 0; cairn_formats[i]; i++)
        if (used < sizeof(all))
            used += (size_t)snprintf(all + used, sizeof(all) - used, "%s%s", used ? ", " : "",
                                     cairn_formats[i]->name);
    *exit_code =
        name ? cairn_usage_error(usage, "--to %s: expected one of %s", name, all)
             : cairn_usage_error(usage, "--to: missing; name the target's format: one of %s", all);
    return NULL;
}

static bool
is_single_file(const struct cairn_format *format, const char *target)
{
    struct stat found;
    size_t bytes = strlen(target);

    if (!format->target_is_file || bytes == 0 || target[bytes - 1] == '/')
        return false;
    return stat(target, &found) != 0 || !S_ISDIR(found.st_mode);
}

/* The help of --map, with all that are built in. */
static void
list_maps(char help[MAP_HELP_BYTES])
{
    size_t used =
        (size_t)snprintf(help, MAP_HELP_BYTES, "rename and reshape tensors by a map file, or by");

    for (uint32_t i = 0; cairn_map_preset_name(i) && used < MAP_HELP_BYTES; i++)
        used += (size_t)snprintf(help + used, MAP_HELP_BYTES - used, "%s%s",
                                 i ? ", " : " one of: ", cairn_map_preset_name(i));
}

/* The help's text: what the verb does, and a table of the formats. */
static void
list_formats(char text[ABOUT_BYTES])
{
    size_t used =
        (size_t)snprintf(text, ABOUT_BYTES, "%s\n\nformats, each for reading and writing:", about);

    for (size_t i = 0; cairn_formats[i] && used < ABOUT_BYTES; i++)
        used += (size_t)snprintf(text + used, ABOUT_BYTES - used, "\n  %-20s %s",
                                 cairn_formats[i]->name, cairn_formats[i]->about);
}

/* ---- showing ---- */

static void
print_plan(const struct cairn_conversion *conversion)
{
    const struct cairn_conversion_report *report = &conversion->report;
    char a[CAIRN_SHOWN_BYTES], b[CAIRN_SHOWN_BYTES];

    printf("source     %s, %s", conversion->options->source, conversion->source.format->name);
    if (conversion->source.step_known)
        printf(", step %" PRIu64, conversion->source.step);
    printf("\ntarget     %s, %s, %" PRIu32 " file%s and %" PRIu32 " small one%s\n",
           conversion->options->target, conversion->output.format->name,
           conversion->output.file_count, conversion->output.file_count == 1 ? "" : "s",
           conversion->output.small_count, conversion->output.small_count == 1 ? "" : "s");
    printf("tensors    %" PRIu32 " parameters, %" PRIu32 " buffers, %" PRIu32
           " of optimizer state, %" PRIu32 " opaque",
           report->parameters, report->buffers, report->optimizer, report->opaque);
    if (report->aliases)
        printf(", %" PRIu32 " of them tied to others", report->aliases);
    printf("\n");
    if (report->map.mapped)
        printf("mapped     %" PRIu32 " tensors of %s to %" PRIu32
               " of %s by %s, each element once\n",
               report->map.mapped, report->map.from, report->map.made, report->map.to,
               conversion->options->map);
    if (report->from_masters)
        printf("masters    %" PRIu32
               " parameters are taken from the optimizer's float32, none cast\n",
               report->from_masters);
    if (report->dropped)
        printf("dropped    %" PRIu32 " tensors, as asked\n", report->dropped);
    if (report->cast)
        printf("cast       %" PRIu32 " tensors to %s\n", report->cast,
               cairn_dtype_name(conversion->options->output.dtype));
    printf("bytes      %s of tensors, %s written, %s read",
           cairn_show_bytes(report->source_bytes, a), cairn_show_bytes(report->target_bytes, b),
           cairn_show_bytes(report->read_bytes, (char[CAIRN_SHOWN_BYTES]){0}));
    if (report->replica_bytes)
        printf(", and %s of replicas compared", cairn_show_bytes(report->replica_bytes, a));
    printf("\nplan       %" PRIu64 " moves of %" PRIu64 " runs, mean %s\n", report->move_count,
           report->run_count,
           cairn_show_bytes(report->run_count ? report->read_bytes / report->run_count : 0, a));
    printf("memory     %" PRIu32 " thread%s with tiles of %s, below %s in all\n",
           report->thread_count, report->thread_count == 1 ? "" : "s",
           cairn_show_bytes(report->tile_bytes, a),
           cairn_show_bytes(conversion->options->memory_limit_bytes, b));
}

static void
print_result(const struct cairn_conversion *conversion)
{
    const struct cairn_conversion_report *report = &conversion->report;
    char a[CAIRN_SHOWN_BYTES], b[CAIRN_SHOWN_BYTES];
    double seconds = (double)report->run_ns / 1e9;

    print_plan(conversion);
    if (report->resumed)
        printf("resumed    %s were there from an earlier run, and verified\n",
               cairn_show_bytes(report->kept_bytes, a));
    printf(
        "took       %s, %s/s written\n", cairn_show_duration(report->run_ns, a),
        cairn_show_bytes(seconds > 0 ? (uint64_t)((double)report->target_bytes / seconds) : 0, b));
    printf("proof      %" PRIu32 " tensors are equal on both sides, by fingerprint\n",
           report->proved);
    if (report->cast)
        printf("           %" PRIu32 " were cast, so theirs differ\n", report->cast);
    if (report->carried)
        printf("           %" PRIu32 " opaque or tied are written in another form\n",
               report->carried);
    printf("           source %s\n           target %s\n", report->source_state,
           report->target_state);
}

static void
write_parallelism(struct cairn_json_writer *writer, const struct cairn_parallelism *parallelism)
{
    const struct {
        const char *name;
        uint32_t value;
    } fields[] = {{"tp", parallelism->tp}, {"pp", parallelism->pp}, {"vpp", parallelism->vpp},
                  {"dp", parallelism->dp}, {"ep", parallelism->ep}, {"etp", parallelism->etp}};

    cairn_json_put_object(writer, "parallelism");
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value) {
            cairn_json_put_u64(writer, fields[i].name, fields[i].value);
        }
    cairn_json_write_object_end(writer);
}

static void
write_numbers(struct cairn_json_writer *writer, const struct cairn_conversion_report *report)
{
    const struct {
        const char *name;
        uint64_t value;
    } fields[] = {{"parameters", report->parameters},
                  {"buffers", report->buffers},
                  {"optimizer", report->optimizer},
                  {"opaque", report->opaque},
                  {"tied", report->aliases},
                  {"dropped", report->dropped},
                  {"from_masters", report->from_masters},
                  {"mapped", report->map.mapped},
                  {"made", report->map.made},
                  {"dropped_by_map", report->map.dropped},
                  {"cast", report->cast},
                  {"source_bytes", report->source_bytes},
                  {"target_bytes", report->target_bytes},
                  {"read_bytes", report->read_bytes},
                  {"replica_bytes", report->replica_bytes},
                  {"moves", report->move_count},
                  {"runs", report->run_count},
                  {"threads", report->thread_count},
                  {"tile_bytes", report->tile_bytes}};

    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        cairn_json_put_u64(writer, fields[i].name, fields[i].value);
    }
}

/* Which map, and in which direction it was gone through. */
static void
write_map(struct cairn_json_writer *writer, const struct cairn_conversion *conversion)
{
    cairn_json_put_object(writer, "map");
    cairn_json_put_string(writer, "name", conversion->options->map);
    cairn_json_put_string(writer, "from", conversion->report.map.from);
    cairn_json_put_string(writer, "to", conversion->report.map.to);
    cairn_json_write_object_end(writer);
}

static void
write_side(struct cairn_json_writer *writer, const char *key, const char *path, const char *format,
           const struct cairn_parallelism *parallelism)
{
    cairn_json_put_object(writer, key);
    cairn_json_put_string(writer, "path", path);
    cairn_json_put_string(writer, "format", format);
    write_parallelism(writer, parallelism);
    cairn_json_write_object_end(writer);
}

static void
write_proof(struct cairn_json_writer *writer, const struct cairn_conversion_report *report)
{
    cairn_json_put_bool(writer, "resumed", report->resumed);
    cairn_json_put_u64(writer, "kept_bytes", report->kept_bytes);
    cairn_json_put_double(writer, "seconds", (double)report->run_ns / 1e9);
    cairn_json_put_u64(writer, "proved", report->proved);
    cairn_json_put_u64(writer, "carried", report->carried);
    cairn_json_put_string(writer, "fingerprint_source", report->source_state);
    cairn_json_put_string(writer, "fingerprint_target", report->target_state);
    cairn_json_put_string(writer, "fingerprint_source_opaque", report->source_opaque);
    cairn_json_put_string(writer, "fingerprint_target_opaque", report->target_opaque);
    cairn_json_write_key(writer, "equal"); /* null: what was cast cannot be */
    if (report->cast)
        cairn_json_write_null(writer);
    else
        cairn_json_write_bool(writer, strcmp(report->source_state, report->target_state) == 0);
}

static bool
print_json(const struct cairn_conversion *conversion, bool ran)
{
    struct cairn_json_writer writer;

    cairn_json_begin(&writer);
    cairn_json_put_bool(&writer, "dry_run", !ran);
    write_side(&writer, "source", conversion->options->source, conversion->source.format->name,
               &conversion->source.parallelism);
    write_side(&writer, "target", conversion->options->target, conversion->output.format->name,
               &conversion->options->output.parallelism);
    write_numbers(&writer, &conversion->report);
    if (conversion->options->map)
        write_map(&writer, conversion);
    cairn_json_put_u64(&writer, "memory_limit_bytes", conversion->options->memory_limit_bytes);
    cairn_json_put_u64(&writer, "files", conversion->output.file_count);
    if (ran)
        write_proof(&writer, &conversion->report);
    cairn_json_write_object_end(&writer);
    return cairn_json_print_rest("convert", &writer);
}

static void
show_progress(void *context, const char *what, uint64_t done_bytes, uint64_t total_bytes)
{
    (void)what;
    cairn_show_progress(context, done_bytes, total_bytes);
}

static int
run(const struct cairn_conversion_options *wanted, const struct request *request)
{
    struct cairn_conversion_options options = *wanted;
    struct cairn_progress progress = {.what = "converting"};
    struct cairn_complaint complaint = {""};
    struct cairn_conversion conversion;
    bool printed = true;
    cairn_err err;

    options.progress = show_progress;
    options.context = &progress;
    err = cairn_conversion_open(&options, &conversion, &complaint);
    if (!err && !request->dry_run) {
        err = cairn_conversion_run(&conversion, &complaint);
        if (progress.started_ns)
            cairn_progress_stop(&progress);
    }
    cairn_checkpoint_print_warnings("convert", &conversion.source);
    if (!err && request->json)
        printed = print_json(&conversion, !request->dry_run);
    else if (!err && request->dry_run)
        print_plan(&conversion);
    else if (!err)
        print_result(&conversion);
    cairn_conversion_close(&conversion);
    if (err)
        return cairn_checkpoint_error("convert", err, &complaint);
    return printed && fflush(stdout) == 0 ? CAIRN_EXIT_OK : CAIRN_EXIT_IO;
}

/* Turns the command's options into those of the conversion. Returns 0, or reports what is wrong and
 * returns the exit code. */
static int
take_options(const struct cairn_usage *usage, struct request *request,
             struct cairn_conversion_options *options)
{
    struct cairn_parallelism *ranks = &options->output.parallelism;
    int exit_code;

    cairn_place_follow_links(request->follow_links);
    cairn_whole_allow_expanded(request->allow_expanded);
    options->output.canonical_names = request->canonical_names;
    options->to = find_target(usage, request->to, &exit_code);
    if (!options->to)
        return exit_code;
    if (!take_ranks(usage, "tp", request->tp, &ranks->tp, &exit_code) ||
        !take_ranks(usage, "pp", request->pp, &ranks->pp, &exit_code) ||
        !take_ranks(usage, "dp", request->dp, &ranks->dp, &exit_code) ||
        !take_ranks(usage, "ep", request->ep, &ranks->ep, &exit_code) ||
        !take_ranks(usage, "etp", request->etp, &ranks->etp, &exit_code) ||
        !take_ranks(usage, "vpp", request->vpp, &ranks->vpp, &exit_code))
        return exit_code;
    if (request->dtype && !(options->output.dtype = take_dtype(request->dtype)))
        return cairn_usage_error(usage, "--dtype %s: expected F32, BF16, F16 or F64",
                                 request->dtype);
    if (!take_zero(request->zero, &options->output.zero))
        return cairn_usage_error(usage, "--zero %s: expected 1, 2, 3 or bf16", request->zero);
    if (request->zero && options->to != &cairn_format_deepspeed &&
        options->to != &cairn_format_ds_universal)
        return cairn_usage_error(usage, "--zero is for --to deepspeed and deepspeed-universal");
    if (request->job && !options->to->prepare)
        return cairn_usage_error(usage,
                                 "--job is for --to deepspeed, deepspeed-universal, megatron and "
                                 "megatron-dist");
    options->output.job = request->job;
    if (!cairn_output_parse(request->output, &request->json))
        return cairn_usage_error(usage, "-o %s: expected table or json", request->output);
    if (!cairn_resources_parse(usage, request->threads, request->memory, &options->thread_count,
                               &options->memory_limit_bytes, &exit_code))
        return exit_code;
    if (request->set && !request->map)
        return cairn_usage_error(usage, "--set needs --map");
    options->map = request->map;
    options->output.single_file = is_single_file(options->to, options->target);
    return CAIRN_EXIT_OK;
}

int
cairn_verb_convert(int argc, char **argv)
{
    struct request request = {0};
    char map_help[MAP_HELP_BYTES], text[ABOUT_BYTES];
    const struct cairn_flag flags[] = {
        {"to", 0, "FORMAT", "write this format", &request.to, NULL},
        {"tp", 0, "N", "write for N tensor-parallel ranks", &request.tp, NULL},
        {"pp", 0, "N", "write for N pipeline-parallel ranks", &request.pp, NULL},
        {"dp", 0, "N", "write for N data-parallel ranks", &request.dp, NULL},
        {"ep", 0, "N", "write for N expert-parallel ranks", &request.ep, NULL},
        {"etp", 0, "N", "write for N tensor-parallel ranks of experts", &request.etp, NULL},
        {"vpp", 0, "N", "write for N chunks per pipeline stage", &request.vpp, NULL},
        {"dtype", 0, "F32|BF16|F16|F64",
         "cast floating-point parameters to F32 (from SRC's masters, if any), BF16, F16 or F64",
         &request.dtype, NULL},
        {"drop", 0, "PATTERN", "leave out tensors, such as 'exp_avg*,rank*/rng'", &request.drop,
         NULL},
        {"map", 0, "MAP", map_help, &request.map, NULL},
        {"set", 0, "NAME=VALUE", "set the map's variables, such as heads=32,norms=plain",
         &request.set, NULL},
        {"zero", 0, "1|2|3|bf16", "write for this DeepSpeed optimizer", &request.zero, NULL},
        {"job", 0, "FILE",
         "read job settings that SRC lacks from this JSON file: groups, buffers, scheduler",
         &request.job, NULL},
        {"threads", 0, "N", "use N threads (default: one per core, at most 16)", &request.threads,
         NULL},
        {"memory-limit", 0, "SIZE", "use at most this much memory (default: 1GiB)", &request.memory,
         NULL},
        {"dry-run", 0, NULL, "read metadata and print the plan", NULL, &request.dry_run},
        {"follow-links", 0, NULL, "follow links out of the checkpoint's folder", NULL,
         &request.follow_links},
        {"canonical-names", 0, NULL,
         "write torch and dcp with Cairn's names for keys, not with the keys of SRC", NULL,
         &request.canonical_names},
        {"allow-expanded", 0, NULL, "accept tensors far larger than the files of SRC", NULL,
         &request.allow_expanded},
        {"output", 'o', "table|json", "print a table (default) or JSON", &request.output, NULL},
    };
    const struct cairn_usage usage = {"convert", "SRC DST --to FORMAT [OPTIONS]", text,   examples,
                                      flags,     sizeof flags / sizeof *flags,    "FILE", NULL};
    struct cairn_conversion_options options = {.formats = cairn_formats};
    const char *words[2], *drops[DROPS_MAX], *sets[SETS_MAX];
    char *drop_text = NULL, *set_text = NULL;
    int exit_code;

    list_maps(map_help);
    list_formats(text);
    if (!cairn_words_parse(&usage, argc, argv, words, 2, "SRC and DST", &exit_code))
        return exit_code;
    options.source = words[0];
    options.target = words[1];
    exit_code = take_options(&usage, &request, &options);
    if (exit_code)
        return exit_code;
    drop_text = strdup(request.drop ? request.drop : "");
    set_text = strdup(request.set ? request.set : "");
    options.drops = drops;
    options.sets = sets;
    cairn_checkpoint_log_setup();
    if (!drop_text || !set_text)
        exit_code = CAIRN_EXIT_FAILED;
    else if (!split_list(drop_text, drops, DROPS_MAX, &options.drop_count) ||
             !split_list(set_text, sets, SETS_MAX, &options.set_count))
        exit_code =
            cairn_usage_error(&usage, "too many options: expected at most %d --drop and %d --set",
                              DROPS_MAX, SETS_MAX);
    else
        exit_code = run(&options, &request);
    free(drop_text);
    free(set_text);
    return exit_code;
}
