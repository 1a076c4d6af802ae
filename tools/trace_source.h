/*
 * tools/trace_source.h - a trace of collective timing, read and checked by a thread of its own
 * while its user works on the earlier records.
 *
 * docs/DETECTION.md has the format. Two batches of records exist at a time, however large the trace
 * is.
 */
#ifndef CAIRN_TOOLS_TRACE_SOURCE_H
#define CAIRN_TOOLS_TRACE_SOURCE_H

#include "replan/trace/record.h"
#include "replan/trace/topology.h"
#include "tools/usage.h"

struct cairn_trace_source;

/* Where a verb gets its trace from, by its options. */
struct cairn_trace_from {
    const char *path;  /* --trace: a file, "-" for stdin; NULL */
    const char *agent; /* --agent: of the running job; NULL */
    const char *steps; /* --steps: of the running job; NULL */
};

/* The options of a verb that reads a trace. */
#define CAIRN_TRACE_FLAGS(from)                                                                    \
    {"trace", 0, "FILE", "read the trace from this file, \"-\" for stdin", &(from).path, NULL},    \
    {                                                                                              \
        "agent", 'a', "SOCKET", "take the trace from the running job, through this agent",         \
            &(from).agent, NULL                                                                    \
    }
#define CAIRN_TRACE_STEPS_FLAG(from, fallback)                                                     \
    {                                                                                              \
        "steps", 0, "N", "with --agent: take the last N steps, 1 to 1000 (default: " fallback ")", \
            &(from).steps, NULL                                                                    \
    }

/* True if the user named one place, and --steps (if given) is a number for it. Otherwise reports
 * the error; *exit_code is the verb's. */
bool cairn_trace_from_check(const struct cairn_usage *usage, const struct cairn_trace_from *from,
                            int *exit_code);

/* Opens a trace and reads its header; of a running job `steps_default` steps unless the user named
 * a number. Returns CAIRN_EXIT_OK with *out, which the caller ends with cairn_trace_source_close;
 * any other exit code after a message on stderr in the name of `verb`. All texts are borrowed until
 * the close. */
int cairn_trace_source_open(const char *verb, const struct cairn_trace_from *from,
                            uint32_t steps_default, struct cairn_trace_source **out);

/* The job; borrowed until the close. */
const struct cairn_topology *cairn_trace_source_topology(const struct cairn_trace_source *source);

/* The next records[count] in the order of the trace, borrowed until the next call. False at the
 * end, or at an unreadable line. */
bool cairn_trace_source_next(struct cairn_trace_source *source, const struct cairn_record **records,
                             uint32_t *count);

/* The result, once cairn_trace_source_next is false: CAIRN_EXIT_OK, or another exit code after a
 * message about a refused line or an unreadable file. */
int cairn_trace_source_result(const struct cairn_trace_source *source);

/* How many operations ended before they started, and were left out; once cairn_trace_source_next is
 * false. */
uint64_t cairn_trace_source_backward(const struct cairn_trace_source *source);

/* The most memory that each rank's device held, memory_bytes[world], 0 if no line has it; once
 * cairn_trace_source_next is false, borrowed until the close. Such lines are not records. */
const uint64_t *cairn_trace_source_memory(const struct cairn_trace_source *source);

/* NULL is allowed. */
void cairn_trace_source_close(struct cairn_trace_source *source);

#endif
