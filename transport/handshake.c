/*
 * transport/handshake.c - the four frames before a session; frame.h specifies them.
 *
 * An unproved sender can cause an answer of 176 bytes, and for a peer that is not up a refusal that
 * slows the next try. It cannot end a session: only a handshake that is proved to its end replaces
 * one.
 */
#include "transport/internal.h"

#include "base/log.h"

#include <inttypes.h>
#include <string.h>

/* The shortest time between calls that answer the peer's own call. */
static const uint64_t call_again_ns = 50000000;

/* ---- refusals ---- */

/* The versions that the sender of a handshake speaks. */
static struct cairn_frame_versions
versions_of(const struct cairn_frame *frame, const struct cairn_frame_handshake *handshake)
{
    struct cairn_frame_versions only = {frame->version, frame->version};

    return handshake->versions.newest ? handshake->versions : only;
}

/* The newest version that both speak; 0: none. */
static uint16_t
version_choose(struct cairn_frame_versions a, struct cairn_frame_versions b)
{
    uint16_t newest = a.newest < b.newest ? a.newest : b.newest;
    uint16_t oldest = a.oldest > b.oldest ? a.oldest : b.oldest;

    return newest >= oldest ? newest : 0;
}

static void
refusal_log(struct cairn_transport *t, struct peer *peer, enum cairn_refusal refusal,
            const struct cairn_frame *frame, const struct cairn_frame_handshake *handshake)
{
    struct cairn_frame_versions theirs = versions_of(frame, handshake);

    if (peer->logged_refusal == refusal)
        return;
    peer->logged_refusal = refusal;
    switch (refusal) {
    case CAIRN_REFUSAL_VERSION:
        CAIRN_LOG_AT(ERROR,
                     "transport: peer node=%" PRIu32 " speaks versions %u to %u and this agent "
                     "speaks versions %u to %u; upgrade the older one",
                     peer->node, theirs.oldest, theirs.newest, t->versions.oldest,
                     t->versions.newest);
        break;
    case CAIRN_REFUSAL_JOB:
        CAIRN_LOG_AT(ERROR,
                     "transport: peer node=%" PRIu32 " belongs to another job (theirs %016" PRIx64
                     ", ours %016" PRIx64 "); check its address and job",
                     peer->node, frame->job_id, t->job_id);
        break;
    case CAIRN_REFUSAL_NODE:
        if (frame->from == peer->node)
            CAIRN_LOG_AT(ERROR,
                         "transport: peer node=%" PRIu32 " takes this node for node %" PRIu32
                         "; give both agents the same nodes in the same order",
                         peer->node, frame->to);
        else
            CAIRN_LOG_AT(ERROR,
                         "transport: peer node=%" PRIu32 " is not at its address: node %" PRIu32
                         " is there; give both agents the same nodes in the same order",
                         peer->node, frame->from);
        break;
    default:
        CAIRN_LOG_AT(ERROR,
                     "transport: peer node=%" PRIu32
                     " does not hold this job's key, or not the same job, nodes or protection, or "
                     "refuses this node's certificate (its log says which); give all agents of the "
                     "job the same",
                     peer->node);
        break;
    }
}

static void
peer_refused(struct cairn_transport *t, struct peer *peer, enum cairn_refusal refusal,
             const struct cairn_frame *frame, const struct cairn_frame_handshake *theirs)
{
    t->stats.refused_handshakes++;
    refusal_log(t, peer, refusal, frame, theirs);
    if (peer->state == CAIRN_PEER_UP)
        return; /* a session is not ended by a handshake that failed */
    peer_down(t, peer, refusal == CAIRN_REFUSAL_VERSION ? CAIRN_PEER_VERSION : CAIRN_PEER_DENIED,
              "refused");
}

/* The connection's own handshake failed on the key or a certificate: no frame was exchanged. */
void
peer_key_refused(void *context, uint32_t node, const char *why)
{
    static const struct cairn_frame_handshake nothing;
    struct cairn_transport *t = context;
    const struct cairn_frame frame = {.from = node, .to = t->node, .job_id = t->job_id};

    t->peers[node].calling = false;
    if (why) {
        if (t->peers[node].logged_refusal != CAIRN_REFUSAL_KEY)
            CAIRN_LOG_AT(ERROR, "transport: peer node=%" PRIu32 " is refused: %s", node, why);
        t->peers[node].logged_refusal = CAIRN_REFUSAL_KEY;
    }
    peer_refused(t, &t->peers[node], CAIRN_REFUSAL_KEY, &frame, &nothing);
}

