/*
 * base/json.h - a JSON writer into a growing buffer, and a bounded JSON pull reader.
 *
 * Writer: it sets commas and colons; cairn_json_writer_done returns the first error. The text is
 * always valid JSON in UTF-8: bytes that are not UTF-8 become U+FFFD, NaN and infinity become null.
 *
 * Reader: for untrusted bytes. It allocates nothing, does not recurse, nests at most
 * CAIRN_JSON_DEPTH_MAX deep, and its caller names every accepted key. The first error stays, with
 * its place; cairn_json_reader_done returns it. After an error every call returns false or zero, so
 * loops end. The caller refuses duplicate keys. Typical use:
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
 * CAIRN_NOMEM, or CAIRN_INTERNAL if begin and end do not match.
 */
CAIRN_MUST_CHECK cairn_err cairn_json_writer_done(struct cairn_json_writer *writer, char **text,
                                                  size_t *text_bytes);

/* ---- reader ---- */

struct cairn_json_reader {
    const char *text;
    size_t bytes_len;
    size_t at;
    uint32_t depth;
    bool first;      /* the innermost object or array has had no element yet */
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

/* Reads a string, unescaped, into out[out_bytes] with its NUL. Fails if it is too long, not UTF-8,
 * or holds U+0000. */
void cairn_json_read_string(struct cairn_json_reader *reader, char *out, size_t out_bytes);
/* Reads a whole number from 0 to value_max, without sign, fraction or exponent. */
uint64_t cairn_json_read_u64(struct cairn_json_reader *reader, uint64_t value_max);
/* Reads a finite number as JSON writes them. */
double cairn_json_read_double(struct cairn_json_reader *reader);
/* Skips a null and returns true; false if the next value is another. */
bool cairn_json_read_null(struct cairn_json_reader *reader);
/* The next character that is not white space, without taking it; NUL at the end or after a failure
 * (a NUL itself is not JSON). */
char cairn_json_peek(struct cairn_json_reader *reader);
/* The length in bytes, as written, of a string that comes next, without reading it; 0 for another
 * value. */
size_t cairn_json_peek_string_bytes(struct cairn_json_reader *reader);
/* Reads a string of exactly 16 * count lower-case hex digits. */
void cairn_json_read_hex64(struct cairn_json_reader *reader, uint64_t *values, size_t count);

/* Skips one value of any kind, checking its syntax. */
void cairn_json_skip(struct cairn_json_reader *reader);

/* Fails at the present place; `why` is static. The first failure stays. */
void cairn_json_reader_fail(struct cairn_json_reader *reader, const char *why);
bool cairn_json_reader_failed(const struct cairn_json_reader *reader);

/* CAIRN_OK after one whole value with only white space left, else CAIRN_CORRUPT with why and at. */
CAIRN_MUST_CHECK cairn_err cairn_json_reader_done(struct cairn_json_reader *reader);

/* True where the bytes are UTF-8 without overlong forms and surrogates. */
bool cairn_utf8_valid(const char *text, size_t bytes_len);
/* Puts a code point, at most 0x10ffff, in UTF-8; returns its bytes. */
size_t cairn_utf8_put(char out[4], uint32_t value);

#endif
