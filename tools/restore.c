/* tools/restore.c - `cairn restore`, `cairn verify` and `cairn snapshot`. */
#include "agent/process/config.h"
#include "base/clock.h"
#include "tools/ask.h"
#include "tools/common.h"
#include "tools/find_agent.h"
#include "tools/usage.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RESTORE_SECONDS = 3600, COMMIT_SECONDS = 600, POLL_MS = 200, SNAPSHOT_ANSWER_MS = 10000 };

/* "--timeout 90s" or "5m" as milliseconds; `fallback_s` if it is missing; false if malformed. */
static bool
parse_timeout(const char *text, uint32_t fallback_s, uint32_t *timeout_ms)
{
    uint64_t timeout_ns = fallback_s * CAIRN_NS_PER_S;

    if (text && cairn_parse_duration_ns(text, &timeout_ns) != CAIRN_OK)
        return false;
    if (timeout_ns < CAIRN_NS_PER_MS || timeout_ns / CAIRN_NS_PER_MS > INT32_MAX)
        return false;
    *timeout_ms = (uint32_t)(timeout_ns / CAIRN_NS_PER_MS);
    return true;
}

static void
print_considered(FILE *out, const struct cairn_tree *tree)
{
    const struct cairn_tree_value *lines = cairn_tree_find(tree, NULL, "considered"), *line = NULL;
    char text[1024];

    while ((line = cairn_tree_next(tree, lines, line)))
        fprintf(out, "  %s\n", cairn_tree_text(tree, line, "", text, sizeof text));
}

/* ---- restore ---- */

/* What the choice of an older generation gives up. */
static void
print_given_up(const struct cairn_tree *tree)
{
    const struct cairn_tree_value *list = cairn_tree_find(tree, NULL, "given_up"), *item = NULL;
    char where[16];

    while ((item = cairn_tree_next(tree, list, item))) {
        bool memory =
            strcmp(cairn_tree_text(tree, item, "where", where, sizeof where), "memory") == 0;

        printf("gives up       epoch %" PRIu64 " step %" PRIu64 " in %s\n",
               cairn_tree_u64(tree, item, "epoch", 0), cairn_tree_u64(tree, item, "step", 0),
               memory ? "memory" : "files (`cairn restore --generation` can still choose it)");
    }
}

static void
print_restored(const struct cairn_tree *tree)
{
    char bytes[CAIRN_SHOWN_BYTES], from[16], directory[CAIRN_CONFIG_PATH_BYTES_MAX];
    bool dry_run = cairn_tree_bool(tree, NULL, "dry_run", false);
    uint64_t lost_steps = cairn_tree_u64(tree, NULL, "lost_steps", UINT64_MAX);

    printf("%s epoch %" PRIu64 " step %" PRIu64 " from %s\n",
           dry_run ? "would restore" : "restored",
           cairn_tree_u64(tree, NULL, "generation.epoch", 0),
           cairn_tree_u64(tree, NULL, "generation.step", 0),
           cairn_tree_text(tree, NULL, "from", from, sizeof from));
    print_considered(stdout, tree);
    if (lost_steps != UINT64_MAX)
        printf("lost steps     %" PRIu64 "\n", lost_steps);
    printf("lost members   %" PRIu64 "\n", cairn_tree_u64(tree, NULL, "lost_members", 0));
    print_given_up(tree);
    if (!dry_run)
        printf("rebuilt        %s\ntook           %.2f s\n",
               cairn_show_bytes(cairn_tree_u64(tree, NULL, "rebuilt_bytes", 0), bytes),
               cairn_tree_double(tree, NULL, "seconds", 0));
    if (cairn_tree_find(tree, NULL, "directory") && !dry_run)
        printf("exported       %s to %s\n",
               cairn_show_bytes(cairn_tree_u64(tree, NULL, "exported_bytes", 0), bytes),
               cairn_tree_text(tree, NULL, "directory", directory, sizeof directory));
    else if (!dry_run)
        printf("next           start the trainers (`cairn run --resume -- CMD`): they read it from "
               "the agents\n");
}

