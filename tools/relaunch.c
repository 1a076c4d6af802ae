/* tools/relaunch.c - see relaunch.h. */
#include "tools/relaunch.h"

#include "base/clock.h"
#include "base/limits.h"
#include "tools/ask.h"
#include "tools/common.h"
#include "tools/relaunch_door.h"
#include "tools/relaunch_plan.h"
#include "tools/relaunch_shape.h"
#include "tools/relaunch_words.h"
#include "tools/usage.h"
#include "tools/verb.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    JOIN_MS = 200,        /* between two looks of a launcher that joins */
    LOOK_MS = 250,        /* while the command runs, … */
    LOOK_PER_NODE_MS = 5, /* … and more on many nodes: each look asks all agents */
    JOINING_ANSWER_MS = 10000,
    RUNNING_ANSWER_MS = 3000,
    RESTORE_MS = 3600 * 1000,
    SNAPSHOT_MS = 60000, /* a planned relaunch waits for its commit at most so long */
    PATIENCE_MS = 30000, /* in which the first round waits for nodes that may come */
    LINGER_MS = 10000,   /* after a success that the agent cannot be told of */
    GRACE_MS = 30000,    /* between SIGTERM and SIGKILL */
    BACKOFF_FIRST_MS = 1000,
    BACKOFF_LAST_MS = 30000,
    NUMBER_BYTES = 24,
    REFUSAL_BYTES = 400,
    ADDRESS_BYTES = CAIRN_RELAUNCH_HOST_BYTES + 8
};

enum word {
    WORD_NODES = 0,
    WORD_NODE_RANK,
    WORD_MASTER_ADDR,
    WORD_MASTER_PORT,
    WORD_PEERS,
    WORD_RELAUNCH,
    WORD_SHAPE, /* the first of relaunch_shape.h */
    WORDS = WORD_SHAPE + CAIRN_RELAUNCH_SHAPE_WORDS
};

static const struct cairn_word own_words[WORD_SHAPE] = {
    [WORD_NODES] = {.name = "nodes", .is_shape = true},
    [WORD_NODE_RANK] = {.name = "node_rank"},
    [WORD_MASTER_ADDR] = {.name = "master_addr"},
    [WORD_MASTER_PORT] = {.name = "master_port"},
    [WORD_PEERS] = {.name = "peers", .is_shape = true},
    [WORD_RELAUNCH] = {.name = "relaunch"},
};

static void
list_words(struct cairn_word words[WORDS])
{
    memcpy(words, own_words, sizeof own_words);
    memcpy(words + WORD_SHAPE, cairn_relaunch_shape_words, sizeof cairn_relaunch_shape_words);
}

/* A launcher at work. */
struct launcher {
    struct cairn_relaunch relaunch;
    struct cairn_line *line; /* to the agent of this node */
    struct cairn_relaunch_door door;
    struct cairn_relaunch_shapes shapes;
    const char *socket_path;
    char left[CAIRN_RELAUNCH_NOTE_BYTES]; /* the note that the agent has */
    struct cairn_relaunch_peer *peers;    /* of the last look */
    uint32_t peer_count;
    char said[CAIRN_RELAUNCH_WHY_BYTES];
    char refusal_path[CAIRN_PLACED_PATH_BYTES];
    uint64_t begun_ns; /* waiting for a round */
    uint64_t back_off_until_ns;
    uint64_t kept_epoch, kept_step; /* newest commit when the round began */
    uint32_t fruitless;             /* rounds in a row without a commit */
    uint64_t started_ns;            /* the round */
    bool runs;                      /* the command */
};

static uint64_t
now_ns(void)
{
    struct cairn_clock clock = cairn_clock_system();

    return cairn_clock_now_ns(&clock);
}

static void
pause_ms(uint32_t pause)
{
    const struct timespec time = {.tv_sec = pause / 1000,
                                  .tv_nsec = pause % 1000 * (long)CAIRN_NS_PER_MS};

    nanosleep(&time, NULL);
}

/* Once for each reason. */
static void
say(struct launcher *launcher, const char *why)
{
    if (strcmp(why, launcher->said) == 0)
        return;
    snprintf(launcher->said, sizeof launcher->said, "%s", why);
    fprintf(stderr, "cairn run: node %" PRIu32 ": %s\n", launcher->relaunch.self, why);
}

/* ---- the options ---- */

