/* tools/ask.c - one question to an agent: connect, hello, ask, and join the parts of the answer. */
#include "tools/ask.h"

#include "base/clock.h"
#include "client/session.h"
#include "tools/common.h"
#include "tools/verb.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { QUEUE_BYTES = 1 << 20, ANSWER_BYTES_MAX = 64 << 20, TURN_MS = 100 };

struct cairn_line {
    int fd; /* -1: not open */
    uint64_t deadline_ns;
    struct cairn_session_reader reader;
    struct cairn_session_writer writer;
    struct cairn_progress *progress; /* NULL: none */
};

static uint64_t
now_ns(void)
{
    struct cairn_clock clock = cairn_clock_system();

    return cairn_clock_now_ns(&clock);
}

static cairn_err
connect_error(int error)
{
    switch (error) {
    case EACCES:
    case EPERM:
        return CAIRN_DENIED;
    case EAGAIN:
        return CAIRN_AGAIN;
    default:
        return CAIRN_PEER; /* no agent there: ENOENT, ECONNREFUSED, or not a socket */
    }
}

static cairn_err
link_open(struct cairn_line *link, const char *socket_path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    cairn_session_reader_init(&link->reader, CAIRN_SESSION_AGENT);
    cairn_session_writer_init(&link->writer, QUEUE_BYTES);
    if (strlen(socket_path) >= sizeof address.sun_path)
        return CAIRN_INVAL;
    strcpy(address.sun_path, socket_path);
    link->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (link->fd < 0)
        return CAIRN_IO;
    if (connect(link->fd, (struct sockaddr *)&address, sizeof address) != 0)
        return connect_error(errno);
    return cairn_session_server_check(link->fd);
}

static void
link_close(struct cairn_line *link)
{
    cairn_session_reader_fini(&link->reader);
    cairn_session_writer_fini(&link->writer);
    if (link->fd >= 0)
        close(link->fd);
    link->fd = -1;
}

/* Sends what is queued and receives until a whole frame is there. */
static cairn_err
next_frame(struct cairn_line *link, struct cairn_session_frame *out)
{
    for (;;) {
        cairn_err sent = cairn_session_writer_send(&link->writer, link->fd);
        cairn_err err = cairn_session_reader_next(&link->reader, out);
        struct pollfd ready = {.fd = link->fd, .events = POLLIN};
        uint64_t now = now_ns();

        if (err != CAIRN_AGAIN)
            return err;
        if (link->progress)
            cairn_progress_show(link->progress, 0, now);
        if (now >= link->deadline_ns)
            return CAIRN_TIMEOUT;
        if (sent == CAIRN_AGAIN)
            ready.events |= POLLOUT;
        if (poll(&ready, 1, TURN_MS) < 0 && errno != EINTR)
            return CAIRN_IO;
        err = cairn_session_reader_receive(&link->reader, link->fd);
        if (err == CAIRN_PEER) { /* frames that came before are still there */
            err = cairn_session_reader_next(&link->reader, out);
            return err == CAIRN_AGAIN ? CAIRN_PEER : err;
        }
        if (err && err != CAIRN_AGAIN)
            return err;
    }
}

static cairn_err
hello(struct cairn_line *link)
{
    struct cairn_session_hello hello = {
        .protocol = CAIRN_SESSION_PROTOCOL, .role = CAIRN_ROLE_OPERATOR, .pid = (uint64_t)getpid()};
    struct cairn_session_frame frame;
    struct cairn_session_refused refused;
    struct cairn_session_welcome welcome;
    cairn_err err = cairn_session_put_hello(&link->writer, &hello);

    if (!err)
        err = next_frame(link, &frame);
    if (err)
        return err;
    if (frame.type == CAIRN_SESSION_REFUSED) {
        err = cairn_session_take_refused(&frame, &refused);
        err = err ? err : refused.err;
    } else {
        err = cairn_session_take_welcome(&frame, &welcome);
    }
    cairn_session_frame_fini(&frame);
    return err;
}

bool
cairn_agent_answers(const char *socket_path, uint32_t timeout_ms)
{
    struct cairn_line link = {.fd = -1, .deadline_ns = now_ns() + timeout_ms * CAIRN_NS_PER_MS};
    cairn_err err = link_open(&link, socket_path);

    if (!err)
        err = hello(&link);
    link_close(&link);
    return err == CAIRN_OK;
}

