/*
 * base/json.h - a JSON writer into a growing buffer, and a bounded JSON reader that pulls.
 *
 * Writer: commas and colons come by themselves; errors are sticky and come out of
 * cairn_json_writer_done. Text is always valid JSON in UTF-8: bytes that are not UTF-8 become
 * U+FFFD, numbers that JSON lacks (NaN, infinity) become null.
 *
 * Reader: for bytes from outside. It allocates nothing, recurses never, nests at most
 * CAIRN_JSON_DEPTH_MAX deep, and its caller names every key that it accepts; what is wrong first is
 * kept (sticky), with the place, and comes out of cairn_json_reader_done. After a failure every
 * call returns false or zero, so loops end. Duplicate keys are the caller's to refuse (it knows its
 * keys). Typical use:
 *
 *     cairn_json_object_begin(&reader);
 *     while (cairn_json_object_next(&reader, key, sizeof(key))) {
 *         if (strcmp(key, "step") == 0)
 *             step = cairn_json_read_u64(&reader, UINT64_MAX);
 *         else
 *             cairn_json_reader_fail(&reader, "unknown key");
 *     }
 *     err = cairn_json_reader_done(&reader);
 */
#ifndef CAIRN_BASE_JSON_H
#define CAIRN_BASE_JSON_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CAIRN_JSON_DEPTH_MAX = 16 };

/* ---- writer ---- */

struct cairn_json_writer {
    char *text; /* owned until done */
    size_t used_bytes;
    size_t room_bytes;
    uint32_t depth;
    bool comma;       /* the next value or key needs one before it */
    bool broken_line; /* the next value or key starts a new line */
    cairn_err err;
};

void cairn_json_writer_init(struct cairn_json_writer *writer);
void cairn_json_writer_fini(struct cairn_json_writer *writer); /* also right after done */

void cairn_json_write_object_begin(struct cairn_json_writer *writer);
void cairn_json_write_object_end(struct cairn_json_writer *writer);
void cairn_json_write_array_begin(struct cairn_json_writer *writer);
void cairn_json_write_array_end(struct cairn_json_writer *writer);
void cairn_json_write_key(struct cairn_json_writer *writer, const char *key);
void cairn_json_write_string(struct cairn_json_writer *writer, const char *text);
void cairn_json_write_u64(struct cairn_json_writer *writer, uint64_t value);
void cairn_json_write_i64(struct cairn_json_writer *writer, int64_t value);
void cairn_json_write_double(struct cairn_json_writer *writer,
                             double value); /* shortest that reads back equal */
void cairn_json_write_bool(struct cairn_json_writer *writer, bool value);
void cairn_json_write_null(struct cairn_json_writer *writer);
/* A key and its value; put_array and put_object begin the value. */
void cairn_json_put_string(struct cairn_json_writer *writer, const char *key, const char *text);
void cairn_json_put_u64(struct cairn_json_writer *writer, const char *key, uint64_t value);
void cairn_json_put_double(struct cairn_json_writer *writer, const char *key, double value);
void cairn_json_put_bool(struct cairn_json_writer *writer, const char *key, bool value);
void cairn_json_put_array(struct cairn_json_writer *writer, const char *key);
void cairn_json_put_object(struct cairn_json_writer *writer, const char *key);
/* A string of 16 lower-case hex digits per value, one after the other. */
void cairn_json_write_hex64(struct cairn_json_writer *writer, const uint64_t *values, size_t count);
/* Starts a new line before what comes next, for the eye. */
void cairn_json_write_line(struct cairn_json_writer *writer);

/*
 * Ends the text and hands it over with a NUL after it (not counted); the caller frees *text.
 * CAIRN_NOMEM, or CAIRN_INTERNAL where begin and end did not match.
 */
CAIRN_MUST_CHECK cairn_err cairn_json_writer_done(struct cairn_json_writer *writer, char **text,
                                                  size_t *text_bytes);

/* ---- reader ---- */

struct cairn_json_reader {
    const char *text;
    size_t bytes_len;
    size_t at;
    uint32_t depth;
    bool first;      /* nothing has been read in the innermost object or array */
    const char *why; /* static; NULL: no failure so far */
};

void cairn_json_reader_init(struct cairn_json_reader *reader, const void *text, size_t bytes_len);

void cairn_json_object_begin(struct cairn_json_reader *reader);
/* True with the next key in key[key_bytes]; false at the end of the object (which is then left) or
 * on failure. */
bool cairn_json_object_next(struct cairn_json_reader *reader, char *key, size_t key_bytes);
void cairn_json_array_begin(struct cairn_json_reader *reader);
/* True when another element follows; false at the end of the array (which is then left) or on
 * failure. */
bool cairn_json_array_next(struct cairn_json_reader *reader);

/* Reads a string, unescaped, into out[out_bytes] with its NUL; too long, no UTF-8 or U+0000 inside
 * is a failure. */
void cairn_json_read_string(struct cairn_json_reader *reader, char *out, size_t out_bytes);
/* Reads a whole number from 0 to value_max, without sign, fraction or exponent. */
uint64_t cairn_json_read_u64(struct cairn_json_reader *reader, uint64_t value_max);
/* Reads a finite number as JSON writes them. */
double cairn_json_read_double(struct cairn_json_reader *reader);
/* Passes over null where it comes next; false, with nothing passed over, where it does not. */
bool cairn_json_read_null(struct cairn_json_reader *reader);
/* The length of the string that comes next, in bytes as written, without reading it; 0 where none
 * comes. */
size_t cairn_json_peek_string_bytes(struct cairn_json_reader *reader);
/* Reads a string of exactly 16 * count lower-case hex digits. */
void cairn_json_read_hex64(struct cairn_json_reader *reader, uint64_t *values, size_t count);

/* Passes over one value of any kind, checking that it is one. */
void cairn_json_skip(struct cairn_json_reader *reader);

/* Makes the reader fail at the present place; `why` is static. The first failure stays. */
void cairn_json_reader_fail(struct cairn_json_reader *reader, const char *why);
bool cairn_json_reader_failed(const struct cairn_json_reader *reader);

/* CAIRN_OK when one whole value was read and only white space is left, else CAIRN_CORRUPT with why
 * and at. */
CAIRN_MUST_CHECK cairn_err cairn_json_reader_done(struct cairn_json_reader *reader);

/* True where the bytes are UTF-8 without overlong forms and surrogates. */
bool cairn_utf8_valid(const char *text, size_t bytes_len);

#endif
