/* agent/service/drill.c - see drill.h. */
#include "agent/service/drill.h"

#include "agent/process/agent_state.h"
#include "agent/process/codes.h"
#include "agent/process/mail.h"
#include "agent/process/memory.h"
#include "agent/service/drill_plan.h"
#include "agent/service/fetch_state.h"
#include "base/crc.h"
#include "base/log.h"
#include "base/worker.h"
#include "snapshot/manifest.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t resend_ns = 1 * CAIRN_NS_PER_S;
static const uint64_t patience_ns = 10 * CAIRN_NS_PER_S; /* without any line decoded */
static const uint64_t again_ns = 50 * CAIRN_NS_PER_MS;
enum { DAMAGED_MAX = 8 }; /* blocks of a source, after which others are preferred */
static const uint64_t BYTES_OF_LINES = (uint64_t)DRILL_BLOCKS * CAIRN_BLOCK_BYTES;

/* The group in the generation that is read. */
struct drill_group {
    struct cairn_stripes stripes;
    uint32_t own;                       /* position */
    uint32_t part;                      /* that holds it, here */
    uint64_t lost;                      /* positions */
    uint32_t members[CAIRN_SHARDS_MAX]; /* by position, as the next */
    uint32_t holders[CAIRN_SHARDS_MAX];
    struct cairn_manifest manifests[CAIRN_SHARDS_MAX];
};

struct drill {
    struct cairn_agent *agent;
    struct cairn_timer timer;
    struct drill_ask ask;
    struct drill_report report;
    uint64_t heard_ns;                     /* the asker, last */
    uint64_t progress_ns;                  /* lines were decoded last */
    uint64_t next_ns;                      /* the rate: nothing is read before */
    struct cairn_generation_id generation; /* of `group`; step 0: none is loaded */
    struct drill_group group;
    struct drill_place place;
    uint64_t careful_until; /* lines before it are decoded one by one: one of them is damaged */
    bool reading;           /* the next are valid */
    struct drill_lines lines;
    uint64_t sources, bad, waits; /* positions */
    uint64_t avoid;               /* … with much damage */
    uint32_t damaged[CAIRN_SHARDS_MAX];
    bool suspected; /* the line at `suspect` was bad once */
    struct drill_place suspect;
    uint64_t ids[CAIRN_SHARDS_MAX];
    uint64_t own_crcs[DRILL_BLOCKS]; /* of own parity */
    uint64_t sent_ns;
    bool decoding;
    uint8_t *bytes; /* BYTES_OF_LINES for each position */
    uint32_t byte_shards;
};

/* ---- the end ---- */

static uint8_t *
bytes_of(const struct drill *drill, uint32_t position)
{
    return drill->bytes + position * BYTES_OF_LINES;
}

static void
unload(struct drill *drill)
{
    for (uint32_t p = 0; p < CAIRN_SHARDS_MAX; p++)
        cairn_manifest_fini(&drill->group.manifests[p]);
    memset(&drill->group, 0, sizeof drill->group);
    drill->generation = (struct cairn_generation_id){0};
}

static void
free_drill(struct drill *drill)
{
    unload(drill);
    free(drill->bytes);
    free(drill);
}

/* `survivable` has no meaning with an error. */
static void __attribute__((format(printf, 4, 5)))
finish(struct drill *drill, bool survivable, cairn_err err, const char *format, ...)
{
    va_list list;

    drill->report.finished = true;
    drill->report.survivable = survivable;
    drill->report.err = err;
    drill->reading = false;
    va_start(list, format);
    vsnprintf(drill->report.text, sizeof drill->report.text, format, list);
    va_end(list);
    CAIRN_LOG_AT(INFO,
                 "drill: ended survivable=%d result=\"%s\" group=%u decoded_bytes=%" PRIu64
                 " read_bytes=%" PRIu64 " %s",
                 survivable, cairn_err_text(err), drill->ask.group, drill->report.decoded_bytes,
                 drill->report.read_bytes, drill->report.text);
    free(drill->bytes);
    drill->bytes = NULL;
}

/* ---- the group ---- */

static bool
is_lost(const struct drill *drill, uint32_t holder)
{
    for (uint32_t i = 0; i < drill->ask.node_count; i++)
        if (drill->ask.nodes[i] == holder)
            return true;
    return holder == UINT32_MAX ||
           (holder != drill->agent->config.node && !cairn_core_alive(drill->agent->core, holder));
}

