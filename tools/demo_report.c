/*
 * tools/demo_report.c - the figures at the end of `cairn demo`, for people and as JSON.
 */
#include "tools/demo.h"

#include "base/json.h"
#include "tools/common.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool
demo_identical(const struct demo *demo)
{
    return demo->job.loss_sha256[0] && demo->job.state_sha256[0] &&
           strcmp(demo->job.loss_sha256, demo->reference.loss_sha256) == 0 &&
           strcmp(demo->job.state_sha256, demo->reference.state_sha256) == 0;
}

/* ---- figures ---- */

static uint64_t
median_ns(const struct demo_job *job)
{
    return demo_samples_quantile_ns(&job->step_times, 0.5);
}

static double
overhead(const struct demo *demo)
{
    uint64_t with_ns = median_ns(&demo->job);
    uint64_t without_ns = median_ns(&demo->reference);

    if (demo->options.slow.text)
        return 0; /* the reference's devices are not emulated */
    return with_ns && without_ns ? (double)with_ns / (double)without_ns : 0;
}

struct memory {
    uint64_t reserved_bytes; /* of all agents */
    uint64_t rss_bytes;      /* of all agents, at most */
    uint64_t slots_bytes;    /* of reserved_bytes: data and parity, by the formula */
};

static struct memory
memory_price(const struct demo *demo)
{
    uint32_t n = demo->options.nodes, m = demo->options.parity;
    struct memory memory = {0, 0, n * 2 * (demo->slot_bytes + demo->slot_bytes * m / (n - m))};

    for (uint32_t i = 0; i < n; i++) {
        memory.reserved_bytes += demo->nodes[i].reserved_bytes;
        memory.rss_bytes += demo->nodes[i].rss_bytes;
    }
    return memory;
}

static uint64_t
machine_memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);

    return pages > 0 && bytes > 0 ? (uint64_t)pages * (uint64_t)bytes : 0;
}

static void
machine_model(char *out, size_t out_bytes)
{
    char *text = demo_file_text("/proc/cpuinfo");
    const char *at = text ? strstr(text, "model name") : NULL;
    size_t len = at ? strcspn(at, "\n") : 0;

    at = at ? strchr(at, ':') : NULL;
    snprintf(out, out_bytes, "unknown");
    if (at && len > 0)
        snprintf(out, out_bytes, "%.*s", (int)strcspn(at + 2, "\n"), at + 2);
    free(text);
}

static uint64_t
restore_total_ns(const struct demo_restore *restore)
{
    return restore->detect_ns + restore->restart_ns + restore->restore_ns + restore->resume_ns;
}

/* ---- for people ---- */

static void
print_restores(const struct demo *demo)
{
    char shown[5][CAIRN_SHOWN_BYTES];

    for (uint32_t i = 0; i < demo->restore_count; i++) {
        const struct demo_restore *r = &demo->restores[i];

        printf("recovery %u       %s from the fault to the first step: all ranks had left after "
               "%s, new agents %s, "
               "restore %s, restart %s\n",
               i + 1, cairn_show_duration(restore_total_ns(r), shown[0]),
               cairn_show_duration(r->detect_ns, shown[1]),
               r->restart_ns < CAIRN_NS_PER_MS ? "none"
                                               : cairn_show_duration(r->restart_ns, shown[2]),
               cairn_show_duration(r->restore_ns, shown[3]),
               cairn_show_duration(r->resume_ns, shown[4]));
        printf("                 generation of step %" PRIu64 ", %" PRIu64
               " step%s lost, %s rebuilt%s\n",
               r->generation.step, r->lost_steps, r->lost_steps == 1 ? "" : "s",
               cairn_show_bytes(r->rebuilt_bytes, shown[0]),
               r->from_files ? ", from spilled files" : "");
    }
}

static void
print_memory(const struct demo *demo)
{
    struct memory memory = memory_price(demo);
    uint32_t n = demo->options.nodes, m = demo->options.parity;
    char shown[4][CAIRN_SHOWN_BYTES];

    printf(
        "memory           2 x (1 + %u/%u) x %s x %u nodes = %s for a state of %s; %u agents with "
        "their libraries and network buffers: %s (peak RSS)\n",
        m, n - m, cairn_show_bytes(demo->slot_bytes, shown[0]), n,
        cairn_show_bytes(memory.slots_bytes, shown[1]),
        cairn_show_bytes(demo->model_bytes, shown[2]), n,
        cairn_show_bytes(memory.rss_bytes, shown[3]));
}