bool
cairn_relaunch_parse_nodes(const char *text, uint64_t *least, uint64_t *most)
{
    char *end;
    unsigned long first, last;

    if (!isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    first = last = strtoul(text, &end, 10);
    if (*end == ':' && isdigit((unsigned char)end[1]))
        last = strtoul(end + 1, &end, 10);
    if (*end || errno || first < 1 || first > last || last > CAIRN_NODES_MAX)
        return false;
    *least = first;
    *most = last;
    return true;
}

bool
cairn_relaunch_check(char *const *command, int *exit_code)
{
    char unknown[CAIRN_WORD_NAME_BYTES];
    struct cairn_word words[WORDS];
    const char *names[WORDS], *near;
    bool is_shape;
    size_t count;

    list_words(words);
    if (cairn_words_check(command, words, WORDS, &count, &is_shape, unknown) == CAIRN_OK) {
        for (char *const *word = command; *word; word++)
            if (strcmp(*word, "--rdzv-backend=cairn") == 0 ||
                strcmp(*word, "--rdzv_backend=cairn") == 0 ||
                (word > command && strcmp(*word, "cairn") == 0 &&
                 (strcmp(word[-1], "--rdzv-backend") == 0 ||
                  strcmp(word[-1], "--rdzv_backend") == 0))) {
                fprintf(stderr,
                        "cairn run: --rdzv-backend cairn restarts the job itself; omit --relaunch, "
                        "or give torchrun --nnodes {nodes} --node-rank {node_rank} --master-addr "
                        "{master_addr} --master-port {master_port}\n");
                *exit_code = CAIRN_EXIT_USAGE;
                return false;
            }
        return true;
    }
    for (size_t i = 0; i < WORDS; i++)
        names[i] = words[i].name;
    near = cairn_nearest(unknown, names, WORDS);
    fprintf(stderr, "cairn run: {%s}: unknown placeholder; ", unknown);
    if (near)
        fprintf(stderr, "did you mean {%s}? ", near);
    fprintf(stderr, "Known are");
    for (size_t i = 0; i < WORDS; i++)
        fprintf(stderr, "%s {%s}", i ? "," : "", names[i]);
    fprintf(stderr, "; write {{%s}} for the word itself\n", unknown);
    *exit_code = CAIRN_EXIT_USAGE;
    return false;
}

/* ---- looking ---- */

static void
host_of(const char *address, char *out, size_t out_bytes)
{
    const char *colon = strrchr(address, ':');
    size_t length = colon ? (size_t)(colon - address) : strlen(address);
    bool bracketed = address[0] == '[' && length > 1 && address[length - 1] == ']';

    snprintf(out, out_bytes, "%.*s", (int)(bracketed ? length - 2 : length), address + bracketed);
}

static void
read_peer(const struct cairn_tree *tree, const struct cairn_tree_value *node,
          struct cairn_relaunch_peer *out)
{
    char text[ADDRESS_BYTES], note[512];

    *out = (struct cairn_relaunch_peer){
        .alive = cairn_tree_bool(tree, node, "alive", false),
        .answered = cairn_tree_bool(tree, node, "answered", false),
        .removed = cairn_tree_bool(tree, node, "removed", false),
        .spare = cairn_tree_bool(tree, node, "spare", false),
        .holds = cairn_tree_bool(tree, node, "holds", false),
        .attached = cairn_tree_bool(tree, node, "launcher", false),
        .asked_ms = cairn_tree_u64(tree, node, "relaunch_asked_ms", UINT64_MAX),
    };
    cairn_tree_text(tree, node, "note", note, sizeof note);
    out->has_note = cairn_relaunch_note_read(note, &out->note);
    cairn_tree_text(tree, node, "address", text, sizeof text);
    host_of(text, out->host, sizeof out->host);
}

static cairn_err
read_peers(struct launcher *launcher, const struct cairn_tree *tree)
{
    const struct cairn_tree_value *nodes = cairn_tree_find(tree, NULL, "nodes"), *node = NULL;
    uint32_t count = nodes ? nodes->count : 0, at = 0;
    struct cairn_relaunch_peer *peers;

    if (count == 0 || count > CAIRN_NODES_MAX)
        return CAIRN_CORRUPT;
    peers = calloc(count, sizeof *peers);
    if (!peers)
        return CAIRN_NOMEM;
    while ((node = cairn_tree_next(tree, nodes, node)) && at < count)
        read_peer(tree, node, &peers[at++]);
    free(launcher->peers);
    launcher->peers = peers;
    launcher->peer_count = count;
    return CAIRN_OK;
}

static void
heard(void *context, uint64_t round, uint64_t node)
{
    cairn_relaunch_heard(context, round, node);
}

/* Number of the approved relaunch that the job follows now, as this launcher sees it; 0: none. */
static uint64_t
running_shape(const struct launcher *launcher)
{
    const struct cairn_relaunch_note *own = &launcher->relaunch.note;
    uint64_t shape = own->state == CAIRN_RELAUNCH_RUNS ? own->shape : 0;

    for (uint32_t i = 0; i < launcher->peer_count && own->state == CAIRN_RELAUNCH_JOINS; i++)
        if (launcher->peers[i].answered && launcher->peers[i].has_note &&
            launcher->peers[i].note.state == CAIRN_RELAUNCH_RUNS)
            shape = launcher->peers[i].note.shape;
    return shape;
}

/* Leaves the note and looks at all nodes. Errors as cairn_ask's; CAIRN_DENIED: another launcher
 * takes part on this node. */
static cairn_err
look(struct launcher *launcher, uint32_t timeout_ms)
{
    char note[CAIRN_RELAUNCH_NOTE_BYTES];
    struct cairn_question question = {
        .verb = "launch", .socket = launcher->socket_path, .note = note, .timeout_ms = timeout_ms};
    const struct cairn_relaunch_view seen = {.peers = launcher->peers,
                                             .count = launcher->peer_count};
    struct operator_standby standby;
    struct cairn_answer answer;
    cairn_err err;

    cairn_relaunch_standby(&launcher->relaunch, &seen, &standby);
    question.standby = &standby;
    question.reads = cairn_relaunch_shapes_reads(&launcher->shapes, launcher->relaunch.keeps_size);
    question.shape = running_shape(launcher);

    cairn_relaunch_note_write(&launcher->relaunch.note, note);
    cairn_relaunch_door_clear(&launcher->door, heard, &launcher->relaunch);
    err = cairn_line_ask(launcher->line, &question, &answer);
    if (err)
        return err;
    if (answer.exit_code == CAIRN_EXIT_OK) {
        launcher->relaunch.self = (uint32_t)cairn_tree_u64(&answer.tree, NULL, "node", UINT32_MAX);
        err = read_peers(launcher, &answer.tree);
        cairn_relaunch_shapes_read(&launcher->shapes, &answer.tree);
        snprintf(launcher->left, sizeof launcher->left, "%s", note);
    } else {
        err = answer.exit_code == CAIRN_EXIT_DENIED ? CAIRN_DENIED : CAIRN_AGAIN;
    }
    cairn_answer_fini(&answer);
    return err;
}

/* Leaves the note, if the agent has another one. False: it does not answer. */
static bool
tell(struct launcher *launcher)
{
    char note[CAIRN_RELAUNCH_NOTE_BYTES];

    cairn_relaunch_note_write(&launcher->relaunch.note, note);
    return strcmp(note, launcher->left) == 0 || look(launcher, RUNNING_ANSWER_MS) == CAIRN_OK;
}

/* The command has ended with success. If its agent is dead, the launcher tells the others at their
 * doors: they would otherwise count this node as lost and end their commands. Repeated, because a
 * message may be lost. */
static void
linger(struct launcher *launcher)
{
    const uint64_t end_ns = now_ns() + LINGER_MS * CAIRN_NS_PER_MS;
    const struct cairn_relaunch_round *round = &launcher->relaunch.round;

    while (!tell(launcher) && now_ns() < end_ns) {
        for (uint32_t i = 0; i < round->count && now_ns() < end_ns; i++)
            if (round->seats[i].node != launcher->relaunch.self)
                (void)cairn_relaunch_door_tell(round->seats[i].host, (uint16_t)round->seats[i].door,
                                               round->name, launcher->relaunch.self);
        pause_ms(JOIN_MS);
    }
}

static bool
ask_door(void *context, uint32_t node)
{
    struct launcher *launcher = context;
    const struct cairn_relaunch_round *round = &launcher->relaunch.round;

    for (uint32_t i = 0; i < round->count; i++)
        if (round->seats[i].node == node)
            return cairn_relaunch_door_answers(round->seats[i].host,
                                               (uint16_t)round->seats[i].door);
    return false;
}

static bool
fits(void *context, const struct cairn_relaunch_round *round)
{
    const struct launcher *launcher = context;
    struct cairn_shape shape;

    return cairn_relaunch_shapes_find(&launcher->shapes, round, &shape) != CAIRN_NOT_FOUND;
}

static struct cairn_relaunch_view
view_of(struct launcher *launcher)
{
    uint64_t now = now_ns();

    return (struct cairn_relaunch_view){
        .peers = launcher->peers,
        .count = launcher->peer_count,
        .is_patient = now < launcher->begun_ns + PATIENCE_MS * CAIRN_NS_PER_MS,
        .is_backing_off = now < launcher->back_off_until_ns,
        .can_ask_doors = launcher->runs,
        .runs_ms = launcher->runs ? (now - launcher->started_ns) / CAIRN_NS_PER_MS : 0,
        .door = ask_door,
        .fits = launcher->shapes.is_named ? fits : NULL,
        .offer = &launcher->shapes.offer,
        .problem = launcher->shapes.is_named ? launcher->shapes.problem_name : 0,
        .context = launcher,
    };
}

/* ---- what the agents hold ---- */

/* The newest commit; false: unknown. */
static bool
newest_commit(const struct launcher *launcher, uint64_t *epoch, uint64_t *step)
{
    struct cairn_question question = {
        .verb = "status", .socket = launcher->socket_path, .timeout_ms = RUNNING_ANSWER_MS};
    struct cairn_answer answer;

    if (cairn_ask(&question, &answer) != CAIRN_OK)
        return false;
    *epoch = cairn_tree_u64(&answer.tree, NULL, "newest.epoch", 0);
    *step = cairn_tree_u64(&answer.tree, NULL, "newest.step", 0);
    cairn_answer_fini(&answer);
    return true;
}

/* True if some agent holds a part of the job's committed state: then only an operator may begin
 * with nothing. */
static bool
has_committed(const struct launcher *launcher)
{
    struct cairn_question question = {
        .verb = "snapshots", .socket = launcher->socket_path, .timeout_ms = JOINING_ANSWER_MS};
    const struct cairn_tree_value *generations, *each = NULL;
    struct cairn_answer answer;
    bool found = false;
    char state[16];

    if (cairn_ask(&question, &answer) != CAIRN_OK)
        return true;
    generations = cairn_tree_find(&answer.tree, NULL, "generations");
    while ((each = cairn_tree_next(&answer.tree, generations, each)))
        found = found || strcmp(cairn_tree_text(&answer.tree, each, "state", state, sizeof state),
                                "committed") == 0;
    cairn_answer_fini(&answer);
    return found;
}

/* True if a joining node holds no part, such as one that has returned: a restore gives it one. */
static bool
lacks_parts(const struct launcher *launcher)
{
    for (uint32_t i = 0; i < launcher->peer_count; i++) {
        const struct cairn_relaunch_peer *peer = &launcher->peers[i];

        if (peer->answered && peer->attached && peer->has_note && !peer->holds && !peer->removed &&
            peer->note.state == CAIRN_RELAUNCH_JOINS && !peer->spare)
            return true;
    }
    return false;
}

/* Has the agents rebuild lost parts: asks, then acts. False, with the reason: not now. */
static bool
restore(struct launcher *launcher, char *why, size_t why_bytes)
{
    bool acts = lacks_parts(launcher);
    struct cairn_question question = {
        .verb = "restore", .socket = launcher->socket_path, .timeout_ms = RESTORE_MS};

    for (uint32_t turn = 0; turn < 2; turn++) {
        struct cairn_answer answer;
        int exit_code;
        bool ready;

        question.dry_run = turn == 0;
        if (cairn_ask(&question, &answer) != CAIRN_OK) {
            snprintf(why, why_bytes, "waits for its agent to answer");
            return false;
        }
        exit_code = answer.exit_code;
        ready = exit_code == 0 && cairn_tree_bool(&answer.tree, NULL, "ready", false);
        snprintf(why, why_bytes, "waits for a restore: ");
        cairn_tree_text(&answer.tree, NULL, "error", why + strlen(why), why_bytes - strlen(why));
        cairn_answer_fini(&answer);
        if (ready && (turn == 1 || !acts))
            return true;
        if (exit_code == CAIRN_EXIT_LOST) {
            if (!has_committed(launcher))
                return true; /* it ended before its first commit, or an operator gave it up */
            snprintf(why + strlen(why), why_bytes - strlen(why),
                     "; start the missing agents, or begin with nothing: `cairn restore --fresh`");
        }
        if (exit_code)
            return false;
    }
    return false;
}

/* Takes a snapshot and waits for its commit. */
static void
take_snapshot(const struct launcher *launcher)
{
    struct cairn_question question = {
        .verb = "snapshot", .socket = launcher->socket_path, .timeout_ms = RUNNING_ANSWER_MS};
    uint64_t end_ns = now_ns() + SNAPSHOT_MS * CAIRN_NS_PER_MS, epoch, wanted = 0, step = 0;
    struct cairn_answer answer;

    if (cairn_ask(&question, &answer) == CAIRN_OK) {
        if (answer.exit_code == 0)
            wanted = cairn_tree_u64(&answer.tree, NULL, "step", 0);
        cairn_answer_fini(&answer);
    }
    while (wanted && now_ns() < end_ns &&
           (!newest_commit(launcher, &epoch, &step) || step < wanted))
        pause_ms(JOIN_MS / 4);
    if (wanted && step >= wanted)
        fprintf(stderr, "cairn run: step %" PRIu64 " is committed\n", step);
    else
        fprintf(stderr,
                "cairn run: no snapshot was committed within %d s; the job goes on from "
                "the newest one\n",
                SNAPSHOT_MS / 1000);
}

/* ---- the command ---- */

/* Texts of the words in a round. */
struct texts {
    char number[WORD_SHAPE][NUMBER_BYTES];
    char *peers; /* owned */
    struct cairn_relaunch_shape_texts shape;
};

static cairn_err
join_peers(const struct cairn_relaunch_round *round, char **out)
{
    size_t bytes = 1, used = 0;
    char *text;

    for (uint32_t i = 0; i < round->count; i++)
        bytes += strlen(round->seats[i].host) + NUMBER_BYTES;
    text = calloc(1, bytes);
    if (!text)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < round->count; i++) {
        bool is_v6 = strchr(round->seats[i].host, ':') != NULL;

        used += (size_t)snprintf(text + used, bytes - used, "%s%s%s%s:%" PRIu64, i ? "," : "",
                                 is_v6 ? "[" : "", round->seats[i].host, is_v6 ? "]" : "",
                                 round->seats[i].port);
    }
    *out = text;
    return CAIRN_OK;
}

