/*
 * tests/fuzz/fuzz_fabric.c - what proved peers send beside a fabric: offers, tags, and frames of
 * the transport, in any order.
 *
 * The first byte chooses the protection; the rest are steps of a kind and four numbers (node or
 * buffer, a length, where a bit is flipped, which), and for a frame of any bytes those bytes. A
 * buffer counts as filled exactly if it was open and the last frame for it was right in all bits.
 * It is torn if the frame has the right form, and its tags are wrong.
 */
#include "tests/fuzz/require.h"
#include "tests/support/fabric.h"
#include "tests/support/quiet_log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { STEP_BYTES = 6, STEPS_MAX = 40, SEED = 9, ANY_BYTES_MAX = 128 };
enum step { STEP_OFFER, STEP_TAGS, STEP_ANY, STEP_OPEN, STEP_CLOSE, STEP_LOST, STEP_SEND, STEPS };

struct model {
    bool open;
    uint32_t filled_bytes;
    bool torn;
};

static struct cairn_cipher *cipher;
static enum cairn_protection protection;
static struct model model[FABRIC_BUFFERS];
static bool known[FABRIC_NODES];

static void
buffer_close(uint32_t index)
{
    require(fabric.rdma->ops->region(fabric.rdma, index, NULL) == CAIRN_OK);
    model[index] = (struct model){0};
}

/* So that the model need not keep a key that is not ours. */
static void
lose(uint32_t node)
{
    fabric.control.events.changed(fabric.control.events.context, node, "lost");
    known[node] = false;
}

static void
offer_step(uint32_t node, const uint8_t *step)
{
    uint8_t frame[FABRIC_OFFER_BYTES];
    size_t len = fabric_offer(protection, SEED, frame);
    uint32_t broken = fabric.broken_count[node];
    size_t at = step[4] % len;
    bool changed = step[5] != 0;

    frame[at] ^= step[5];
    if (frame[0] != 'F')
        return; /* another kind of frame: STEP_ANY has those */
    fabric_deliver(node, frame, len - (step[2] & 1));
    /* Its key may be any; then no tag will be right. */
    if (known[node] || (step[2] & 1) || (changed && (at < 4 || at >= 36))) {
        require(fabric.broken_count[node] == broken + 1);
        known[node] = false;
    } else {
        require(fabric.broken_count[node] == broken);
        known[node] = true;
        if (changed)
            lose(node);
    }
}

static uint64_t
number_at(const uint8_t *bytes, int count)
{
    uint64_t value = 0;

    for (int i = count - 1; i >= 0; i--)
        value = value << 8 | bytes[i];
    return value;
}

/* Whether a frame names an open buffer and has as many tags as its payload needs. */
static bool
is_formed(const uint8_t *frame, size_t len, uint32_t index)
{
    uint64_t count = number_at(frame + 2, 2), bytes_len = number_at(frame + 4, 4);
    uint64_t blocks = (bytes_len + CAIRN_BLOCK_BYTES - 1) / CAIRN_BLOCK_BYTES;

    return frame[1] == 0 && bytes_len > 0 && bytes_len <= CAIRN_BULK_BYTES_MAX &&
           count == (protection == CAIRN_PROTECTION_NONE ? 0 : blocks) &&
           len == FABRIC_TAGS_BYTES + count * CAIRN_CIPHER_TAG_BYTES && model[index].open &&
           number_at(frame + 16, 8) == fabric.remotes[index].address &&
           number_at(frame + 24, 8) == fabric.remotes[index].key;
}

static void
tags_step(uint32_t node, const uint8_t *step, uint64_t number)
{
    static const uint32_t lengths[] = {1, 300, CAIRN_BLOCK_BYTES, CAIRN_BLOCK_BYTES + 5};
    uint8_t frame[FABRIC_FRAME_BYTES_MAX];
    uint32_t index = step[3] % FABRIC_BUFFERS, bytes_len = lengths[step[2] % 4];
    bool tagged = (protection != CAIRN_PROTECTION_NONE) != ((step[2] & 4) != 0);
    bool cut = step[2] & 8;
    uint32_t broken = fabric.broken_count[node];
    size_t len;

    fabric_pool[index][0]++;
    len = fabric_tags(cipher, tagged ? SEED : 0, index, bytes_len, number, frame);
    if (protection == CAIRN_PROTECTION_NONE && step[5])
        return; /* nothing tells these bytes from right bytes */
    if (step[4] & 1)
        fabric_pool[index][0] ^= step[5];
    else
        frame[1 + step[4] % (len - 1)] ^= step[5];
    fabric_deliver(node, frame, len - cut);
    if (known[node] && is_formed(frame, len - cut, index)) {
        require(fabric.broken_count[node] == broken);
        model[index] =
            (struct model){.filled_bytes = (uint32_t)number_at(frame + 4, 4), .torn = step[5] != 0};
        return;
    }
    require(fabric.broken_count[node] == broken + 1);
    known[node] = false;
}