static const char *
next_command(const struct demo *demo)
{
    if (demo->restore_count == 0)
        return "cairn demo --kill 1,4@30     # two of six nodes are lost at once";
    if (demo->options.spill_every == 0)
        return "cairn demo --kill 0,1,2@30 --spill 10     # more than m: back to the newest "
               "spilled generation";
    return "cairn agent --sample > cairn.yaml     # a configuration for your own job";
}

void
demo_report_table(const struct demo *demo)
{
    const struct demo_job *job = &demo->job;
    char shown[2][CAIRN_SHOWN_BYTES], model[128];

    machine_model(model, sizeof model);
    printf("\njob              %u nodes, %u replicas x %u stages, %" PRIu64
           " steps, loss %.4f to %.4f\n",
           demo->options.nodes, demo->dp, demo->pp, demo->options.steps, job->loss_first,
           job->loss_last);
    printf("generations      %" PRIu64 " committed, each survives the loss of any %u of %u nodes\n",
           demo->committed_count, demo->options.parity, demo->options.nodes);
    print_restores(demo);
    print_memory(demo);
    if (overhead(demo) > 0)
        printf("step time        median %s with protection, %s without: ratio %.3f (%u and %u "
               "steps, in turns)\n",
               cairn_show_duration(median_ns(job), shown[0]),
               cairn_show_duration(median_ns(&demo->reference), shown[1]), overhead(demo),
               job->step_times.count, demo->reference.step_times.count);
    printf("training waited  %s (p50), %s (p99) per step and rank for what was not yet captured\n",
           cairn_show_duration(demo_samples_quantile_ns(&job->fence_times, 0.5), shown[0]),
           cairn_show_duration(demo_samples_quantile_ns(&job->fence_times, 0.99), shown[1]));
    printf("machine          %ld cores, %s, %s\n", sysconf(_SC_NPROCESSORS_ONLN),
           cairn_show_bytes(machine_memory_bytes(), shown[0]), model);
    printf("loss_sha256      %s\nstate_sha256     %s\n", job->loss_sha256, job->state_sha256);
    if (demo->options.reference)
        printf("bit-identical    %s to a run without protection and without faults\n",
               demo_identical(demo) ? "yes," : "NO, NOT");
    if (demo->options.slow.text)
        demo_slow_print(demo);
    printf("try next         %s\n", next_command(demo));
}

/* ---- for programs ---- */

static void
put_text(struct cairn_json_writer *writer, const char *key, const char *value)
{
    cairn_json_write_key(writer, key);
    if (value[0])
        cairn_json_write_string(writer, value);
    else
        cairn_json_write_null(writer);
}

static void
put_identical(struct cairn_json_writer *writer, const struct demo *demo)
{
    cairn_json_write_key(writer, "bit_identical");
    if (demo->options.reference && demo->job.state_sha256[0] && demo->reference.state_sha256[0])
        cairn_json_write_bool(writer, demo_identical(demo));
    else
        cairn_json_write_null(writer); /* there is nothing to compare with */
}

static void
put_faults(struct cairn_json_writer *writer, const struct demo *demo)
{
    cairn_json_put_array(writer, "faults");
    for (uint32_t i = 0; i < demo->options.fault_count; i++) {
        const struct demo_fault *fault = &demo->options.faults[i];

        if (!fault->done)
            continue;
        cairn_json_write_object_begin(writer);
        put_text(writer, "kind", demo_fault_names[fault->kind]);
        cairn_json_put_u64(writer, "target", fault->target);
        cairn_json_put_u64(writer, "step", fault->step);
        cairn_json_write_key(writer, "detected_ms");
        if (fault->noticed_ns)
            cairn_json_write_double(writer, (double)(fault->noticed_ns - fault->at_ns) * 1e-6);
        else
            cairn_json_write_null(writer);
        cairn_json_write_object_end(writer);
    }
    cairn_json_write_array_end(writer);
}

static void
put_restores(struct cairn_json_writer *writer, const struct demo *demo)
{
    cairn_json_put_array(writer, "restores");
    for (uint32_t i = 0; i < demo->restore_count; i++) {
        const struct demo_restore *restore = &demo->restores[i];

        cairn_json_write_object_begin(writer);
        cairn_json_put_object(writer, "generation");
        cairn_json_put_u64(writer, "epoch", restore->generation.epoch);
        cairn_json_put_u64(writer, "step", restore->generation.step);
        cairn_json_write_object_end(writer);
        cairn_json_put_u64(writer, "step", restore->generation.step);
        put_text(writer, "from", restore->from_files ? "files" : "memory");
        cairn_json_put_u64(writer, "lost_steps", restore->lost_steps);
        cairn_json_put_double(writer, "seconds", (double)restore_total_ns(restore) * 1e-9);
        cairn_json_put_double(writer, "detect_seconds", (double)restore->detect_ns * 1e-9);
        cairn_json_put_double(writer, "restart_seconds", (double)restore->restart_ns * 1e-9);
        cairn_json_put_double(writer, "restore_seconds", (double)restore->restore_ns * 1e-9);
        cairn_json_put_double(writer, "first_step_seconds", (double)restore->resume_ns * 1e-9);
        cairn_json_put_u64(writer, "rebuilt_bytes", restore->rebuilt_bytes);
        put_identical(writer, demo);
        cairn_json_write_object_end(writer);
    }
    cairn_json_write_array_end(writer);
}