/* CAIRN_NODES for {nodes}, and so on. */
static cairn_err
set_environment(const struct cairn_word *word)
{
    char name[CAIRN_WORD_NAME_BYTES + 8] = "CAIRN_";

    for (size_t i = 0; word->name[i]; i++) {
        name[i + 6] = (char)toupper((unsigned char)word->name[i]);
        name[i + 7] = '\0';
    }
    if (!word->text)
        return unsetenv(name) == 0 ? CAIRN_OK : CAIRN_NOMEM;
    return setenv(name, word->text, 1) == 0 ? CAIRN_OK : CAIRN_NOMEM;
}

/* With --batch-may-change. */
static void
report_batch(const struct cairn_problem *problem, const struct cairn_shape *shape)
{
    uint64_t microbatches = 0;

    for (uint32_t i = 0; i < shape->dp; i++)
        microbatches += shape->shares[i];
    if (microbatches != problem->microbatches)
        fprintf(stderr,
                "cairn run: the global batch changes: %" PRIu64 " micro-batches per step instead "
                "of %" PRIu32 "\n",
                microbatches, problem->microbatches);
}

/* The shape's words, where there is one. */
static cairn_err
fill_shape(const struct launcher *launcher, struct cairn_word *filled, struct texts *texts)
{
    struct cairn_shape shape;
    cairn_err err =
        cairn_relaunch_shapes_find(&launcher->shapes, &launcher->relaunch.round, &shape);

    if (err == CAIRN_NOMEM)
        return err;
    if (err && launcher->shapes.is_named)
        return err;
    if (!err) {
        cairn_relaunch_shapes_write(&shape, &texts->shape);
        report_batch(&launcher->shapes.problem, &shape);
    }
    for (size_t i = 0; i < CAIRN_RELAUNCH_SHAPE_WORDS; i++)
        filled[WORD_SHAPE + i].text = err ? NULL : texts->shape.text[i];
    return CAIRN_OK;
}