static void
put_text(struct cairn_json_writer *writer, const char *key, const char *text)
{
    if (!text)
        return;
    cairn_json_put_string(writer, key, text);
}

static cairn_err
put_question(struct cairn_line *link, const struct cairn_question *question)
{
    struct cairn_json_writer writer;
    struct cairn_session_operator request;
    char *text = NULL;
    size_t len = 0;
    cairn_err err;

    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_put_string(&writer, "verb", question->verb);
    if (question->fresh) {
        cairn_json_put_u64(&writer, "fresh", 1);
    }
    if (question->dry_run) {
        cairn_json_put_u64(&writer, "dry_run", 1);
    }
    if (question->wanted.step) {
        cairn_json_put_u64(&writer, "epoch", question->wanted.epoch);
        cairn_json_put_u64(&writer, "step", question->wanted.step);
    }
    put_text(&writer, "to", question->to);
    put_text(&writer, "change", question->change);
    put_text(&writer, "node", question->node);
    put_text(&writer, "address", question->address);
    if (question->force) {
        cairn_json_put_u64(&writer, "force", 1);
    }
    if (question->rate) {
        cairn_json_put_u64(&writer, "rate", question->rate);
    }
    if (question->since_ns) {
        cairn_json_put_u64(&writer, "since_ns", question->since_ns);
    }
    put_text(&writer, "note", question->note);
    if (question->reads) {
        cairn_json_put_u64(&writer, "reads", question->reads);
        cairn_json_put_u64(&writer, "shape", question->shape);
    }
    if (question->standby && question->standby->count) {
        cairn_json_put_array(&writer, "standby");
        for (uint32_t i = 0; i < question->standby->count; i++)
            cairn_json_write_u64(&writer, question->standby->nodes[i]);
        cairn_json_write_array_end(&writer);
    }
    if (question->relaunch)
        cairn_json_put_u64(&writer, "relaunch", 1);
    if (question->local)
        cairn_json_put_u64(&writer, "local", 1);
    put_text(&writer, "decision", question->decision);
    if (question->decision) {
        cairn_json_put_u64(&writer, "for_ns", question->for_ns);
        cairn_json_put_u64(&writer, "number", question->number);
    }
    if (question->steps) {
        cairn_json_put_u64(&writer, "steps", question->steps);
        cairn_json_put_u64(&writer, "until", question->until);
        cairn_json_put_u64(&writer, "of", question->of);
        cairn_json_put_u64(&writer, "token", question->token);
        cairn_json_put_u64(&writer, "offset", question->offset);
    }
    cairn_json_write_object_end(&writer);
    err = cairn_json_writer_done(&writer, &text, &len);
    request = (struct cairn_session_operator){.text = text, .text_bytes = len};
    if (!err)
        err = cairn_session_put_operator(&link->writer, &request);
    free(text);
    cairn_json_writer_fini(&writer);
    return err;
}

/* Appends the frames of the answer until the final one. */
static cairn_err
take_answer(struct cairn_line *link, bool is_raw, struct cairn_answer *answer)
{
    for (;;) {
        struct cairn_session_frame frame;
        struct cairn_session_operator_reply reply;
        bool final;
        char *grown;
        cairn_err err = next_frame(link, &frame);

        if (err)
            return err;
        err = frame.type == CAIRN_SESSION_OPERATOR_REPLY
                  ? cairn_session_take_operator_reply(&frame, &reply)
                  : CAIRN_CORRUPT;
        if (!err && reply.text_bytes > ANSWER_BYTES_MAX - answer->text_len)
            err = CAIRN_CORRUPT;
        grown = err ? NULL : realloc(answer->text, answer->text_len + reply.text_bytes + 1);
        if (!grown) {
            cairn_session_frame_fini(&frame);
            return err ? err : CAIRN_NOMEM;
        }
        memcpy(grown + answer->text_len, reply.text, reply.text_bytes);
        answer->text = grown;
        answer->text_len += reply.text_bytes;
        grown[answer->text_len] = '\0';
        answer->exit_code = reply.exit_code;
        final = reply.final;
        cairn_session_frame_fini(&frame);
        if (final && is_raw && answer->text[0] != '{')
            return CAIRN_OK;
        if (final)
            return cairn_tree_parse(answer->text, answer->text_len, &answer->tree);
    }
}

