/*
 * tools/convert/pickle/write.c - a walk over the tree with a stack of its own; each frame is a node
 * that is being written, and knows which of its children comes next.
 */
#include "tools/convert/pickle/write.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/assert.h"
#include "base/wire.h"
#include "tools/convert/pickle/read.h"

enum { BATCH = 1000 }; /* items that Python puts behind one mark */

/* How batches are cut: Python has one loop for exact lists and dicts, one for what objects give. */
enum batch_style { BATCH_LIST, BATCH_DICT, BATCH_GIVEN };

struct batch {
    struct cairn_pickle_node *const *items;
    size_t slots;                /* of items; a pair has two */
    size_t slot;                 /* the next one */
    size_t begin_slot, end_slot; /* of the open batch */
    uint8_t width;               /* slots of an item: 1 or 2 */
    uint8_t style;
    uint8_t opened; /* 0; 1: behind a mark; 2: a single item */
    bool started;
};

struct frame {
    const struct cairn_pickle_node *node;
    uint32_t stage; /* how far it is written; the kind gives the meaning */
    struct batch batch;
};

struct number {
    const struct cairn_pickle_node *node; /* NULL: free */
    uint32_t number;
};

/* Its tables grow with what is written: a file may have a small tree for each of its many nodes. */
struct writer {
    uint8_t *bytes;
    size_t used_bytes, room_bytes;
    struct number *numbers; /* open addressing by node->index, at most half full */
    size_t number_room;     /* 0 or a power of two */
    uint32_t number_count;
    struct frame *frames;
    size_t frame_count;
    const char *why;
    bool exhausted;
};

/* ---- output ---- */

static void
no_memory(struct writer *writer)
{
    writer->why = "out of memory";
    writer->exhausted = true;
}

static void
put(struct writer *writer, const void *bytes, size_t bytes_len)
{
    if (bytes_len > CAIRN_PICKLE_BYTES_MAX - writer->used_bytes) {
        writer->why = "it is larger than 1 GiB";
        return;
    }
    if (writer->room_bytes - writer->used_bytes < bytes_len) {
        size_t room = writer->room_bytes ? writer->room_bytes : 4096;
        uint8_t *grown;

        while (room - writer->used_bytes < bytes_len)
            room *= 2;
        grown = realloc(writer->bytes, room);
        if (!grown) {
            no_memory(writer);
            return;
        }
        writer->bytes = grown;
        writer->room_bytes = room;
    }
    if (bytes_len > 0)
        memcpy(writer->bytes + writer->used_bytes, bytes, bytes_len);
    writer->used_bytes += bytes_len;
}

static void
put_text(struct writer *writer, const char *text)
{
    put(writer, text, strlen(text));
}

/* An opcode and a little-endian number of `bytes` bytes. */
static void
put_op(struct writer *writer, char opcode, uint64_t number, size_t bytes)
{
    uint8_t out[9] = {(uint8_t)opcode};

    cairn_little_put(out + 1, bytes, number);
    put(writer, out, 1 + bytes);
}

static void
put_number(struct writer *writer, char short_opcode, char long_opcode, uint32_t number)
{
    put_op(writer, number < 256 ? short_opcode : long_opcode, number, number < 256 ? 1 : 4);
}

/* The place of a node's number, or the free one where it would be; room is not 0. */
static struct number *
place_of(struct number *numbers, size_t room, const struct cairn_pickle_node *node)
{
    size_t at = (node->index * 2654435761u) & (room - 1);

    while (numbers[at].node && numbers[at].node != node)
        at = (at + 1) & (room - 1);
    return &numbers[at];
}

/* The number of a node that was written, NULL for none. */
static const uint32_t *
find_number(const struct writer *writer, const struct cairn_pickle_node *node)
{
    const struct number *place;

    if (writer->number_room == 0)
        return NULL;
    place = place_of(writer->numbers, writer->number_room, node);
    return place->node ? &place->number : NULL;
}

static bool
grow_numbers(struct writer *writer)
{
    size_t room = writer->number_room ? writer->number_room * 2 : 16;
    struct number *grown = calloc(room, sizeof(*grown));

    if (!grown)
        return false;
    for (size_t i = 0; i < writer->number_room; i++)
        if (writer->numbers[i].node)
            *place_of(grown, room, writer->numbers[i].node) = writer->numbers[i];
    free(writer->numbers);
    writer->numbers = grown;
    writer->number_room = room;
    return true;
}

