/*
 * base/wire.h - bounded little-endian reader and writer with a sticky error.
 *
 * All bytes that cross a process (messages, headers, manifests, session frames) are packed and
 * unpacked here, never by casting a pointer. After the first step past the end, reads give zero and
 * writes are dropped; the caller checks once, at the end, with cairn_reader_done or
 * cairn_writer_done. Strings are a u32 length and the bytes, without NUL.
 */
#ifndef CAIRN_BASE_WIRE_H
#define CAIRN_BASE_WIRE_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A little-endian number of at most 8 bytes, for formats of one or two numbers. */
uint64_t cairn_little_get(const uint8_t *bytes, size_t bytes_len);
void cairn_little_put(uint8_t *bytes, size_t bytes_len, uint64_t value);

struct cairn_reader {
    const uint8_t *at;
    const uint8_t *end;
    bool failed;
};

struct cairn_writer {
    uint8_t *bytes; /* borrowed; NULL: only counts */
    size_t used_bytes;
    size_t limit_bytes;
    bool failed;
};

void cairn_reader_init(struct cairn_reader *reader, const void *bytes, size_t bytes_len);
uint8_t cairn_read_u8(struct cairn_reader *reader);
uint16_t cairn_read_u16(struct cairn_reader *reader);
uint32_t cairn_read_u32(struct cairn_reader *reader);
uint64_t cairn_read_u64(struct cairn_reader *reader);

/* Copies bytes_len bytes out, or zeroes `out` when too few are left. */
void cairn_read_bytes(struct cairn_reader *reader, void *out, size_t bytes_len);

/* Borrows bytes_len bytes of the input, NULL when too few are left. */
const uint8_t *cairn_read_borrow(struct cairn_reader *reader, size_t bytes_len);

/* Reads a string into out[out_bytes] and ends it with NUL; too long or holding a NUL is a
 * failure. */
void cairn_read_string(struct cairn_reader *reader, char *out, size_t out_bytes);

size_t cairn_reader_left(const struct cairn_reader *reader);

/* CAIRN_OK when everything was read and nothing is left, else CAIRN_CORRUPT. */
CAIRN_MUST_CHECK cairn_err cairn_reader_done(const struct cairn_reader *reader);

/* With bytes = NULL and limit_bytes = SIZE_MAX a writer only measures. */
void cairn_writer_init(struct cairn_writer *writer, void *bytes, size_t limit_bytes);
void cairn_write_u8(struct cairn_writer *writer, uint8_t value);
void cairn_write_u16(struct cairn_writer *writer, uint16_t value);
void cairn_write_u32(struct cairn_writer *writer, uint32_t value);
void cairn_write_u64(struct cairn_writer *writer, uint64_t value);
void cairn_write_bytes(struct cairn_writer *writer, const void *bytes, size_t bytes_len);
void cairn_write_string(struct cairn_writer *writer, const char *text);

/* CAIRN_OK when all fitted, else CAIRN_FULL. */
CAIRN_MUST_CHECK cairn_err cairn_writer_done(const struct cairn_writer *writer);

#endif
