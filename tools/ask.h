/*
 * tools/ask.h - questions to an agent: a blocking operator's session over its socket, with
 * deadlines.
 */
#ifndef CAIRN_TOOLS_ASK_H
#define CAIRN_TOOLS_ASK_H

#include "agent/service/launcher_told.h"
#include "base/json.h"
#include "cairn/err.h"
#include "snapshot/generation.h"
#include "tools/tree.h"

/* What is asked. */
struct cairn_question {
    const char *verb;                  /* of the request: "status" */
    const char *asker;                 /* the verb that reports a missing answer; NULL: `verb` */
    const char *socket;                /* the agent's (tools/find_agent.h) */
    struct cairn_generation_id wanted; /* step 0: none; the epoch as people name it */
    bool dry_run;
    bool fresh;            /* restore: begin an epoch with nothing */
    const char *to;        /* an absolute path, or NULL */
    const char *change;    /* node: "replace" or "remove"; NULL: not asked for */
    const char *node;      /* node: a number or an address; drill: numbers, such as "3,5" */
    uint64_t rate;         /* drill: bytes per second at most; 0: the agent's default */
    const char *address;   /* node: of a replacement; NULL: none */
    bool force;            /* node: although its agent runs */
    const char *decision;  /* replan: "approve", "deny", "back" or "now"; NULL: none */
    uint64_t for_ns;       /* replan: a denial holds for so long; 0: while the evidence does */
    uint64_t number;       /* replan: of the proposal that is approved or denied */
    uint64_t since_ns;     /* history, report: how long ago they begin; 0: for all time */
    uint32_t steps, until; /* trace: the last `steps` steps up to that one (0: the newest) of … */
    uint32_t of;           /* … this node, from `offset` of the parcel with this token on */
    uint64_t token, offset;
    const char *note; /* launch: of this launcher, for the others; NULL: it stays */
    uint64_t reads;   /* launch: OPERATOR_READS_… of the command; 0: not told */
    uint64_t shape;   /* launch: the approved relaunch that the job follows; 0: none */
    const struct operator_standby *standby; /* launch: with `reads`; NULL: none */
    bool relaunch;                          /* launch: the launchers begin a new round */
    bool local;           /* launch: only who is alive, without the other agents */
    bool is_raw;          /* the answer is text unless it is a refusal: no tree */
    uint32_t timeout_ms;  /* for the whole answer */
    const char *progress; /* shown on stderr while waiting; NULL: nothing */
};

/* What came back. Ended by cairn_answer_fini. */
struct cairn_answer {
    int exit_code;
    char *text; /* the JSON, or the bytes where is_raw was asked for */
    size_t text_len;
    struct cairn_tree tree; /* of `text` */
};

/*
 * Asks and waits. CAIRN_OK: *out is filled, with the agent's exit code. CAIRN_PEER: no agent
 * listens there, or it went away; CAIRN_TIMEOUT; CAIRN_DENIED: another user's; CAIRN_VERSION: it
 * speaks another version; CAIRN_CORRUPT; CAIRN_NOMEM. Prints nothing.
 */
CAIRN_MUST_CHECK cairn_err cairn_ask(const struct cairn_question *question,
                                     struct cairn_answer *out);
void cairn_answer_fini(struct cairn_answer *answer);

/* A session that several questions are asked over, one after the other. */
struct cairn_line;

/* Makes a line, which cairn_line_close ends, NULL allowed. Nothing is opened yet. NULL: no
 * memory. */
struct cairn_line *cairn_line_create(void);
void cairn_line_close(struct cairn_line *line);

/* As cairn_ask, over the line. Opens it if necessary, and closes it if the asking fails. */
CAIRN_MUST_CHECK cairn_err cairn_line_ask(struct cairn_line *line,
                                          const struct cairn_question *question,
                                          struct cairn_answer *out);

/* Asks; on failure prints why and what to do under the asker's name, and returns the exit code. 0:
 * go on with *out. */
int cairn_ask_or_say(const struct cairn_question *question, struct cairn_answer *out);

/* True if the answer is only an "error", which is printed under the verb's name. */
bool cairn_answer_refused(const char *verb, const struct cairn_answer *answer);

/* True if an agent answers hello there within timeout_ms. */
bool cairn_agent_answers(const char *socket, uint32_t timeout_ms);

#endif