/* An own part of the ready generation in the group that was asked for. */
static bool
find_own(const struct drill *drill, struct cairn_generation_id ready, uint32_t *index,
         struct cairn_part_view *out)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        if (cairn_core_look_part(drill->agent->core, i, out) && out->state == CAIRN_PART_COMPLETE &&
            out->stripes && out->roster &&
            cairn_generation_id_compare(out->generation, ready) == 0 &&
            out->roster->members[out->member].group == drill->ask.group) {
            *index = i;
            return true;
        }
    return false;
}

static cairn_err
load_manifest(struct drill *drill, const struct cairn_part_view *view, uint32_t position)
{
    struct drill_group *group = &drill->group;
    const uint8_t *packed = view->manifest;
    size_t len = view->manifest_len;

    if (position != group->own)
        packed = cairn_core_peer_manifest(drill->agent->core, group->part, group->members[position],
                                          &len);
    return packed ? cairn_manifest_unpack(packed, len, &group->manifests[position]) : CAIRN_AGAIN;
}

/* Loads the ready generation's group. CAIRN_AGAIN: it is not here now. */
static cairn_err
load(struct drill *drill, struct cairn_generation_id ready)
{
    struct drill_group *group = &drill->group;
    const struct cairn_roster_group *members;
    struct cairn_part_view view;
    uint64_t blocks = drill->report.total_bytes / CAIRN_BLOCK_BYTES;
    cairn_err err = CAIRN_OK;

    unload(drill);
    if (!find_own(drill, ready, &group->part, &view))
        return CAIRN_AGAIN;
    members = cairn_roster_group_of(view.roster, view.member);
    group->own = view.position;
    group->stripes = *view.stripes;
    for (uint32_t p = 0; !err && p < members->count; p++) {
        group->members[p] = members->members[p];
        group->holders[p] = cairn_core_holder(drill->agent->core, ready, group->members[p]);
        if (p == group->own)
            group->holders[p] = drill->agent->config.node;
        if (is_lost(drill, group->holders[p]))
            group->lost |= UINT64_C(1) << p;
        err = load_manifest(drill, &view, p);
    }
    if (err)
        return err;
    drill->generation = ready;
    drill->bad = drill->avoid = 0;
    drill->suspected = false;
    memset(drill->damaged, 0, sizeof drill->damaged);
    drill->report.total_bytes =
        drill_total_blocks(&group->stripes, group->lost) * CAIRN_BLOCK_BYTES;
    if (blocks && drill->report.total_bytes / CAIRN_BLOCK_BYTES != blocks)
        drill->place = (struct drill_place){0}; /* another layout: from the start */
    if (!drill->report.first.step)
        drill->report.first = ready;
    drill->report.last = ready;
    return CAIRN_OK;
}

static bool
has(uint64_t positions, uint32_t position)
{
    return (positions >> position) & 1;
}

static uint32_t
count_of(uint64_t positions)
{
    return (uint32_t)__builtin_popcountll(positions);
}

/* ---- decoding ---- */

struct decode_drill {
    struct cairn_job job;
    struct drill *drill; /* stays until the job has ended */
    const struct cairn_code *code;
    uint64_t sources, wanted; /* shards of the stripe */
    uint8_t *shards[CAIRN_SHARDS_MAX];
    uint64_t bad;   /* positions of sources that are damaged */
    uint64_t wrong; /* positions whose decoded bytes differ from their checksums */
    cairn_err err;
};

static bool
is_good(const struct drill *drill, uint32_t position)
{
    const struct drill_group *group = &drill->group;
    const struct drill_lines *lines = &drill->lines;
    const uint8_t *bytes = bytes_of(drill, position);
    uint32_t count = drill_blocks(&group->stripes, lines, position);
    uint32_t row = cairn_stripe_parity_row(&group->stripes.geometry, lines->stripe, position);
    uint64_t first = 0;

    if (row == CAIRN_STRIPE_NONE) {
        (void)cairn_stripes_area(&group->stripes, lines->stripe, position, &first);
        return fetch_blocks_good(&group->manifests[position], first + lines->first, count, bytes);
    }
    for (uint32_t i = 0; position == group->own && i < count; i++)
        if (cairn_crc64(0, bytes + (size_t)i * CAIRN_BLOCK_BYTES, CAIRN_BLOCK_BYTES) !=
            drill->own_crcs[i])
            return false;
    return true; /* of another member, which has compared it */
}

