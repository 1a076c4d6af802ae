/*
 * base/text.h - text from outside that people will read: UTF-8 that cannot steer a terminal.
 *
 * Plain text is UTF-8 without control characters: no NUL, line break, escape or delete, nor the
 * second set of controls at U+0080 … U+009F.
 */
#ifndef CAIRN_BASE_TEXT_H
#define CAIRN_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the UTF-8 character at the begin of text[bytes_left]; 0 if there is none (overlong,
 * surrogate, cut, beyond U+10FFFF). Thread: any. */
size_t cairn_utf8_bytes(const char *text, size_t bytes_left);

/* True where text[text_bytes] is plain. Thread: any. */
bool cairn_text_plain(const char *text, size_t text_bytes);

/* True where a text ends with another one. Thread: any. */
bool cairn_text_ends(const char *text, const char *end);

/*
 * Copies a text (ended by NUL; NULL is the empty one) into out[out_bytes], out_bytes > 0, ended by
 * NUL: bytes that are not plain become "?", and a text that is too long is cut between two
 * characters. Thread: any.
 */
void cairn_text_clean(char *out, size_t out_bytes, const char *text);

enum { CAIRN_SHOWN_BYTES = 32 }; /* of a size or time written for people */

/* Writes a size for people: "0 B", "640 KiB", "12.5 MiB", "3.00 GiB". Returns out. Thread: any. */
const char *cairn_show_bytes(uint64_t bytes, char out[CAIRN_SHOWN_BYTES]);

#endif