static void
say_not_restored(const struct cairn_answer *answer)
{
    char error[600], result[32];

    cairn_tree_text(&answer->tree, NULL, "error", error, sizeof error);
    cairn_tree_text(&answer->tree, NULL, "result", result, sizeof result);
    switch (answer->exit_code) {
    case CAIRN_EXIT_LOST:
        cairn_tool_error("restore", error[0] ? error : "nothing is restorable", NULL,
                         error[0] ? NULL
                                  : "start the agents of lost nodes whose memory still lives, or "
                                    "begin from an older checkpoint");
        break;
    case CAIRN_EXIT_AGAIN:
        cairn_tool_error("restore", error[0] ? error : "it cannot be done now", NULL,
                         "try again in a moment");
        break;
    default:
        cairn_tool_error("restore", error[0] ? error : "it failed", error[0] ? NULL : result, NULL);
        break;
    }
    print_considered(stderr, &answer->tree);
}

static const char restore_about[] =
    "Restores after a failure: picks the newest generation that every erasure group can rebuild, "
    "verifies it, rebuilds its lost parts, and prints which one it took and why. A new epoch "
    "begins: the agents refuse trainers of the old one, and new trainers read the generation from "
    "the agents.\n"
    "\n"
    "--generation goes back to an older generation, in memory or spilled. Later generations are "
    "given up: --dry-run lists them, and the steps that are lost. Spilled generations stay until "
    "newer replace them.\n"
    "\n"
    "With --to, writes the generation into DIR as a universal checkpoint (safetensors) instead. "
    "This does not disturb running trainers if the generation is complete.\n"
    "\n"
    "Exits 4 if nothing can be restored, 75 if another restore runs or too few agents answer.";

/* The flags that restore and verify share; 0, or the exit code if one is wrong: that is printed. */
static int
parse_flags(const struct cairn_usage *usage, const char *output, const char *generation,
            const char *timeout, struct cairn_question *question, bool *json)
{
    if (!cairn_output_parse(output, json))
        return cairn_usage_error(usage, "-o %s: expected table or json", output);
    if (generation &&
        (!cairn_generation_parse(generation, &question->wanted) || question->wanted.step == 0))
        return cairn_usage_error(
            usage, "--generation %s: expected EPOCH:STEP as `cairn snapshots` prints it",
            generation);
    if (!parse_timeout(timeout, RESTORE_SECONDS, &question->timeout_ms))
        return cairn_usage_error(usage, "--timeout %s: expected a time such as 90s or 10m",
                                 timeout);
    return 0;
}

int
cairn_verb_restore(int argc, char **argv)
{
    const char *agent = NULL, *output = NULL, *generation = NULL, *to = NULL, *timeout = NULL;
    bool dry_run = false, fresh = false, json;
    const struct cairn_flag flags[] = {
        {"generation", 'g', "E:S",
         "restore this generation, which `cairn snapshots` lists, instead of the newest",
         &generation, NULL},
        {"fresh", 0, NULL,
         "begin a new epoch without a snapshot; the first commit discards the old ones", NULL,
         &fresh},
        {"to", 't', "DIR", "export into DIR, which must be new or empty", &to, NULL},
        {"dry-run", 'n', NULL, "show what would be restored", NULL, &dry_run},
        {"timeout", 0, "TIME", "wait at most this long, such as 90s or 10m (default: 1h)", &timeout,
         NULL},
        {"agent", 'a', "SOCKET", CAIRN_AGENT_HELP, &agent, NULL},
        {"output", 'o', "table|json", "print a table (default) or JSON", &output, NULL},
    };
    const struct cairn_usage usage = {
        "restore",
        "[--generation E:S | --fresh] [--to DIR] [--dry-run] [--agent SOCKET] [-o table|json]",
        restore_about,
        "  cairn restore --dry-run         # show which generation, and why\n  cairn restore       "
        "            # then start the trainers again\n  cairn restore --to /data/export # write it "
        "to files\n",
        flags,
        sizeof flags / sizeof *flags,
        NULL,
        NULL};
    struct cairn_question question = {.verb = "restore"};
    struct cairn_found found;
    struct cairn_answer answer;
    char absolute[PATH_MAX];
    int exit_code;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    exit_code = parse_flags(&usage, output, generation, timeout, &question, &json);
    if (exit_code)
        return exit_code;
    if (to && !cairn_absolute_path(to, absolute, sizeof absolute))
        return cairn_usage_error(&usage, "--to \"%s\" is not a usable path", to);
    if (fresh && (generation || to || dry_run))
        return cairn_usage_error(
            &usage, "--fresh restores nothing: it goes with no --generation, --to or --dry-run");
    exit_code = cairn_find_agent("restore", agent, NULL, &found);
    if (exit_code)
        return exit_code;
    question.socket = found.socket;
    question.dry_run = dry_run;
    question.fresh = fresh;
    question.to = to ? absolute : NULL;
    question.progress = "restore";
    exit_code = cairn_ask_or_say(&question, &answer);
    if (exit_code)
        return exit_code;
    exit_code = answer.exit_code;
    if (json)
        printf("%s\n", answer.text);
    if (cairn_answer_refused("restore", &answer))
        ;
    else if (exit_code)
        say_not_restored(&answer);
    else if (!json && fresh)
        printf("a fresh epoch: the next trainers begin with nothing; what was held until now goes "
               "with their first "
               "committed generation\n");
    else if (!json)
        print_restored(&answer.tree);
    cairn_answer_fini(&answer);
    return exit_code;
}

