/*
 * examples/gpt/options.c - one table of options: the parser, the bounds and --help come from it.
 */
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"
#include "say.h"

enum type { U32, U64, FLOAT, TEXT, FLAG };

struct option {
    const char *name;
    enum type type;
    size_t offset;
    double min;
    double max;
    const char *value; /* default; NULL: none */
    const char *help;
};

#define AT(field) offsetof(struct gpt_options, field)
static const struct option table[] = {
    {"rank", U32, AT(plan.rank), 0, 4095, "0", "number of this process: replica * PP + stage"},
    {"world", U32, AT(world), 0, 4096, "0", "number of processes; checked against DP x PP, 0: not"},
    {"dp", U32, AT(plan.dp), 1, GPT_PARTS_MAX, "1", "replicas of the pipeline"},
    {"pp", U32, AT(plan.pp), 1, GPT_PARTS_MAX, "1", "stages of a pipeline"},
    {"peers", TEXT, AT(peers), 0, 0, NULL,
     "host:port of every rank, with commas; own entry: listen"},
    {"stage-layers", TEXT, AT(stage_layers), 0, 0, NULL,
     "layers of each stage, as 2,2,2, or of each replica's, as 2,2,2/1,3,2; default: even"},
    {"micro-batches", TEXT, AT(micro_batches), 0, 0, NULL,
     "micro-batches of each replica, as 2,2; default: 6 in all, even"},
    {"micro-batch-size", U32, AT(shape.sequences), 1, 4096, "8", "sequences of a micro-batch"},
    {"steps", U64, AT(steps), 1, 1e8, "60", "updates of the whole run"},
    {"seed", U64, AT(seed), 0, 9e15, "1", "of the first parameters and of the data"},
    {"text", TEXT, AT(text), 0, 0, NULL,
     "any file to train on; default: a licence text of the system"},
    {"layers", U32, AT(shape.layers), 1, 4096, "6", "of the model"},
    {"d-model", U32, AT(shape.d_model), 1, 65536, "96", "width of the model"},
    {"heads", U32, AT(shape.heads), 1, 1024, "4", "of attention"},
    {"context", U32, AT(shape.context), 1, 8192, "128", "bytes of a sequence"},
    {"lr", FLOAT, AT(adamw.learning_rate), 0, 10, "0.003", "learning rate after the warm-up"},
    {"warmup-steps", U32, AT(adamw.warmup_steps), 0, 1e8, "10", "updates with a growing rate"},
    {"beta1", FLOAT, AT(adamw.beta1), 0, 0.9999, "0.9", "of AdamW"},
    {"beta2", FLOAT, AT(adamw.beta2), 0, 0.99999, "0.95", "of AdamW"},
    {"epsilon", FLOAT, AT(adamw.epsilon), 1e-20, 1, "1e-8", "of AdamW"},
    {"weight-decay", FLOAT, AT(adamw.weight_decay), 0, 10, "0.1", "of matrices"},
    {"clip", FLOAT, AT(clip), 1e-6, 1e6, "1.0", "largest norm of the gradient"},
    {"resume", FLAG, AT(resume), 0, 0, NULL,
     "restore the newest generation first, if there is one; also with CAIRN_RESUME=1"},
    {"agent", TEXT, AT(agent_socket), 0, 0, NULL,
     "socket of the node's agent; default: $CAIRN_AGENT"},
    {"job", TEXT, AT(job), 0, 0, NULL, "name of the job; default: $CAIRN_JOB, else \"default\""},
    {"local-ranks", U32, AT(local_ranks), 1, 4096, "1", "ranks on this node"},
    {"peer-timeout-s", U32, AT(peer_timeout_s), 1, 86400, "60", "longest wait for another rank"},
    {"restore-timeout-s", U32, AT(restore_timeout_s), 1, 86400, "600",
     "longest wait for a restore"},
    {"events", TEXT, AT(events), 0, 0, NULL, "append JSON lines to this file"},
    {"final", TEXT, AT(final_dir), 0, 0, NULL, "rank 0 writes final.safetensors into this folder"},
    {"log-every", U32, AT(log_every), 0, 1e8, "10",
     "a line on stderr every so many steps, 0: none"},
    {"emulate-layer-ms", U32, AT(emulate_layer_ms), 0, 60000, "0",
     "sleep until a layer's micro-batch has taken so long, as on a device; 0: do not"},
    {"emulate-slow", TEXT, AT(emulate_slow), 0, 0, NULL,
     "RANK:FACTOR@FROM-TO,…: ranks whose device is slower in these steps"},
    {"emulate-death", TEXT, AT(emulate_death), 0, 0, NULL,
     "enter, fill, vote or adopt: kill this rank at that point of a move of layers"},
    {"help", FLAG, AT(help), 0, 0, NULL, "this text"},
};
#undef AT
enum { OPTIONS = sizeof table / sizeof *table };

