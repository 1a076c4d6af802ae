/*
 * client/sink.h - where the bytes of a restore go: the registered slices, on the host or on
 * devices.
 *
 * Private to client/. Host bytes are copied at once; device bytes are gathered into batches, so
 * that many small runs cost one issue. Sources must stay as they are until the next flush.
 */
#ifndef CAIRN_CLIENT_SINK_H
#define CAIRN_CLIENT_SINK_H

#include "cairn/client.h"

#include <stdatomic.h>

struct client_sink;

/* Opens every device that the slices name; writes there wait for the work that its stream has by
 * now. slices[count] and failing[count] are borrowed until close, failing until the last put;
 * failing[i] is set when slice i gets a floating-point value that is not finite. CAIRN_NOMEM,
 * CAIRN_DEVICE; CAIRN_AGAIN while a stream is captured into a CUDA graph. */
CAIRN_MUST_CHECK cairn_err client_sink_open(const struct cairn_client *client,
                                            const struct cairn_slice *slices, uint32_t count,
                                            atomic_bool *failing, uint64_t deadline_ns,
                                            struct client_sink **out);

/* Pins this memory for faster copies to devices; close unpins it. */
CAIRN_MUST_CHECK cairn_err client_sink_pin(struct client_sink *sink, void *memory, uint64_t bytes);

/* Puts bytes at `offset` bytes of a slice; the range lies inside it. CAIRN_DEVICE, CAIRN_TIMEOUT.
 */
CAIRN_MUST_CHECK cairn_err client_sink_put(struct client_sink *sink, uint32_t slice,
                                           uint64_t offset, const uint8_t *bytes,
                                           uint64_t bytes_len);

/*
 * The same for a slice on the host, with one pass over the bytes: *is_good if cairn_crc64 of them
 * is crc; if not, what is there now is wrong. False: on a device, or the range cuts an element;
 * nothing was put.
 */
bool client_sink_put_checked(struct client_sink *sink, uint32_t slice, uint64_t offset,
                             const uint8_t *bytes, uint64_t bytes_len, uint64_t crc, bool *is_good);

/* Waits until everything put so far has arrived. CAIRN_DEVICE, CAIRN_TIMEOUT. */
CAIRN_MUST_CHECK cairn_err client_sink_flush(struct client_sink *sink);

/*
 * Waits until no device writes any more, and frees. NULL is allowed. False: a device hangs, until
 * the deadline and for a second at least. Its copies stay pending then: the memory that bytes were
 * put from must stay mapped, and this may be called again.
 */
bool client_sink_close(struct client_sink *sink);

#endif
