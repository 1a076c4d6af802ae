/*
 * base/log_json.h - a log line as one JSON object, for collectors that index fields.
 *
 *     {"time":"2026-01-31T23:59:59.123Z","level":"info","source":"node 3","event":"peer.up",
 *      "message":"peer: up node=2","fields":{"node":2}}
 *
 *   message  the line as the text format prints it
 *   event    a name from the format, so it is the same for all values: the subsystem, and
 *            the words up to the first stop or `name=`; without words, the first name
 *   fields   the values that the format names: `name=%u`, and numbers after node, rank, step,
 *            slot, epoch or member. A number is a number, unless other text touches it.
 *
 * For example "mail: node %u takes messages too slowly: %u wait" is
 * mail.node_takes_messages_too_slowly. All is printable UTF-8: other bytes become "?".
 */
#ifndef CAIRN_BASE_LOG_JSON_H
#define CAIRN_BASE_LOG_JSON_H

#include <stdarg.h>
#include <stddef.h>

enum {
    CAIRN_LOG_EVENT_BYTES = 80, /* an event's longest name, NUL included */
    CAIRN_LOG_JSON_BYTES = 8192,
};

/* What a line says beside its format. All texts are borrowed for the call. */
struct cairn_log_json {
    const char *time;
    const char *level;
    const char *source; /* "" is left out */
    const char *message;
};

/* Writes the event of a format. Pure. */
void cairn_log_event(const char *format, char out[CAIRN_LOG_EVENT_BYTES]);

/*
 * Writes the object, ended by NUL and without a line break. `arguments` are those of `format`;
 * %m prints the present errno. Fields that have no room are left out; the object is whole
 * always. Returns its length. Allocates nothing. Thread: any.
 */
size_t cairn_log_json_write(const struct cairn_log_json *line, const char *format,
                            va_list arguments, char out[CAIRN_LOG_JSON_BYTES]);

#endif