/* ---- verify ---- */

static void
print_files(const struct cairn_tree *tree)
{
    char bytes[CAIRN_SHOWN_BYTES], report[1024], result[32];

    if (!cairn_tree_find(tree, NULL, "files")) {
        printf("spilled    no spill directory is configured\n");
        return;
    }
    cairn_tree_text(tree, NULL, "files.result", result, sizeof result);
    cairn_tree_text(tree, NULL, "files.report", report, sizeof report);
    if (strcmp(result, "CAIRN_OK") != 0)
        printf("spilled    damaged: %s\n", report[0] ? report : result);
    else if (!cairn_tree_bool(tree, NULL, "files.checked", false))
        printf("spilled    no such committed generation there\n");
    else
        printf("spilled    epoch %" PRIu64 " step %" PRIu64 ": %s read, every block matches\n",
               cairn_tree_u64(tree, NULL, "files.generation.epoch", 0),
               cairn_tree_u64(tree, NULL, "files.generation.step", 0),
               cairn_show_bytes(cairn_tree_u64(tree, NULL, "files.bytes", 0), bytes));
}

static void
print_verified(const struct cairn_tree *tree, int exit_code)
{
    char verdict[32], bytes[CAIRN_SHOWN_BYTES], rebuilt[CAIRN_SHOWN_BYTES], catalog[32];

    cairn_tree_text(tree, NULL, "verdict", verdict, sizeof verdict);
    cairn_print_coloured(stdout, exit_code == 0 ? "32" : exit_code == 2 ? "33" : "1;31", verdict);
    printf(" after %.2f s\n", cairn_tree_double(tree, NULL, "seconds", 0));
    printf("memory     %s on %" PRIu64 " of %" PRIu64 " nodes; bad blocks %" PRIu64
           ", repaired %" PRIu64 ", still bad %" PRIu64 "\n",
           cairn_show_bytes(cairn_tree_u64(tree, NULL, "checked_bytes", 0), bytes),
           cairn_tree_u64(tree, NULL, "nodes_answering", 0),
           cairn_tree_u64(tree, NULL, "nodes_configured", 0),
           cairn_tree_u64(tree, NULL, "bad_blocks", 0),
           cairn_tree_u64(tree, NULL, "repaired_blocks", 0),
           cairn_tree_u64(tree, NULL, "still_bad_blocks", 0));
    if (cairn_tree_u64(tree, NULL, "mended_records", 0))
        printf("records    %" PRIu64 " of the generations' records were damaged and are written "
               "again; test the memory of the "
               "nodes whose logs name them\n",
               cairn_tree_u64(tree, NULL, "mended_records", 0));
    if (cairn_tree_u64(tree, NULL, "lost_members", 0))
        printf("parts      %" PRIu64 " were lost, %s rebuilt, %" PRIu64 " still missing%s\n",
               cairn_tree_u64(tree, NULL, "lost_members", 0),
               cairn_show_bytes(cairn_tree_u64(tree, NULL, "rebuilt_bytes", 0), rebuilt),
               cairn_tree_u64(tree, NULL, "missing_parts", 0),
               cairn_tree_u64(tree, NULL, "missing_parts", 0) ? ": `cairn restore` rebuilds them"
                                                              : "");
    print_files(tree);
    cairn_tree_text(tree, NULL, "catalog.result", catalog, sizeof catalog);
    printf("catalog    %s (%" PRIu64 " records; complete when it was opened)\n",
           strcmp(catalog, "CAIRN_OK") == 0 ? "every record matches" : catalog,
           cairn_tree_u64(tree, NULL, "catalog.records", 0));
    print_considered(stdout, tree);
}