/* The words of this round, also in the environment. */
static cairn_err
fill(const struct launcher *launcher, struct cairn_word *filled, struct texts *texts)
{
    const struct cairn_relaunch *relaunch = &launcher->relaunch;
    const struct cairn_relaunch_round *round = &relaunch->round;
    const uint64_t numbers[WORD_SHAPE] = {
        [WORD_NODES] = round->count,
        [WORD_NODE_RANK] = relaunch->note.rank,
        [WORD_MASTER_PORT] = round->seats[0].port,
        [WORD_RELAUNCH] = relaunch->note.term - 1,
    };
    cairn_err err = join_peers(round, &texts->peers);

    if (err)
        return err;
    list_words(filled);
    for (size_t i = 0; i < WORD_SHAPE; i++) {
        snprintf(texts->number[i], NUMBER_BYTES, "%" PRIu64, numbers[i]);
        filled[i].text = i == WORD_PEERS         ? texts->peers
                         : i == WORD_MASTER_ADDR ? round->seats[0].host
                                                 : texts->number[i];
    }
    err = fill_shape(launcher, filled, texts);
    for (size_t i = 0; i < WORDS && !err; i++)
        err = set_environment(&filled[i]);
    return err;
}

/* The launcher's part while the command runs. */
static bool
is_over(void *context)
{
    struct launcher *launcher = context;
    enum cairn_relaunch_action action = CAIRN_RELAUNCH_KEEP;
    struct cairn_relaunch_view view;

    if (look(launcher, RUNNING_ANSWER_MS) != CAIRN_OK) /* a dead agent never ends a job */
        return false;
    view = view_of(launcher);
    if (cairn_relaunch_look(&launcher->relaunch, &view, &action) != CAIRN_OK)
        return false;
    if (action == CAIRN_RELAUNCH_SNAPSHOT) {
        say(launcher, launcher->relaunch.why);
        (void)tell(launcher); /* others, whose commands end with this one, do not count it then */
        take_snapshot(launcher);
        return true;
    }
    if (action != CAIRN_RELAUNCH_END)
        return false;
    say(launcher, launcher->relaunch.why);
    return true;
}