static bool
is_any_formed(const uint8_t *bytes, size_t len)
{
    for (uint32_t i = 0; i < FABRIC_BUFFERS; i++)
        if (len >= FABRIC_TAGS_BYTES && is_formed(bytes, len, i))
            return true;
    return false;
}

static void
any_step(uint32_t node, const uint8_t *bytes, size_t len)
{
    uint32_t received = fabric.received_count, broken = fabric.broken_count[node];
    uint8_t kind = len ? bytes[0] : 0;

    if (kind == 'T' && protection == CAIRN_PROTECTION_NONE)
        return; /* a fuzzer finds the keys of buffers */
    fabric_deliver(node, bytes, len);
    require(fabric.received_count == received || known[node]);
    if (fabric.broken_count[node] != broken)
        known[node] = false;
    else if (kind == 'F')
        lose(node);
    require(kind != 'T' || fabric.broken_count[node] != broken || is_any_formed(bytes, len));
    for (uint32_t i = 0; i < FABRIC_BUFFERS && kind == 'T'; i++)
        if (model[i].open || model[i].filled_bytes)
            buffer_close(i);
}

static void
buffers_check(void)
{
    for (uint32_t i = 0; i < FABRIC_BUFFERS; i++) {
        uint32_t bytes_len = model[i].filled_bytes;

        require(fabric.rdma->ops->filled(fabric.rdma, i, bytes_len) ==
                (model[i].torn ? CAIRN_BACKEND_TORN : CAIRN_BACKEND_WHOLE));
        require(fabric.rdma->ops->filled(fabric.rdma, i, bytes_len + 1) == CAIRN_BACKEND_EMPTY);
    }
}

static void
step_run(const uint8_t *step, const uint8_t *bytes, size_t len, uint64_t number)
{
    static struct cairn_backend_part part;
    uint32_t node = 1 + step[1] % (FABRIC_NODES - 1), index = step[3] % FABRIC_BUFFERS;

    switch (step[0] % STEPS) {
    case STEP_OFFER:
        offer_step(node, step);
        break;
    case STEP_TAGS:
        tags_step(node, step, number);
        break;
    case STEP_ANY:
        any_step(node, bytes, len);
        break;
    case STEP_OPEN:
        fabric_region_open(index);
        model[index] = (struct model){.open = true};
        break;
    case STEP_CLOSE:
        buffer_close(index);
        break;
    case STEP_LOST:
        lose(node);
        require(fabric.rdma->ops->disconnect(fabric.rdma, node) == CAIRN_OK);
        break;
    default:
        (void)!fabric.rdma->ops->send(fabric.rdma, node, "CRN", 3, &part);
        (void)!fabric.rdma->ops->write(fabric.rdma, node, fabric_pool[0], 300,
                                       (struct cairn_backend_remote){0}, &part);
        (void)fabric.rdma->ops->progress(fabric.rdma);
        break;
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t number = 0;
    size_t at = 1;

    if (!cipher) {
        cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
        require(cairn_cipher_openssl.open(&cipher) == CAIRN_OK);
    }
    if (size == 0 || size > STEPS_MAX * STEP_BYTES + ANY_BYTES_MAX)
        return 0;
    protection = data[0] & 1 ? CAIRN_PROTECTION_AUTHENTICATE : CAIRN_PROTECTION_NONE;
    memset(model, 0, sizeof model);
    memset(known, 0, sizeof known);
    require(fabric_open(protection) == CAIRN_OK);
    while (at + STEP_BYTES <= size) {
        const uint8_t *step = data + at;
        size_t len = step[0] % STEPS == STEP_ANY ? step[2] % ANY_BYTES_MAX : 0;

        at += STEP_BYTES;
        if (len > size - at)
            len = size - at;
        step_run(step, data + at, len, number++);
        at += len;
        buffers_check();
    }
    fabric_test_close();
    return 0;
}