/* The value on the stack is this node's: number it, if it is to have one. */
static void
memoize(struct writer *writer, const struct cairn_pickle_node *node)
{
    if (!node->memoized)
        return;
    if ((size_t)writer->number_count * 2 >= writer->number_room && !grow_numbers(writer)) {
        no_memory(writer);
        return;
    }
    put_number(writer, 'q', 'r', writer->number_count);
    *place_of(writer->numbers, writer->number_room, node) =
        (struct number){node, writer->number_count++};
}

static void
fetch(struct writer *writer, uint32_t number)
{
    put_number(writer, 'h', 'j', number);
}

/* ---- scalars ---- */

static void
put_long(struct writer *writer, const uint8_t *bytes, size_t bytes_len)
{
    put_op(writer, bytes_len < 256 ? '\x8a' : '\x8b', bytes_len, bytes_len < 256 ? 1 : 4);
    put(writer, bytes, bytes_len);
}

static void
put_int(struct writer *writer, int64_t integer)
{
    uint8_t bytes[8];
    size_t used = 8;

    if (integer >= INT32_MIN && integer <= INT32_MAX) {
        if (integer >= 0 && integer < 65536)
            put_op(writer, integer < 256 ? 'K' : 'M', (uint64_t)integer, integer < 256 ? 1 : 2);
        else
            put_op(writer, 'J', (uint64_t)integer, 4);
        return;
    }
    cairn_little_put(bytes, 8, (uint64_t)integer);
    while (bytes[used - 1] == (bytes[used - 2] >= 0x80 ? 0xff : 0))
        used--; /* ends: the number has more than 32 bits */
    put_long(writer, bytes, used);
}

static void
put_float(struct writer *writer, double real)
{
    uint64_t bits;
    uint8_t bytes[9] = {'G'};

    memcpy(&bits, &real, sizeof(bits));
    for (size_t i = 0; i < 8; i++)
        bytes[1 + i] = (uint8_t)(bits >> (56 - 8 * i));
    put(writer, bytes, sizeof(bytes));
}

/* callable(bytes as text, encoding), as protocol 2 says bytes. */
static void
put_latin1(struct writer *writer, const struct cairn_pickle_node *node, const char *callable,
           const char *encoding)
{
    uint64_t text_bytes = node->count;

    for (uint32_t i = 0; i < node->count; i++)
        text_bytes += node->bytes[i] >> 7;
    put_text(writer, callable);
    if (text_bytes > UINT32_MAX) {
        writer->why = "it is larger than 1 GiB";
        return;
    }
    put_op(writer, 'X', text_bytes, 4);
    for (uint32_t i = 0; i < node->count && !writer->why; i++) {
        uint8_t c = node->bytes[i];
        uint8_t two[2] = {(uint8_t)(0xc0 | c >> 6), (uint8_t)(0x80 | (c & 0x3f))};

        put(writer, c < 0x80 ? &c : two, c < 0x80 ? 1 : 2);
    }
    put_op(writer, 'X', strlen(encoding), 4);
    put_text(writer, encoding);
    put_text(writer, "\x86R"); /* TUPLE2, REDUCE */
}

static void
put_scalar(struct writer *writer, const struct cairn_pickle_node *node)
{
    switch (node->kind) {
    case CAIRN_PICKLE_NONE:
        put_text(writer, "N");
        break;
    case CAIRN_PICKLE_BOOL:
        put_text(writer, node->truth ? "\x88" : "\x89");
        break;
    case CAIRN_PICKLE_INT:
        put_int(writer, node->integer);
        break;
    case CAIRN_PICKLE_BIG_INT:
        put_long(writer, node->bytes, node->count);
        break;
    case CAIRN_PICKLE_FLOAT:
        put_float(writer, node->real);
        break;
    case CAIRN_PICKLE_TEXT:
        put_op(writer, 'X', node->count, 4);
        put(writer, node->bytes, node->count);
        break;
    case CAIRN_PICKLE_TEXT8:
        put_number(writer, 'U', 'T', node->count);
        put(writer, node->bytes, node->count);
        break;
    case CAIRN_PICKLE_BYTES:
        put_latin1(writer, node, "c_codecs\nencode\n", "latin1");
        break;
    case CAIRN_PICKLE_BYTEARRAY:
        put_latin1(writer, node, "c__builtin__\nbytearray\n", "latin-1");
        break;
    default: /* GLOBAL */
        put_text(writer, "c");
        put_text(writer, node->global->module);
        put_text(writer, "\n");
        put_text(writer, node->global->name);
        put_text(writer, "\n");
    }
    memoize(writer, node);
}