/* Why a process of the command could not go on from the snapshot; out[REFUSAL_BYTES], "": none. */
static void
read_refusal(const struct launcher *launcher, char *out)
{
    FILE *file = fopen(launcher->refusal_path, "re");

    out[0] = '\0';
    if (!file)
        return;
    if (!fgets(out, REFUSAL_BYTES, file))
        out[0] = '\0';
    out[strcspn(out, "\n")] = '\0';
    fclose(file);
    unlink(launcher->refusal_path);
}

/* Runs the command in the round that has begun; false: it cannot be started or known. */
static bool
run_round(struct launcher *launcher, char *const *command,
          const struct cairn_run_attachment *attachment,
          const struct cairn_relaunch_options *options, struct cairn_run_end *end)
{
    const struct cairn_run_watch watch = {
        .period_ms = LOOK_MS + LOOK_PER_NODE_MS * launcher->peer_count,
        .is_over = is_over,
        .context = launcher,
        .grace_ns = attachment->grace_ns ? attachment->grace_ns : GRACE_MS * CAIRN_NS_PER_MS};
    struct cairn_word filled[WORDS];
    static struct texts texts; /* large */
    char **filled_words = NULL;
    bool known = false;
    cairn_err err = fill(launcher, filled, &texts);

    if (!err)
        err = cairn_words_fill(command, filled, WORDS, &filled_words);
    if (!err && (launcher->relaunch.note.term > 1 || options->resumes) &&
        setenv("CAIRN_RESUME", "1", 1) != 0)
        err = CAIRN_NOMEM;
    if (err) {
        fprintf(stderr, "cairn run: cannot fill in the words of the command: %s\n",
                cairn_err_text(err));
        goto done;
    }
    (void)newest_commit(launcher, &launcher->kept_epoch, &launcher->kept_step);
    (void)tell(launcher);
    cairn_relaunch_door_release(&launcher->door);
    launcher->runs = true;
    launcher->started_ns = now_ns();
    known = cairn_run_command(filled_words, attachment, &watch, end);
    launcher->runs = false;
done:
    cairn_words_free(filled_words);
    free(texts.peers);
    texts.peers = NULL;
    return known;
}