static void
decode_run(struct cairn_job *job)
{
    struct decode_drill *decode = (struct decode_drill *)job;
    struct drill *drill = decode->drill;

    for (uint32_t p = 0; p < drill->group.stripes.geometry.n; p++)
        if (has(drill->sources, p) && !is_good(drill, p))
            decode->bad |= UINT64_C(1) << p;
    if (decode->bad)
        return;
    decode->err =
        cairn_code_rebuild_some(decode->code, (size_t)drill->lines.count * CAIRN_BLOCK_BYTES,
                                decode->sources, decode->wanted, decode->shards);
    for (uint32_t p = 0; !decode->err && p < drill->group.stripes.geometry.n; p++)
        if (has(drill->lines.wanted, p) && !is_good(drill, p))
            decode->wrong |= UINT64_C(1) << p;
}

static void begin_lines(struct drill *drill);

/*
 * True if the lines were bad before, in this generation. Once proves nothing: a node that drops the
 * generation while sending may send later bytes. The next time it refuses.
 */
static bool
is_confirmed(struct drill *drill)
{
    bool confirmed = drill->suspected && drill->suspect.stripe == drill->lines.stripe &&
                     drill->suspect.line == drill->lines.first;

    drill->suspected = !confirmed;
    drill->suspect = (struct drill_place){drill->lines.stripe, drill->lines.first};
    return confirmed;
}

/* Leaves damaged sources out: first line by line, to find the lines they are bad in. A source with
 * much damage is read only if no other is left. */
static void
leave_out(struct drill *drill, uint64_t bad)
{
    if (drill->lines.count > 1) {
        drill->careful_until = drill->lines.first + drill->lines.count;
    } else if (is_confirmed(drill)) {
        drill->bad |= bad;
        drill->report.damaged_blocks += count_of(bad);
        for (uint32_t p = 0; p < drill->group.stripes.geometry.n; p++)
            if (has(bad, p) && ++drill->damaged[p] >= DAMAGED_MAX)
                drill->avoid |= UINT64_C(1) << p;
    }
    begin_lines(drill);
}

static void
lines_done(struct drill *drill)
{
    uint64_t blocks = 0;

    for (uint32_t p = 0; p < drill->group.stripes.geometry.n; p++)
        if (has(drill->lines.wanted, p))
            blocks += drill_blocks(&drill->group.stripes, &drill->lines, p);
    drill->report.decoded_bytes += blocks * CAIRN_BLOCK_BYTES;
    drill->progress_ns = agent_now_ns(drill->agent);
    drill->place.line = drill->lines.first + drill->lines.count;
    drill->bad = 0;
    drill->suspected = false;
    begin_lines(drill);
}

static void
decode_done(struct cairn_job *job)
{
    struct decode_drill *decode = (struct decode_drill *)job;
    struct drill *drill = decode->drill;

    drill->decoding = false;
    drill->reading = false;
    if (decode->err)
        finish(drill, false, decode->err, "the lines cannot be decoded");
    else if (decode->bad)
        leave_out(drill, decode->bad);
    else if (decode->wrong && !is_confirmed(drill))
        begin_lines(drill);
    else if (decode->wrong)
        finish(drill, false, CAIRN_OK,
               "member %u: line %" PRIu64 " of stripe %u decodes to other bytes than its checksum "
               "says",
               drill->group.members[__builtin_ctzll(decode->wrong)], drill->lines.first,
               drill->lines.stripe);
    else
        lines_done(drill);
    mail_deliver_self(drill->agent);
    free(decode);
}

static void
decode(struct drill *drill)
{
    const struct cairn_geometry *geometry = &drill->group.stripes.geometry;
    struct decode_drill *decode = calloc(1, sizeof *decode);

    if (decode)
        decode->code = codes_get(&drill->agent->codes, geometry->k, geometry->m);
    if (!decode || !decode->code) {
        free(decode);
        finish(drill, false, CAIRN_NOMEM, "no memory to decode");
        return;
    }
    decode->job = (struct cairn_job){.run = decode_run, .done = decode_done};
    decode->drill = drill;
    decode->sources = cairn_stripe_shards_of(geometry, drill->lines.stripe, drill->sources);
    decode->wanted = cairn_stripe_shards_of(geometry, drill->lines.stripe, drill->lines.wanted);
    for (uint32_t p = 0; p < geometry->n; p++)
        decode->shards[cairn_stripe_shard(geometry, drill->lines.stripe, p)] = bytes_of(drill, p);
    if (cairn_workers_submit(drill->agent->workers, &decode->job) != CAIRN_OK) {
        free(decode);
        drill->reading = false; /* read again at the next tick */
        return;
    }
    drill->decoding = true;
}