static void
print_foreseen(const struct cairn_tree *tree)
{
    char bytes[CAIRN_SHOWN_BYTES];

    printf("would verify %s of data, and its parity, on %" PRIu64 " of %" PRIu64 " nodes\n",
           cairn_show_bytes(cairn_tree_u64(tree, NULL, "checked_bytes", 0), bytes),
           cairn_tree_u64(tree, NULL, "nodes_answering", 0),
           cairn_tree_u64(tree, NULL, "nodes_configured", 0));
    print_considered(stdout, tree);
}

static const char verify_about[] =
    "Checksums all snapshot data, parity and records on all nodes, and repairs what is damaged "
    "from the other nodes. Reads every byte of the newest spilled generation and the asked agent's "
    "catalog.\n"
    "\n"
    "Exits 0 if all is good, 2 if damage was repaired, 3 if data is lost, 4 if there is nothing to "
    "verify.";

int
cairn_verb_verify(int argc, char **argv)
{
    const char *agent = NULL, *output = NULL, *generation = NULL, *timeout = NULL;
    bool dry_run = false;
    const struct cairn_flag flags[] = {
        {"generation", 'g', "E:S", "read this spilled generation (default: the newest)",
         &generation, NULL},
        {"dry-run", 'n', NULL, "show what would be verified", NULL, &dry_run},
        {"timeout", 0, "TIME", "wait at most this long, such as 90s or 10m (default: 1h)", &timeout,
         NULL},
        {"agent", 'a', "SOCKET", CAIRN_AGENT_HELP, &agent, NULL},
        {"output", 'o', "table|json", "print a table (default) or JSON", &output, NULL},
    };
    const struct cairn_usage usage = {
        "verify",     "[--generation E:S] [--dry-run] [--agent SOCKET] [-o table|json]",
        verify_about, "  cairn verify\n  cairn verify --generation 1:30 -o json\n",
        flags,        sizeof flags / sizeof *flags,
        NULL,         NULL};
    struct cairn_question question = {.verb = "verify", .progress = "verify"};
    struct cairn_found found;
    struct cairn_answer answer;
    int exit_code;
    bool json;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    exit_code = parse_flags(&usage, output, generation, timeout, &question, &json);
    if (exit_code)
        return exit_code;
    exit_code = cairn_find_agent("verify", agent, NULL, &found);
    if (exit_code)
        return exit_code;
    question.socket = found.socket;
    question.dry_run = dry_run;
    exit_code = cairn_ask_or_say(&question, &answer);
    if (exit_code)
        return exit_code;
    exit_code = answer.exit_code;
    if (json)
        printf("%s\n", answer.text);
    if (!cairn_answer_refused("verify", &answer) && !json && dry_run)
        print_foreseen(&answer.tree);
    else if (!json && !cairn_tree_find(&answer.tree, NULL, "error"))
        print_verified(&answer.tree, exit_code);
    cairn_answer_fini(&answer);
    return exit_code;
}

/* ---- snapshot ---- */

/* Polls until a generation of `step` or later is committed. */
static int
await_commit(const char *socket_path, uint64_t step, uint32_t timeout_ms,
             struct cairn_generation_id *committed)
{
    struct cairn_clock clock = cairn_clock_system();
    uint64_t started_ns = cairn_clock_now_ns(&clock), waited_ns = 0;
    const struct timespec pause = {.tv_nsec = POLL_MS * (long)CAIRN_NS_PER_MS};
    struct cairn_question question = {.verb = "status",
                                      .asker = "snapshot",
                                      .socket = socket_path,
                                      .timeout_ms = SNAPSHOT_ANSWER_MS};
    struct cairn_progress progress;
    int exit_code = CAIRN_EXIT_PEER;