/* The next round waits longer, the more rounds have ended without a commit. */
static void
back_off(struct launcher *launcher)
{
    uint64_t epoch = 0, step = 0, wait_ms = BACKOFF_FIRST_MS;

    if (newest_commit(launcher, &epoch, &step) &&
        (epoch != launcher->kept_epoch || step != launcher->kept_step)) {
        launcher->fruitless = 0;
        return;
    }
    for (uint32_t i = 0; i < launcher->fruitless && wait_ms < BACKOFF_LAST_MS; i++)
        wait_ms *= 2;
    launcher->fruitless++;
    wait_ms = wait_ms < BACKOFF_LAST_MS ? wait_ms : BACKOFF_LAST_MS;
    launcher->back_off_until_ns = now_ns() + wait_ms * CAIRN_NS_PER_MS;
}

/* ---- joining ---- */

/* Waits for a round to begin. START or EXIT; WAIT: none has begun in time. */
static enum cairn_relaunch_action
join(struct launcher *launcher, uint64_t wait_ns)
{
    char why[CAIRN_RELAUNCH_WHY_BYTES];

    launcher->begun_ns = now_ns();
    launcher->relaunch.note.port = cairn_relaunch_door_reserve(&launcher->door);
    for (;;) {
        enum cairn_relaunch_action action = CAIRN_RELAUNCH_WAIT;
        cairn_err err = look(launcher, JOINING_ANSWER_MS);
        struct cairn_relaunch_view view = view_of(launcher);
        const char *fault;

        if (err == CAIRN_DENIED) {
            snprintf(launcher->relaunch.why, sizeof launcher->relaunch.why,
                     "another launcher takes part on this node; end it first, or give this one "
                     "another job and agents of its own");
            launcher->relaunch.last_code = CAIRN_EXIT_AGAIN;
            return CAIRN_RELAUNCH_EXIT;
        }
        fault = err ? NULL : cairn_relaunch_shapes_fault(&launcher->shapes);
        if (fault) {
            snprintf(launcher->relaunch.why, sizeof launcher->relaunch.why, "%s", fault);
            launcher->relaunch.last_code = CAIRN_EXIT_CONFIG;
            return CAIRN_RELAUNCH_EXIT;
        }
        if (!err)
            err = cairn_relaunch_look(&launcher->relaunch, &view, &action);
        if (err)
            snprintf(launcher->relaunch.why, sizeof launcher->relaunch.why,
                     "waits for its agent at %s: %s", launcher->socket_path, cairn_err_text(err));
        if (action == CAIRN_RELAUNCH_START || action == CAIRN_RELAUNCH_EXIT)
            return action;
        if (action == CAIRN_RELAUNCH_RESTORE) {
            if (restore(launcher, why, sizeof why)) {
                cairn_relaunch_restored(&launcher->relaunch);
                continue;
            }
            say(launcher, why);
        } else {
            (void)tell(launcher);
            if (launcher->relaunch.why[0])
                say(launcher, launcher->relaunch.why);
        }
        if (action == CAIRN_RELAUNCH_STAND_BY)
            launcher->begun_ns = now_ns();
        if (now_ns() - launcher->begun_ns > wait_ns)
            return CAIRN_RELAUNCH_WAIT;
        pause_ms(JOIN_MS);
    }
}