static cairn_err
set(const struct option *option, const char *text, struct gpt_options *out)
{
    char *field = (char *)out + option->offset;
    char *end = NULL;
    double number = 0.0;
    unsigned long long whole = 0;

    errno = 0;
    if (option->type == TEXT) {
        memcpy(field, &text, sizeof text);
        return CAIRN_OK;
    }
    if (option->type == FLOAT) {
        number = strtod(text, &end);
    } else {
        whole = strtoull(text, &end, 10);
        number = (double)whole;
    }
    if (end == text || *end || errno || !isfinite(number) || number < option->min ||
        number > option->max || strchr(text, '-') == text) {
        gpt_say("--%s %s: a %s from %g to %g is needed", option->name, text,
                option->type == FLOAT ? "number" : "whole number", option->min, option->max);
        return CAIRN_INVAL;
    }
    if (option->type == FLOAT) {
        float value = (float)number;

        memcpy(field, &value, sizeof value);
    } else if (option->type == U32) {
        uint32_t value = (uint32_t)whole;

        memcpy(field, &value, sizeof value);
    } else {
        uint64_t value = whole;

        memcpy(field, &value, sizeof value);
    }
    return CAIRN_OK;
}

/* "2,1,3" to numbers, exactly `parts` of them; `lists` such lists have "/" between them. */
static cairn_err
parse_lists(const char *name, const char *text, uint32_t lists, uint32_t parts,
            uint32_t (*out)[GPT_PARTS_MAX])
{
    const char *at = text;

    for (uint32_t i = 0; i < lists * parts; i++) {
        char after = (i + 1) % parts ? ',' : i + 1 < lists * parts ? '/' : 0;
        char *end = NULL;
        unsigned long value;

        errno = 0;
        value = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;
        if (!end || errno || value > 65536 || *end != after) {
            gpt_say("--%s %s: %u whole numbers with commas between them are needed", name, text,
                    parts);
            return CAIRN_INVAL;
        }
        out[i / parts][i % parts] = (uint32_t)value;
        at = end + 1;
    }
    return CAIRN_OK;
}

/* One list for all replicas, or one for each. */
static cairn_err
parse_layers(const char *text, struct gpt_plan *plan)
{
    uint32_t lists = strchr(text, '/') ? plan->dp : 1;
    cairn_err err = parse_lists("stage-layers", text, lists, plan->pp, plan->stage_layers);

    for (uint32_t r = lists; !err && r < plan->dp; r++)
        memcpy(plan->stage_layers[r], plan->stage_layers[0], sizeof plan->stage_layers[r]);
    return err;
}

static bool
is_point(const char *text)
{
    return strcmp(text, "enter") == 0 || strcmp(text, "fill") == 0 || strcmp(text, "vote") == 0 ||
           strcmp(text, "adopt") == 0;
}

static cairn_err
complete(struct gpt_options *options)
{
    struct gpt_plan *plan = &options->plan;
    cairn_err err = CAIRN_OK;

    if (options->world && options->world != plan->dp * plan->pp) {
        gpt_say("--world %u is not --dp %u x --pp %u", options->world, plan->dp, plan->pp);
        return CAIRN_INVAL;
    }
    if (options->shape.d_model % options->shape.heads != 0) {
        gpt_say("--d-model %u is not a multiple of --heads %u", options->shape.d_model,
                options->shape.heads);
        return CAIRN_INVAL;
    }
    if (options->stage_layers)
        err = parse_layers(options->stage_layers, plan);
    for (uint32_t r = 0; r < plan->dp && !options->stage_layers; r++)
        gpt_plan_even(options->shape.layers, plan->pp, plan->stage_layers[r]);
    if (!err && options->micro_batches)
        err =
            parse_lists("micro-batches", options->micro_batches, 1, plan->dp, &plan->micro_batches);
    else if (!err)
        gpt_plan_even(plan->dp > 6 ? plan->dp : 6, plan->dp, plan->micro_batches);
    if (!err)
        err = gpt_plan_complete(plan, options->shape.layers);
    if (!err)
        err = gpt_device_parse(options->emulate_layer_ms, options->emulate_slow, plan,
                               &options->device);
    if (!err && options->emulate_death && !is_point(options->emulate_death)) {
        gpt_say("--emulate-death %s: enter, fill, vote or adopt is needed", options->emulate_death);
        err = CAIRN_INVAL;
    }
    if (!err && plan->world > 1 && !options->peers) {
        gpt_say("%u ranks need --peers: the host:port of each, with commas", plan->world);
        err = CAIRN_INVAL;
    }
    return err;
}