    cairn_progress_start(&progress, "waiting for the commit", 0, started_ns);
    while (waited_ns < timeout_ms * CAIRN_NS_PER_MS) {
        struct cairn_answer answer;

        exit_code = cairn_ask_or_say(&question, &answer);
        if (exit_code)
            break;
        exit_code = CAIRN_EXIT_PEER;
        committed->epoch = cairn_tree_u64(&answer.tree, NULL, "newest.epoch", 0);
        committed->step = cairn_tree_u64(&answer.tree, NULL, "newest.step", 0);
        cairn_answer_fini(&answer);
        if (committed->step >= step) {
            exit_code = CAIRN_EXIT_OK;
            break;
        }
        nanosleep(&pause, NULL);
        waited_ns = cairn_clock_now_ns(&clock) - started_ns;
        cairn_progress_show(&progress, 0, started_ns + waited_ns);
    }
    cairn_progress_stop(&progress);
    if (exit_code == CAIRN_EXIT_PEER && waited_ns >= timeout_ms * CAIRN_NS_PER_MS) {
        char what[128];

        snprintf(what, sizeof what, "no generation of step %" PRIu64 " was committed in time",
                 step);
        cairn_tool_error("snapshot", what,
                         "the trainers are slower than the time given, or no longer take snapshots",
                         "see `cairn status`; wait longer with --timeout");
        exit_code = CAIRN_EXIT_AGAIN;
    }
    return exit_code;
}

static const char snapshot_about[] =
    "Asks all agents to take a snapshot at the next step that every trainer can still make, "
    "also before the configured interval is over.";

static void
print_step(bool json, bool dry_run, uint64_t step, const struct cairn_generation_id *committed)
{
    if (json && committed)
        printf("{\"schema\":1,\"step\":%" PRIu64 ",\"committed\":{\"epoch\":%" PRIu64
               ",\"step\":%" PRIu64 "}}\n",
               step, committed->epoch, committed->step);
    else if (json)
        printf("{\"schema\":1,\"step\":%" PRIu64 ",\"dry_run\":%s,\"committed\":null}\n", step,
               dry_run ? "true" : "false");
    else if (committed)
        printf("committed: epoch %" PRIu64 " step %" PRIu64 "\n", committed->epoch,
               committed->step);
    else
        printf("%s a generation at step %" PRIu64 " or soon after\n",
               dry_run ? "would ask for" : "asked for", step);
}

int
cairn_verb_snapshot(int argc, char **argv)
{
    const char *agent = NULL, *output = NULL, *timeout = NULL;
    bool wait = false, dry_run = false, json;
    const struct cairn_flag flags[] = {
        {"wait", 'w', NULL, "wait until the snapshot is committed", NULL, &wait},
        {"dry-run", 'n', NULL, "show at which step it would be taken", NULL, &dry_run},
        {"timeout", 0, "TIME",
         "with --wait: wait at most this long, such as 90s or 10m (default: 10m)", &timeout, NULL},
        {"agent", 'a', "SOCKET", CAIRN_AGENT_HELP, &agent, NULL},
        {"output", 'o', "table|json", "print a table (default) or JSON", &output, NULL},
    };
    const struct cairn_usage usage = {
        "snapshot",     "[--wait [--timeout TIME]] [--dry-run] [--agent SOCKET] [-o table|json]",
        snapshot_about, "  cairn snapshot\n  cairn snapshot --wait --timeout 2m\n",
        flags,          sizeof flags / sizeof *flags,
        NULL,           NULL};
    struct cairn_question question = {.timeout_ms = SNAPSHOT_ANSWER_MS};
    struct cairn_generation_id committed = {0};
    struct cairn_found found;
    struct cairn_answer answer;
    uint32_t timeout_ms;
    uint64_t step;
    int exit_code;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    if (!cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o %s: expected table or json", output);
    if (!parse_timeout(timeout, COMMIT_SECONDS, &timeout_ms))
        return cairn_usage_error(&usage, "--timeout %s: expected a time such as 90s or 10m",
                                 timeout);
    if (timeout && !wait)
        return cairn_usage_error(&usage, "--timeout %s: goes with --wait; add it", timeout);
    question.verb = "snapshot";
    exit_code = cairn_find_agent("snapshot", agent, NULL, &found);
    if (exit_code)
        return exit_code;
    question.socket = found.socket;
    question.dry_run = dry_run;
    exit_code = cairn_ask_or_say(&question, &answer);
    if (exit_code)
        return exit_code;
    exit_code = answer.exit_code;
    step = cairn_tree_u64(&answer.tree, NULL, "step", 0);
    if (!cairn_answer_refused("snapshot", &answer)) {
        if (wait && !dry_run)
            exit_code = await_commit(found.socket, step, timeout_ms, &committed);
        if (exit_code == CAIRN_EXIT_OK)
            print_step(json, dry_run, step, wait && !dry_run ? &committed : NULL);
    }
    cairn_answer_fini(&answer);
    return exit_code;
}