/* Refuses: notes it here, and tells the other side in an answer to its nonce. */
static void
refuse(struct cairn_transport *t, struct peer *peer, enum cairn_refusal refusal,
       const struct cairn_frame *frame, const struct cairn_frame_handshake *theirs)
{
    struct cairn_frame_handshake answer = {.incarnation = t->incarnation,
                                           .versions = t->versions,
                                           .keyed = t->key_len > 0,
                                           .refusal = (uint8_t)refusal};

    memcpy(answer.nonce_initiator, theirs->nonce_initiator, sizeof answer.nonce_initiator);
    if (peer->state != CAIRN_PEER_UP && refusal != CAIRN_REFUSAL_JOB) {
        /* A stray peer of another job says nothing about the right one. */
        refusal_log(t, peer, refusal, frame, theirs);
        peer->state = refusal == CAIRN_REFUSAL_VERSION ? CAIRN_PEER_VERSION : CAIRN_PEER_DENIED;
        peer->calling = false;
        peer->next_call_ns = t->now_ns + refused_ns;
        transport_arm(t, peer->next_call_ns);
    } else {
        refusal_log(t, peer, refusal, frame, theirs);
    }
    t->stats.refused_handshakes++;
    peer->retry_ns = 0;
    peer_handshake_set(t, peer, CAIRN_FRAME_REFUSE, t->versions.newest, &answer);
}

/* ---- the four frames ---- */

static void
transcript_init(struct cairn_transcript *out, const struct cairn_transport *t,
                const struct peer *peer, bool initiator, uint64_t their_incarnation,
                struct cairn_frame_versions theirs)
{
    out->version = version_choose(t->versions, theirs);
    out->initiator_versions = initiator ? t->versions : theirs;
    out->responder_versions = initiator ? theirs : t->versions;
    out->job_id = t->job_id;
    out->initiator = initiator ? t->node : peer->node;
    out->responder = initiator ? peer->node : t->node;
    out->initiator_incarnation = initiator ? t->incarnation : their_incarnation;
    out->responder_incarnation = initiator ? their_incarnation : t->incarnation;
}

static void
hello_received(struct cairn_transport *t, struct peer *peer, const struct cairn_frame *frame,
               const struct cairn_frame_handshake *hello)
{
    struct cairn_frame_handshake welcome = {
        .incarnation = t->incarnation, .versions = t->versions, .keyed = t->key_len > 0};
    struct cairn_frame_versions theirs = versions_of(frame, hello);
    uint16_t version = version_choose(t->versions, theirs);
    struct cairn_transcript transcript;

    if (version == 0) {
        refuse(t, peer, CAIRN_REFUSAL_VERSION, frame, hello);
        return;
    }
    if (frame->job_id != t->job_id) {
        refuse(t, peer, CAIRN_REFUSAL_JOB, frame, hello);
        return;
    }
    if (frame->to != t->node) {
        refuse(t, peer, CAIRN_REFUSAL_NODE, frame, hello);
        return;
    }
    if (hello->keyed != (t->key_len > 0)) {
        refuse(t, peer, CAIRN_REFUSAL_KEY, frame, hello);
        return;
    }
    if (peer->calling && t->node < peer->node) {
        /* Both call: ours counts. It may have been lost with the process that was there before. */
        if (t->now_ns - peer->called_ns > call_again_ns)
            peer_call(t, peer);
        return;
    }
    if (cairn_proof_random(peer->answering_nonce, sizeof peer->answering_nonce) != CAIRN_OK)
        return;
    peer->calling = false;
    peer->answering = true;
    peer->answered_incarnation = hello->incarnation;
    peer->answered_versions = theirs;
    peer->answered_version = version;
    memcpy(peer->answered_nonce, hello->nonce_initiator, sizeof peer->answered_nonce);
    memcpy(welcome.nonce_initiator, peer->answered_nonce, sizeof welcome.nonce_initiator);
    memcpy(welcome.nonce_responder, peer->answering_nonce, sizeof welcome.nonce_responder);
    transcript_init(&transcript, t, peer, false, hello->incarnation, theirs);
    transcript.nonce_initiator = welcome.nonce_initiator;
    transcript.nonce_responder = welcome.nonce_responder;
    if (cairn_proof_make(t->key, t->key_len, "welcome", &transcript, welcome.proof) != CAIRN_OK)
        return;
    if (peer->state == CAIRN_PEER_DOWN && peer->next_call_ns < t->now_ns + t->call_timeout_ns)
        peer->next_call_ns = t->now_ns + t->call_timeout_ns; /* leave it the time to confirm */
    peer->retry_ns = 0;
    peer_handshake_set(t, peer, CAIRN_FRAME_WELCOME, version, &welcome);
}