static void
put_measured(struct cairn_json_writer *writer, const struct demo *demo)
{
    struct memory memory = memory_price(demo);
    char model[128];

    machine_model(model, sizeof model);
    cairn_json_write_key(writer, "overhead_ratio");
    if (overhead(demo) > 0)
        cairn_json_write_double(writer, overhead(demo));
    else
        cairn_json_write_null(writer);
    cairn_json_put_u64(writer, "step_ns_protected", median_ns(&demo->job));
    cairn_json_put_u64(writer, "step_ns_unprotected", median_ns(&demo->reference));
    cairn_json_put_u64(writer, "fence_p50_ns",
                       demo_samples_quantile_ns(&demo->job.fence_times, 0.5));
    cairn_json_put_u64(writer, "fence_p99_ns",
                       demo_samples_quantile_ns(&demo->job.fence_times, 0.99));
    cairn_json_put_object(writer, "memory");
    cairn_json_put_u64(writer, "state_bytes", demo->model_bytes);
    cairn_json_put_u64(writer, "slot_bytes", demo->slot_bytes);
    cairn_json_put_u64(writer, "slots_bytes", memory.slots_bytes);
    cairn_json_put_u64(writer, "reserved_bytes", memory.reserved_bytes);
    cairn_json_put_u64(writer, "rss_bytes", memory.rss_bytes);
    cairn_json_write_object_end(writer);
    cairn_json_put_object(writer, "machine");
    cairn_json_put_u64(writer, "cores", (uint64_t)sysconf(_SC_NPROCESSORS_ONLN));
    cairn_json_put_u64(writer, "memory_bytes", machine_memory_bytes());
    put_text(writer, "model", model);
    cairn_json_write_object_end(writer);
}

/* Why nothing was restorable, one string per generation. */
static void
put_reasons(struct cairn_json_writer *writer, const struct demo *demo)
{
    const char *at = demo->reasons;

    cairn_json_put_array(writer, "considered");
    while (*at) {
        size_t len = strcspn(at, "\n");
        char line[DEMO_REASONS_BYTES];

        snprintf(line, sizeof line, "%.*s", (int)len, at);
        if (len)
            cairn_json_write_string(writer, line);
        at += len + (at[len] == '\n');
    }
    cairn_json_write_array_end(writer);
}

int
demo_report_json(const struct demo *demo, int exit_code)
{
    const struct demo_job *job = &demo->job;
    struct cairn_json_writer writer;
    size_t text_bytes;
    char *text;

    cairn_json_begin(&writer);
    cairn_json_put_u64(&writer, "exit_code", (uint64_t)exit_code);
    cairn_json_put_u64(&writer, "nodes", demo->options.nodes);
    cairn_json_put_u64(&writer, "parity", demo->options.parity);
    cairn_json_put_u64(&writer, "dp", demo->dp);
    cairn_json_put_u64(&writer, "pp", demo->pp);
    cairn_json_put_u64(&writer, "steps", demo->options.steps);
    cairn_json_put_double(&writer, "loss_first", job->loss_first);
    cairn_json_put_double(&writer, "loss_last", job->loss_last);
    put_text(&writer, "loss_sha256", job->loss_sha256);
    put_text(&writer, "state_sha256", job->state_sha256);
    put_identical(&writer, demo);
    cairn_json_put_u64(&writer, "generations_committed", demo->committed_count);
    put_faults(&writer, demo);
    put_restores(&writer, demo);
    cairn_json_put_array(&writer, "replans");
    if (demo->options.slow.text && demo->slow.step_ns)
        demo_slow_put_replans(&writer, demo);
    cairn_json_write_array_end(&writer);
    if (demo->options.slow.text && demo->slow.step_ns)
        demo_slow_put(&writer, demo);
    put_measured(&writer, demo);
    put_reasons(&writer, demo);
    cairn_json_write_object_end(&writer);
    if (cairn_json_writer_done(&writer, &text, &text_bytes) != CAIRN_OK) {
        fprintf(stderr, "cairn demo: no memory for the report\n");
        return exit_code ? exit_code : CAIRN_EXIT_FAILED;
    }
    puts(text);
    free(text);
    return exit_code;
}