struct cairn_line *
cairn_line_create(void)
{
    struct cairn_line *line = calloc(1, sizeof *line);

    if (line)
        line->fd = -1;
    return line;
}

void
cairn_line_close(struct cairn_line *line)
{
    if (line && line->fd >= 0)
        link_close(line);
    free(line);
}

cairn_err
cairn_line_ask(struct cairn_line *line, const struct cairn_question *question,
               struct cairn_answer *out)
{
    uint64_t started_ns = now_ns();
    struct cairn_answer answer = {0};
    struct cairn_progress progress;
    bool opens = line->fd < 0;
    cairn_err err = CAIRN_OK;

    line->deadline_ns = started_ns + question->timeout_ms * CAIRN_NS_PER_MS;
    if (question->progress) {
        cairn_progress_start(&progress, question->progress, 0, started_ns);
        line->progress = &progress;
    }
    if (opens)
        err = link_open(line, question->socket);
    if (!err && opens)
        err = hello(line);
    if (!err)
        err = put_question(line, question);
    if (!err)
        err = take_answer(line, question->is_raw, &answer);
    if (line->progress)
        cairn_progress_stop(&progress);
    line->progress = NULL;
    if (err) {
        cairn_answer_fini(&answer);
        link_close(line);
        return err;
    }
    *out = answer;
    return CAIRN_OK;
}

cairn_err
cairn_ask(const struct cairn_question *question, struct cairn_answer *out)
{
    struct cairn_line line = {.fd = -1};
    cairn_err err = cairn_line_ask(&line, question, out);

    if (line.fd >= 0)
        link_close(&line);
    return err;
}

void
cairn_answer_fini(struct cairn_answer *answer)
{
    cairn_tree_fini(&answer->tree);
    free(answer->text);
    *answer = (struct cairn_answer){0};
}

bool
cairn_answer_refused(const char *verb, const struct cairn_answer *answer)
{
    const struct cairn_tree_value *root =
        answer->tree.count > 0 ? cairn_tree_find(&answer->tree, NULL, "") : NULL;
    char error[1024];

    if (!root || root->count > 2 || !cairn_tree_find(&answer->tree, NULL, "error"))
        return false;
    cairn_tool_error(verb, cairn_tree_text(&answer->tree, NULL, "error", error, sizeof error), NULL,
                     NULL);
    return true;
}

int
cairn_ask_or_say(const struct cairn_question *question, struct cairn_answer *out)
{
    const char *socket_path = question->socket;
    const char *asker = question->asker ? question->asker : question->verb;
    cairn_err err = cairn_ask(question, out);

    switch (err) {
    case CAIRN_OK:
        return CAIRN_EXIT_OK;
    case CAIRN_INVAL:
        fprintf(stderr,
                "cairn %s: %s: the path of a socket has at most %zu characters; name a "
                "shorter one with --agent\n",
                asker, socket_path, sizeof((struct sockaddr_un *)0)->sun_path - 1);
        return CAIRN_EXIT_USAGE;
    case CAIRN_DENIED:
        fprintf(stderr,
                "cairn %s: %s: the agent belongs to another user; run this as that user or as "
                "root\n",
                asker, socket_path);
        return CAIRN_EXIT_DENIED;
    case CAIRN_TIMEOUT:
        fprintf(
            stderr,
            "cairn %s: %s: the agent did not answer within %" PRIu32
            " s; look at its log, raise --timeout, or restart it: its keeper holds its memory\n",
            asker, socket_path, question->timeout_ms / 1000);
        return CAIRN_EXIT_PEER;
    case CAIRN_VERSION:
    case CAIRN_CORRUPT:
        fprintf(stderr,
                "cairn %s: %s: cannot read the agent's answer (%s); run the `cairn` of the agent's "
                "version\n",
                asker, socket_path, cairn_err_text(err));
        return CAIRN_EXIT_FAILED;
    case CAIRN_PEER:
        fprintf(stderr,
                "cairn %s: %s: no agent answers; start it with `cairn agent --config FILE`, or "
                "name another one with --agent\n",
                asker, socket_path);
        return CAIRN_EXIT_PEER;
    default:
        fprintf(stderr, "cairn %s: %s: cannot ask the agent: %s\n", asker, socket_path,
                cairn_err_text(err));
        return cairn_exit_code(err);
    }
}