/* ---- batches ---- */

static void
batch_begin(struct batch *batch, const struct cairn_pickle_node *container, enum batch_style style)
{
    memset(batch, 0, sizeof(*batch));
    batch->started = true;
    batch->style = (uint8_t)style;
    batch->width = container && container->kind == CAIRN_PICKLE_DICT ? 2 : 1;
    batch->items = container ? container->items : NULL;
    batch->slots = container ? (size_t)container->count * batch->width : 0;
}

static void
batch_close(struct writer *writer, struct batch *batch)
{
    bool full = batch->end_slot - batch->begin_slot == (size_t)BATCH * batch->width;

    if (batch->opened == 2)
        put_text(writer, batch->width == 2 ? "s" : "a");
    else
        put_text(writer, batch->width == 2 ? "u" : "e");
    /* Python ends an exact dict at a batch that is not full, be it empty */
    if (full && batch->style == BATCH_DICT && batch->slot == batch->slots)
        put_text(writer, "(u");
    batch->opened = 0;
}

/* The next item's slot, with what stands before it written; NULL at the end, all written. */
static const struct cairn_pickle_node *
batch_next(struct writer *writer, struct batch *batch)
{
    size_t left;
    bool single;

    if (batch->opened && batch->slot == batch->end_slot)
        batch_close(writer, batch);
    if (batch->slot == batch->slots)
        return NULL;
    if (!batch->opened) {
        left = batch->slots - batch->slot;
        single = (batch->style == BATCH_GIVEN ? left : batch->slots) == batch->width;
        batch->begin_slot = batch->slot;
        batch->end_slot = left < (size_t)BATCH * batch->width
                              ? batch->slots
                              : batch->slot + (size_t)BATCH * batch->width;
        batch->opened = single ? 2 : 1;
        if (!single)
            put_text(writer, "(");
    }
    return batch->items[batch->slot++];
}

/* ---- what has children ---- */

/* A value that holds itself was written while it was being written: that one is it. */
static bool
made_before(struct writer *writer, const struct cairn_pickle_node *node, const char *throw_away)
{
    const uint32_t *number = find_number(writer, node);

    if (!number)
        return false;
    put_text(writer, throw_away);
    fetch(writer, *number);
    return true;
}

static const struct cairn_pickle_node *
next_of_tuple(struct writer *writer, struct frame *frame)
{
    static const char *const make[] = {")", "\x85", "\x86", "\x87", "t"};
    static const char *const throw_away[] = {"", "0", "00", "000", "1"};
    const struct cairn_pickle_node *tuple = frame->node;
    size_t form = tuple->count > 3 ? 4 : tuple->count;

    if (frame->stage == 0 && form == 4)
        put_text(writer, "(");
    if (frame->stage < tuple->count)
        return tuple->items[frame->stage++];
    if (form > 0 && made_before(writer, tuple, throw_away[form]))
        return NULL;
    put_text(writer, make[form]);
    memoize(writer, tuple);
    return NULL;
}

static const struct cairn_pickle_node *
next_of_container(struct writer *writer, struct frame *frame)
{
    bool dict = frame->node->kind == CAIRN_PICKLE_DICT;

    if (!frame->batch.started) {
        put_text(writer, dict ? "}" : "]");
        memoize(writer, frame->node);
        batch_begin(&frame->batch, frame->node, dict ? BATCH_DICT : BATCH_LIST);
    }
    return batch_next(writer, &frame->batch);
}

/* set([…]) */
static const struct cairn_pickle_node *
next_of_set(struct writer *writer, struct frame *frame)
{
    const struct cairn_pickle_node *child;

    if (!frame->batch.started) {
        put_text(writer, frame->node->kind == CAIRN_PICKLE_SET ? "c__builtin__\nset\n]"
                                                               : "c__builtin__\nfrozenset\n]");
        batch_begin(&frame->batch, frame->node, BATCH_LIST);
    }
    child = batch_next(writer, &frame->batch);
    if (child)
        return child;
    put_text(writer, "\x85R");
    if (!made_before(writer, frame->node, "0"))
        memoize(writer, frame->node);
    return NULL;
}

enum object_stage { CALLABLE, ARGS, KWARGS, CALL, ITEMS, PAIRS, STATE, BUILD };