static const struct option *
find(const char *name, size_t length)
{
    for (size_t i = 0; i < OPTIONS; i++) {
        if (strlen(table[i].name) == length && memcmp(table[i].name, name, length) == 0)
            return &table[i];
    }
    return NULL;
}

cairn_err
gpt_options_parse(int argc, char **argv, struct gpt_options *out)
{
    const char *resume = getenv("CAIRN_RESUME"); /* set by `cairn run --resume` */
    struct gpt_options options = {.resume = resume && strcmp(resume, "1") == 0};
    cairn_err err;

    for (size_t i = 0; i < OPTIONS; i++) {
        if (!table[i].value)
            continue;
        err = set(&table[i], table[i].value, &options);
        if (err)
            return err;
    }
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        const char *equals = strchr(name, '=');
        const struct option *option = NULL;
        const char *value;

        if (strncmp(name, "--", 2) == 0)
            option = find(name + 2, equals ? (size_t)(equals - name) - 2 : strlen(name) - 2);
        if (!option || (option->type == FLAG && equals)) {
            gpt_say("%s: unknown option; see --help", name);
            return CAIRN_INVAL;
        }
        if (option->type == FLAG) {
            bool yes = true;

            memcpy((char *)&options + option->offset, &yes, sizeof yes);
            continue;
        }
        value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (!value) {
            gpt_say("%s needs a value: see --help", name);
            return CAIRN_INVAL;
        }
        err = set(option, value, &options);
        if (err)
            return err;
    }
    gpt_say_as(options.plan.rank);
    if (!options.help) {
        err = complete(&options);
        if (err)
            return err;
    }
    *out = options;
    return CAIRN_OK;
}

void
gpt_options_help(void)
{
    printf(
        "usage: gpt [--rank R --dp D --pp P --peers HOST:PORT,…] [options]\n\n"
        "Trains a byte-level GPT on a text, data parallel x pipeline parallel, protected by the\n"
        "node's Cairn agent where there is one.\n\n");
    for (size_t i = 0; i < OPTIONS; i++) {
        char head[40];

        (void)snprintf(head, sizeof head, "--%s%s", table[i].name,
                       table[i].type == FLAG   ? ""
                       : table[i].type == TEXT ? " TEXT"
                                               : " N");
        printf("  %-24s %s", head, table[i].help);
        if (table[i].value)
            printf(" (default %s)", table[i].value);
        printf("\n");
    }
    printf("\nexamples:\n"
           "  gpt --steps 100                      one process, no protection\n"
           "  P=127.0.0.1:7000,127.0.0.1:7001      a pipeline of two stages, in two shells:\n"
           "  gpt --rank 0 --pp 2 --peers $P --agent /run/cairn/0.sock --resume\n"
           "  gpt --rank 1 --pp 2 --peers $P --agent /run/cairn/1.sock --resume\n"
           "\nexit: 0 done, 1 failed, 64 wrong usage, 65 unusable text or snapshot, 74 input or "
           "output\n"
           "failed, 75 a peer or the agent was lost: restart me, 77 not allowed, 78 settings "
           "differ.\n");
}

static uint64_t
mix_float(uint64_t key, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return gpt_random(key, bits);
}

uint64_t
gpt_options_fingerprint(const struct gpt_options *options, uint64_t text, bool plan)
{
    const struct gpt_shape *shape = &options->shape;
    const struct gpt_adamw *adamw = &options->adamw;
    const uint64_t words[] = {
        text,
        options->seed,
        options->steps,
        shape->layers,
        shape->d_model,
        shape->heads,
        shape->context,
        shape->sequences,
        adamw->warmup_steps,
        options->plan.micro_total,
    };
    const float floats[] = {
        adamw->learning_rate, adamw->beta1,        adamw->beta2,
        adamw->epsilon,       adamw->weight_decay, options->clip,
    };
    uint64_t key = 1; /* of this list */

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        key = gpt_random(key, words[i]);
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        key = mix_float(key, floats[i]);
    if (!plan)
        return key;
    key = gpt_random(gpt_random(key, options->plan.dp), options->plan.pp);
    for (uint32_t r = 0; r < options->plan.dp; r++)
        for (uint32_t s = 0; s < options->plan.pp; s++)
            key = gpt_random(key, options->plan.stage_layers[r][s]);
    for (uint32_t i = 0; i < options->plan.dp; i++)
        key = gpt_random(key, options->plan.micro_batches[i]);
    return key;
}