/* ---- reading ---- */

/* Copies own blocks. False: they are not here any more. */
static bool
read_own(struct drill *drill)
{
    const struct drill_group *group = &drill->group;
    const struct drill_lines *lines = &drill->lines;
    uint32_t count = drill_blocks(&group->stripes, lines, group->own);
    uint32_t row = cairn_stripe_parity_row(&group->stripes.geometry, lines->stripe, group->own);
    struct cairn_part_view view;
    const uint8_t *bytes;
    uint64_t first = 0;

    if (!cairn_core_look_part(drill->agent->core, group->part, &view) ||
        view.state != CAIRN_PART_COMPLETE ||
        cairn_generation_id_compare(view.generation, drill->generation) != 0)
        return false;
    if (row == CAIRN_STRIPE_NONE) {
        (void)cairn_stripes_area(&group->stripes, lines->stripe, group->own, &first);
        bytes = cairn_memory_data(drill->agent->memory, group->part, first + lines->first, count);
    } else {
        bytes = cairn_memory_parity(drill->agent->memory, group->part, row,
                                    group->stripes.geometry.m, lines->first, count);
        memcpy(drill->own_crcs, view.parity_crcs[row] + lines->first,
               count * sizeof *drill->own_crcs);
    }
    if (bytes)
        memcpy(bytes_of(drill, group->own), bytes, (size_t)count * CAIRN_BLOCK_BYTES);
    return bytes != NULL;
}

static void
ask_for(struct drill *drill, uint32_t position)
{
    const struct drill_group *group = &drill->group;
    const struct drill_lines *lines = &drill->lines;
    struct cairn_agent *agent = drill->agent;
    uint32_t row = cairn_stripe_parity_row(&group->stripes.geometry, lines->stripe, position);
    struct cairn_service_message message = {
        .kind = CAIRN_SERVICE_FETCH,
        .from = agent->config.node,
        .to = group->holders[position],
        .generation = drill->generation,
        .item = group->members[position],
        .verb = row == CAIRN_STRIPE_NONE ? ASK_BLOCKS : ASK_PARITY,
        .block_count = drill_blocks(&group->stripes, lines, position),
        .request = drill->ids[position]};

    if (row == CAIRN_STRIPE_NONE) {
        (void)cairn_stripes_area(&group->stripes, lines->stripe, position, &message.offset);
        message.offset += lines->first;
    } else {
        message.offset = lines->first;
        message.total = row;
    }
    mail_send_service(agent, &message, NULL, 0, UINT32_MAX);
}

/* Reads the sources of the lines. */
static void
read_sources(struct drill *drill)
{
    const struct drill_group *group = &drill->group;
    uint64_t read_bytes = 0, now_ns = agent_now_ns(drill->agent);

    drill->reading = true;
    drill->waits = 0;
    drill->sent_ns = now_ns;
    for (uint32_t p = 0; p < group->stripes.geometry.n; p++) {
        uint32_t count = drill_blocks(&group->stripes, &drill->lines, p);

        memset(bytes_of(drill, p), 0, BYTES_OF_LINES);
        if (!has(drill->sources, p) || count == 0)
            continue;
        read_bytes += (uint64_t)count * CAIRN_BLOCK_BYTES;
        if (group->holders[p] == drill->agent->config.node && p == group->own) {
            if (!read_own(drill))
                drill->reading = false;
            continue;
        }
        drill->waits |= UINT64_C(1) << p;
        drill->ids[p] = ++drill->agent->fetches->next_id;
    }
    drill->report.read_bytes += read_bytes;
    drill->next_ns = now_ns + (uint64_t)((double)read_bytes * 1e9 / (double)drill->ask.rate);
    if (!drill->reading)
        return; /* a newer generation is ready: from the next tick on */
    for (uint32_t p = 0; p < group->stripes.geometry.n; p++)
        if (has(drill->waits, p))
            ask_for(drill, p);
    if (!drill->waits)
        decode(drill);
}