/* ---- from start to end ---- */

/* A name for the file in which a process of the command writes why it cannot go on. */
static bool
name_refusal(struct launcher *launcher)
{
    const char *folder = getenv("XDG_RUNTIME_DIR");
    int fd;

    snprintf(launcher->refusal_path, sizeof launcher->refusal_path, "%s/cairn-refusal-XXXXXX",
             folder && folder[0] ? folder : "/tmp");
    fd = mkstemp(launcher->refusal_path);
    if (fd < 0)
        return false;
    close(fd);
    return unlink(launcher->refusal_path) == 0 &&
           setenv("CAIRN_REFUSAL", launcher->refusal_path, 1) == 0;
}

static bool
open_launcher(struct launcher *launcher, char *const *command,
              const struct cairn_relaunch_options *options)
{
    char unknown[CAIRN_WORD_NAME_BYTES];
    struct cairn_word words[WORDS];
    size_t count;
    bool is_shape;

    cairn_relaunch_init(&launcher->relaunch, UINT32_MAX, options->budget, options->least,
                        options->most);
    launcher->relaunch.resumes = options->resumes;
    list_words(words);
    if (cairn_words_check(command, words, WORDS, &count, &is_shape, unknown) != CAIRN_OK)
        return false;
    cairn_relaunch_shapes_init(&launcher->shapes, command, options->batch_may_change);
    launcher->relaunch.keeps_size = !is_shape && options->most == 0;
    if (launcher->relaunch.keeps_size)
        fprintf(stderr,
                "cairn run: no word of the command names its nodes ({nodes}, {peers}, {dp}, {pp}), "
                "so each relaunch waits for as many nodes as the first start had; name them, or "
                "give --nodes MIN:MAX if the command reads CAIRN_NODES\n");
    if (getrandom(&launcher->relaunch.token, sizeof launcher->relaunch.token, 0) !=
        sizeof launcher->relaunch.token)
        return false;
    launcher->relaunch.token |= 1;
    launcher->line = cairn_line_create();
    if (!launcher->line || cairn_relaunch_door_open(&launcher->door) != CAIRN_OK ||
        !name_refusal(launcher))
        return false;
    launcher->relaunch.note.door = launcher->door.port;
    return true;
}