static const struct cairn_pickle_node *
next_of_object(struct writer *writer, struct frame *frame)
{
    static const char *const calls[] = {[CAIRN_PICKLE_REDUCE] = "R",
                                        [CAIRN_PICKLE_NEWOBJ] = "\x81",
                                        [CAIRN_PICKLE_NEWOBJ_EX] = "\x92"};
    const struct cairn_pickle_object *object = frame->node->object;
    const struct cairn_pickle_node *child = NULL;

    while (!child) {
        switch ((enum object_stage)frame->stage++) {
        case CALLABLE:
            child = object->callable;
            break;
        case ARGS:
            child = object->args;
            break;
        case KWARGS:
            child = object->kwargs;
            break;
        case CALL:
            put_text(writer, calls[object->call]);
            if (made_before(writer, frame->node, "0"))
                return NULL;
            memoize(writer, frame->node);
            batch_begin(&frame->batch, object->items, BATCH_GIVEN);
            break;
        case ITEMS:
            child = batch_next(writer, &frame->batch);
            if (child)
                frame->stage = ITEMS;
            else
                batch_begin(&frame->batch, object->pairs, BATCH_GIVEN);
            break;
        case PAIRS:
            child = batch_next(writer, &frame->batch);
            if (child)
                frame->stage = PAIRS;
            break;
        case STATE:
            child = object->state;
            break;
        case BUILD:
            put_text(writer, object->state ? "b" : "");
            return NULL;
        }
    }
    return child;
}

static const struct cairn_pickle_node *
next_of_persistent(struct writer *writer, struct frame *frame)
{
    if (frame->stage++ == 0)
        return frame->node->items[0];
    put_text(writer, "Q");
    memoize(writer, frame->node);
    return NULL;
}

/* The next child to write, or NULL when the node is complete. */
static const struct cairn_pickle_node *
next_child(struct writer *writer, struct frame *frame)
{
    switch (frame->node->kind) {
    case CAIRN_PICKLE_TUPLE:
        return next_of_tuple(writer, frame);
    case CAIRN_PICKLE_LIST:
    case CAIRN_PICKLE_DICT:
        return next_of_container(writer, frame);
    case CAIRN_PICKLE_SET:
    case CAIRN_PICKLE_FROZENSET:
        return next_of_set(writer, frame);
    case CAIRN_PICKLE_OBJECT:
        return next_of_object(writer, frame);
    case CAIRN_PICKLE_PERSISTENT:
        return next_of_persistent(writer, frame);
    default:
        put_scalar(writer, frame->node);
        return NULL;
    }
}

static void
visit(struct writer *writer, const struct cairn_pickle_node *node)
{
    const uint32_t *number = find_number(writer, node);

    if (number) {
        fetch(writer, *number);
        return;
    }
    if (writer->frame_count == CAIRN_PICKLE_DEPTH_MAX) {
        writer->why = "it is nested more than 1000 deep";
        return;
    }
    if (!cairn_array_grow(&writer->frames, writer->frame_count, sizeof(*writer->frames))) {
        no_memory(writer);
        return;
    }
    memset(&writer->frames[writer->frame_count], 0, sizeof(struct frame));
    writer->frames[writer->frame_count++].node = node;
}

cairn_err
cairn_pickle_write(const struct cairn_pickle *pickle, const struct cairn_pickle_node *root,
                   uint8_t **bytes, size_t *bytes_len, struct cairn_complaint *complaint)
{
    struct writer writer = {0};
    cairn_err err = CAIRN_OK;

    CAIRN_ASSERT(root->index <= pickle->node_count);

    put_text(&writer, "\x80\x02"); /* PROTO 2 */
    visit(&writer, root);
    while (writer.frame_count > 0 && !writer.why) {
        const struct cairn_pickle_node *child =
            next_child(&writer, &writer.frames[writer.frame_count - 1]);

        if (child)
            visit(&writer, child);
        else
            writer.frame_count--;
    }
    put_text(&writer, ".");
    if (writer.why) {
        err = cairn_complain(complaint, writer.exhausted ? CAIRN_NOMEM : CAIRN_INVAL, "pickle: %s",
                             writer.why);
        goto done;
    }
    *bytes = writer.bytes;
    *bytes_len = writer.used_bytes;
    writer.bytes = NULL;
done:
    free(writer.bytes);
    free(writer.numbers);
    free(writer.frames);
    return err;
}