/* The nodes that a set of positions lies on. */
static const char *
nodes_of(const struct drill *drill, uint64_t positions, char *text, size_t text_bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (uint32_t p = 0; p < drill->group.stripes.geometry.n && used < text_bytes; p++)
        if (has(positions, p)) {
            int len = drill->group.holders[p] == UINT32_MAX
                          ? snprintf(text + used, text_bytes - used, "%s(nobody)", used ? ", " : "")
                          : snprintf(text + used, text_bytes - used, "%s%u", used ? ", " : "",
                                     drill->group.holders[p]);

            used += len > 0 ? (size_t)len : 0;
        }
    return text;
}

/* True if the group is loaded, and at most m of its members are lost. */
static bool
is_loaded(struct drill *drill)
{
    struct cairn_agent *agent = drill->agent;
    struct cairn_core_view view;
    char nodes[128];
    cairn_err err;

    cairn_core_look(agent->core, &view);
    if (view.fenced || view.ready_from_files || view.ready.step == 0)
        return false;
    if (drill->generation.step && cairn_generation_id_compare(view.ready, drill->generation) == 0)
        return true;
    err = load(drill, view.ready);
    if (err == CAIRN_NOMEM)
        finish(drill, false, err, "no memory for the manifests");
    if (err)
        return false;
    if (count_of(drill->group.lost) > drill->group.stripes.geometry.m) {
        finish(drill, false, CAIRN_OK,
               "group %u loses %u of %u members (nodes %s), and survives %u", drill->ask.group,
               count_of(drill->group.lost), drill->group.stripes.geometry.n,
               nodes_of(drill, drill->group.lost, nodes, sizeof nodes),
               drill->group.stripes.geometry.m);
        return false;
    }
    if (drill->byte_shards < drill->group.stripes.geometry.n) {
        free(drill->bytes);
        drill->byte_shards = drill->group.stripes.geometry.n;
        drill->bytes = malloc(drill->byte_shards * BYTES_OF_LINES);
        if (!drill->bytes)
            finish(drill, false, CAIRN_NOMEM, "no memory for %u blocks per member", DRILL_BLOCKS);
    }
    return !drill->report.finished;
}

static void
begin_lines(struct drill *drill)
{
    struct cairn_agent *agent = drill->agent;
    uint64_t now_ns = agent_now_ns(agent);
    const struct drill_group *group = &drill->group;
    uint32_t lines_max = drill->place.line < drill->careful_until ? 1 : DRILL_BLOCKS;
    uint32_t stripe = drill->place.stripe;
    char nodes[128];

    if (drill->report.finished || agent->stopping)
        return;
    if (now_ns < drill->next_ns || !is_loaded(drill)) {
        if (!drill->report.finished)
            cairn_timer_start(agent->loop, &drill->timer,
                              now_ns < drill->next_ns ? drill->next_ns : now_ns + again_ns);
        return;
    }
    if (!drill_next(&group->stripes, group->lost, lines_max, &drill->place, &drill->lines)) {
        finish(drill, true, CAIRN_OK, "every line was decoded, and fits its checksum");
        return;
    }
    if (drill->place.stripe != stripe)
        drill->careful_until = 0;
    if (!drill_sources(&group->stripes.geometry, group->lost | drill->bad | drill->avoid,
                       group->own, &drill->sources) &&
        !drill_sources(&group->stripes.geometry, group->lost | drill->bad, group->own,
                       &drill->sources)) {
        finish(drill, false, CAIRN_OK,
               "line %" PRIu64 " of stripe %u cannot be decoded: beside the lost, its blocks on "
               "nodes %s are damaged; `cairn verify` repairs them while all nodes are up",
               drill->lines.first, drill->lines.stripe,
               nodes_of(drill, drill->bad, nodes, sizeof nodes));
        return;
    }
    read_sources(drill);
    if (!drill->reading && !drill->report.finished)
        cairn_timer_start(agent->loop, &drill->timer, now_ns + again_ns);
}

static void
on_timer(void *context)
{
    struct drill *drill = context;

    if (!drill->reading && !drill->decoding)
        begin_lines(drill);
    mail_deliver_self(drill->agent); /* blocks of other parts that lie here */
}