static void
close_launcher(struct launcher *launcher)
{
    cairn_relaunch_fini(&launcher->relaunch);
    cairn_relaunch_door_close(&launcher->door);
    cairn_line_close(launcher->line);
    cairn_relaunch_shapes_fini(&launcher->shapes);
    free(launcher->peers);
}

/* The command has ended: true if another round follows. */
static bool
goes_on(struct launcher *launcher, const struct cairn_run_end *end)
{
    char refusal[REFUSAL_BYTES];
    struct cairn_relaunch_view view;

    read_refusal(launcher, refusal);
    (void)!look(launcher, RUNNING_ANSWER_MS); /* else by what was seen last */
    view = view_of(launcher);
    if (cairn_relaunch_ended(&launcher->relaunch, &view, end->exit_code, end->was_ended, refusal) ==
        CAIRN_RELAUNCH_EXIT) {
        if (end->was_ended || end->exit_code)
            say(launcher, launcher->relaunch.why);
        if (launcher->relaunch.note.state == CAIRN_RELAUNCH_DONE)
            linger(launcher);
        else
            (void)tell(launcher);
        return false;
    }
    if (!end->was_ended)
        fprintf(stderr, "cairn run: the command ended with exit code %d\n", end->exit_code);
    if (!launcher->relaunch.note.planned)
        back_off(launcher);
    return true;
}

int
cairn_relaunch_run(char **command, struct cairn_run_attachment *attachment,
                   const struct cairn_relaunch_options *options)
{
    struct launcher launcher = {.socket_path = attachment->socket_path,
                                .door = {.listener = -1, .reserved = -1}};
    struct cairn_run_end end = {.exit_code = CAIRN_EXIT_FAILED};
    int exit_code = CAIRN_EXIT_FAILED;
    enum cairn_relaunch_action action;
    bool ran = false;

    if (!open_launcher(&launcher, command, options)) {
        fprintf(stderr, "cairn run: cannot prepare a relaunch: %s\n", strerror(errno));
        goto done;
    }
    for (;;) {
        action = join(&launcher, options->wait_ns);
        if (action == CAIRN_RELAUNCH_WAIT) {
            fprintf(stderr,
                    "cairn run: no round of the job began within %" PRIu64
                    " s (--wait): node %" PRIu32 " %s\n",
                    options->wait_ns / CAIRN_NS_PER_S, launcher.relaunch.self, launcher.said);
            exit_code = CAIRN_EXIT_PEER;
            break;
        }
        say(&launcher, launcher.relaunch.why);
        if (action == CAIRN_RELAUNCH_EXIT) {
            exit_code = launcher.relaunch.last_code;
            (void)tell(&launcher);
            break;
        }
        ran = run_round(&launcher, command, attachment, options, &end);
        if (!ran) {
            exit_code = CAIRN_EXIT_FAILED;
            break;
        }
        exit_code = end.preempted ? CAIRN_EXIT_AGAIN : end.exit_code;
        if (end.was_signalled)
            break; /* we were to end: the others may go on without this node */
        if (!goes_on(&launcher, &end)) {
            exit_code = launcher.relaunch.last_code;
            break;
        }
    }
    if (ran)
        cairn_run_say_end(attachment, &end);
done:
    close_launcher(&launcher);
    return exit_code;
}