static void
welcome_received(struct cairn_transport *t, struct peer *peer, const struct cairn_frame *frame,
                 const struct cairn_frame_handshake *welcome)
{
    struct cairn_frame_handshake confirm = {
        .incarnation = t->incarnation, .versions = t->versions, .keyed = t->key_len > 0};
    struct cairn_frame_versions theirs = versions_of(frame, welcome);
    uint16_t version = version_choose(t->versions, theirs);
    struct cairn_transcript transcript;
    uint64_t token;
    cairn_err err;

    if (!peer->calling || version == 0 || frame->version != version || frame->job_id != t->job_id ||
        frame->to != t->node ||
        memcmp(welcome->nonce_initiator, peer->calling_nonce, CAIRN_FRAME_NONCE_BYTES) != 0) {
        t->stats.dropped_unauthenticated++;
        return;
    }
    transcript_init(&transcript, t, peer, true, welcome->incarnation, theirs);
    transcript.nonce_initiator = welcome->nonce_initiator;
    transcript.nonce_responder = welcome->nonce_responder;
    err = cairn_proof_check(t->key, t->key_len, "welcome", &transcript, welcome->proof);
    if (err == CAIRN_DENIED) {
        peer_refused(t, peer, CAIRN_REFUSAL_KEY, frame, welcome);
        return;
    }
    memcpy(confirm.nonce_initiator, welcome->nonce_initiator, sizeof confirm.nonce_initiator);
    memcpy(confirm.nonce_responder, welcome->nonce_responder, sizeof confirm.nonce_responder);
    if (err ||
        cairn_proof_make(t->key, t->key_len, "confirm", &transcript, confirm.proof) != CAIRN_OK ||
        cairn_proof_token(t->key, t->key_len, &transcript, &token) != CAIRN_OK)
        return;
    /* goes out before any message */
    peer_handshake_set(t, peer, CAIRN_FRAME_CONFIRM, version, &confirm);
    peer_up(t, peer, welcome->incarnation, token, version);
}

static void
confirm_received(struct cairn_transport *t, struct peer *peer, const struct cairn_frame *frame,
                 const struct cairn_frame_handshake *confirm)
{
    struct cairn_transcript transcript;
    uint64_t token;
    cairn_err err;

    if (!peer->answering || frame->version != peer->answered_version ||
        frame->job_id != t->job_id || frame->to != t->node ||
        confirm->incarnation != peer->answered_incarnation ||
        memcmp(confirm->nonce_initiator, peer->answered_nonce, CAIRN_FRAME_NONCE_BYTES) != 0 ||
        memcmp(confirm->nonce_responder, peer->answering_nonce, CAIRN_FRAME_NONCE_BYTES) != 0) {
        t->stats.dropped_unauthenticated++;
        return;
    }
    transcript_init(&transcript, t, peer, false, confirm->incarnation, peer->answered_versions);
    transcript.nonce_initiator = peer->answered_nonce;
    transcript.nonce_responder = peer->answering_nonce;
    err = cairn_proof_check(t->key, t->key_len, "confirm", &transcript, confirm->proof);
    if (err == CAIRN_DENIED) {
        peer->answering = false;
        refuse(t, peer, CAIRN_REFUSAL_KEY, frame, confirm);
        return;
    }
    if (err || cairn_proof_token(t->key, t->key_len, &transcript, &token) != CAIRN_OK)
        return;
    peer_up(t, peer, confirm->incarnation, token, peer->answered_version);
}

static bool
answers_call(const struct peer *peer, const struct cairn_frame_handshake *answer)
{
    return peer->calling &&
           memcmp(answer->nonce_initiator, peer->calling_nonce, CAIRN_FRAME_NONCE_BYTES) == 0;
}

static void
refuse_received(struct cairn_transport *t, struct peer *peer, const struct cairn_frame *frame,
                const struct cairn_frame_handshake *answer)
{
    /* The node at the called node's address says which one it is. */
    for (uint32_t i = 0; answer->refusal == CAIRN_REFUSAL_NODE && i < t->node_count; i++)
        if (answers_call(&t->peers[i], answer))
            peer = &t->peers[i];
    if (answer->refusal == CAIRN_REFUSAL_NONE || answer->refusal > CAIRN_REFUSAL_NODE ||
        !answers_call(peer, answer)) {
        t->stats.dropped_unauthenticated++;
        return;
    }
    peer->calling = false;
    peer_refused(t, peer, (enum cairn_refusal)answer->refusal, frame, answer);
}

/* A handshake frame of any version, from a node that is in the list and not this one. */
void
peer_handshake(struct cairn_transport *t, const struct cairn_frame *frame)
{
    struct peer *peer = &t->peers[frame->from];
    struct cairn_frame_handshake handshake;

    if (cairn_frame_handshake_parse(frame->body, frame->body_len, &handshake) != CAIRN_OK) {
        t->stats.dropped_malformed++;
        return;
    }
    switch (frame->kind) {
    case CAIRN_FRAME_HELLO:
        hello_received(t, peer, frame, &handshake);
        break;
    case CAIRN_FRAME_WELCOME:
        welcome_received(t, peer, frame, &handshake);
        break;
    case CAIRN_FRAME_CONFIRM:
        confirm_received(t, peer, frame, &handshake);
        break;
    default:
        refuse_received(t, peer, frame, &handshake);
        break;
    }
}