bool
drill_message(struct cairn_agent *agent, const struct cairn_service_message *message,
              const uint8_t *payload, size_t payload_len)
{
    struct drill *drill = agent->drill;
    uint32_t p = 0;

    if (message->kind != CAIRN_SERVICE_FETCHED || message->verb == ASK_MANIFEST || !drill ||
        !drill->reading || drill->decoding)
        return false;
    while (p < CAIRN_SHARDS_MAX && !(has(drill->waits, p) && drill->ids[p] == message->request))
        p++;
    if (p == CAIRN_SHARDS_MAX)
        return false;
    if (message->verb == ASK_PARITY && message->total != UINT64_MAX) {
        finish(drill, false, CAIRN_VERSION, "node %u: its agent cannot send parity; upgrade it",
               message->from);
    } else if (message->err == CAIRN_CORRUPT) { /* parity that its owner found damaged */
        drill->reading = false;
        leave_out(drill, UINT64_C(1) << p);
    } else if (message->err ||
               payload_len != (size_t)CAIRN_BLOCK_BYTES *
                                  drill_blocks(&drill->group.stripes, &drill->lines, p)) {
        drill->reading = false; /* it has a newer generation: from the next tick on */
        cairn_timer_start(agent->loop, &drill->timer, agent_now_ns(agent) + again_ns);
    } else {
        memcpy(bytes_of(drill, p), payload, payload_len);
        drill->waits &= ~(UINT64_C(1) << p);
        if (!drill->waits)
            decode(drill);
    }
    return true;
}

/* ---- the service ---- */

static void
end(struct cairn_agent *agent)
{
    cairn_timer_stop(agent->loop, &agent->drill->timer);
    free_drill(agent->drill);
    agent->drill = NULL;
}

static bool
waits_for_the_dead(const struct drill *drill)
{
    for (uint32_t p = 0; p < CAIRN_SHARDS_MAX; p++)
        if (has(drill->waits, p) && is_lost(drill, drill->group.holders[p]))
            return true;
    return false;
}

void
drill_tick(struct cairn_agent *agent)
{
    struct drill *drill = agent->drill;
    uint64_t now_ns = agent_now_ns(agent);

    if (!drill || drill->decoding)
        return;
    if (now_ns - drill->heard_ns > DRILL_LEASE_NS) {
        end(agent);
        return;
    }
    if (drill->report.finished)
        return;
    if (now_ns > drill->next_ns && now_ns - drill->progress_ns > patience_ns) {
        char nodes[128];

        finish(drill, false, CAIRN_AGAIN, "no line could be read for %u s; waiting for nodes: %s",
               (unsigned)(patience_ns / CAIRN_NS_PER_S),
               nodes_of(drill, drill->reading ? drill->waits : 0, nodes, sizeof nodes));
    } else if (!drill->reading) {
        begin_lines(drill);
    } else if (now_ns - drill->sent_ns > resend_ns) {
        drill->sent_ns = now_ns;
        if (waits_for_the_dead(drill)) { /* they are lost too: the group is loaded again */
            drill->reading = false;
            drill->generation.step = 0;
            return;
        }
        for (uint32_t p = 0; p < CAIRN_SHARDS_MAX; p++)
            if (has(drill->waits, p))
                ask_for(drill, p);
    }
}

void
drill_look(struct cairn_agent *agent, const struct drill_ask *ask, struct drill_report *out)
{
    struct drill *drill = agent->drill;
    uint64_t now_ns = agent_now_ns(agent);

    if (drill && (drill->ask.asker != ask->asker || drill->ask.request != ask->request ||
                  drill->ask.group != ask->group)) {
        if (!drill->report.finished || drill->decoding) {
            *out = (struct drill_report){.finished = true, .err = CAIRN_AGAIN};
            snprintf(out->text, sizeof out->text, "node %u runs another drill; try again",
                     agent->config.node);
            return;
        }
        end(agent);
        drill = NULL;
    }
    if (!drill) {
        drill = agent->drill = calloc(1, sizeof *drill);
        if (!drill) {
            *out = (struct drill_report){.finished = true, .err = CAIRN_NOMEM};
            snprintf(out->text, sizeof out->text, "node %u has no memory for a drill",
                     agent->config.node);
            return;
        }
        drill->agent = agent;
        drill->ask = *ask;
        drill->progress_ns = now_ns;
        cairn_timer_init(&drill->timer, on_timer, drill);
        cairn_timer_start(agent->loop, &drill->timer, 0);
    }
    drill->heard_ns = now_ns;
    *out = drill->report;
}

void
drill_close(struct cairn_agent *agent)
{
    if (agent->drill)
        end(agent);
}
