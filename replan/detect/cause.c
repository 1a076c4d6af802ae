/*
 * replan/detect/cause.c - from channels that are slow to what makes them so.
 *
 * A node most of whose channels to other nodes are hot has a slow NIC; a hot pair that no node
 * explains is a slow link, several pairs between the same two nodes one too. A ring is as slow as
 * its slowest link: a hot ring of more than two ranks that nothing else narrows down names all its
 * links, and the nodes one of whose NICs it may be.
 */
#include "replan/detect/detector.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double sibling_score_min = 4.5, sibling_size_min = 0.175; /* ln(1.19): nearly hot */
static const double node_share_min = 0.75; /* of a node's channels to others that are hot */
/* of a shift, that others show or do not */
static const double like_share = 0.5, unlike_share = 0.25;
static const double like_errors = 2.5; /* standard errors that they must show it by */
enum {
    STEPS_MIN = 4,
    NODES_SHOWN = 6,
    NODE_BYTES = 48,
    OTHERS_STEPS = 32,
    ONSET_STEPS = 8 /* by which noise may move the onset of a shift */
};

static bool
between_nodes(const struct cairn_topology *topology, const struct cairn_channel *channel)
{
    return channel->comm == CAIRN_COMM_NONE
               ? cairn_topology_apart(topology, channel->source, channel->target)
               : topology->comms[channel->comm].crosses;
}

/*
 * True for a channel within a node that is slow since one of its ranks is: processors move the data
 * there, so a rank that lacks them (a limit, other work beside it) computes and transfers late, and
 * that is one cause.
 */
static bool
is_slow_ranks(const struct cairn_detector *detector, const struct cairn_channel *channel)
{
    const struct cairn_topology *topology = detector->topology;
    const uint32_t ends[] = {channel->source, channel->target};
    bool is_pair = channel->comm == CAIRN_COMM_NONE;
    const uint32_t *ranks = is_pair ? ends : topology->comms[channel->comm].ranks;

    for (uint32_t i = 0; i < channel->members && !between_nodes(topology, channel); i++) {
        uint32_t index = detector->ranks[ranks[i]].verdict, since;

        if (index == UINT32_MAX)
            continue;
        since = detector->verdicts.items[index].since_step;
        if (since <= channel->found.since_step + ONSET_STEPS &&
            channel->found.since_step <= since + ONSET_STEPS)
            return true;
    }
    return false;
}

/* True where a channel is hot and not explained yet, or nearly so. */
static bool
unexplained(const struct cairn_detector *detector, const struct cairn_channel *channel)
{
    struct cairn_shift_limits limits = {.sigma = detector->classes[channel->class_index].sigma,
                                        .base = channel->base,
                                        .base_values = channel->normal_steps,
                                        .first_values = CAIRN_CALIBRATE_STEPS,
                                        .score_min = sibling_score_min,
                                        .size_min = sibling_size_min,
                                        .steps_min = STEPS_MIN};
    struct cairn_shift_found found;

    if (channel->verdict != UINT32_MAX || isnan(channel->normal) ||
        (channel->hot && is_slow_ranks(detector, channel)))
        return false;
    return channel->hot || cairn_detect_link_shifted(detector, channel, &limits, &found);
}

static bool
touches(const struct cairn_topology *topology, const struct cairn_channel *channel, uint32_t node)
{
    if (channel->comm == CAIRN_COMM_NONE)
        return topology->node[channel->source] == node || topology->node[channel->target] == node;
    for (uint32_t i = 0; i < topology->comms[channel->comm].count; i++)
        if (topology->node[topology->comms[channel->comm].ranks[i]] == node)
            return true;
    return false;
}

struct tally {
    uint32_t touching, hot;
    uint64_t first_path;
    uint32_t channel; /* the last that was counted, plus 1 */
    bool several_paths;
};

static void
tally_one(struct tally *tally, uint64_t path, uint32_t index, bool open)
{

    if (tally->channel == index + 1) /* a ring with several ranks on the node */
        return;
    tally->channel = index + 1;
    tally->touching++;
    if (!open)
        return;
    if (tally->hot++ == 0)
        tally->first_path = path;
    else if (path != tally->first_path)
        tally->several_paths = true;
}

/* Of each node, the channels between it and others. */
static void
tally_nodes(const struct cairn_detector *detector, const bool *open, struct tally *tallies)
{
    const struct cairn_topology *topology = detector->topology;

    for (uint32_t i = 0; i < detector->channel_count; i++) {
        const struct cairn_channel *channel = &detector->channels[i];
        uint32_t pair[] = {channel->source, channel->target}, count = 2;
        const uint32_t *ranks = pair;

        if (isnan(channel->normal) || !between_nodes(topology, channel))
            continue;
        if (channel->comm != CAIRN_COMM_NONE) {
            ranks = topology->comms[channel->comm].ranks;
            count = topology->comms[channel->comm].count;
        }
        for (uint32_t k = 0; k < count; k++)
            if (topology->node[ranks[k]] != CAIRN_NODE_UNKNOWN)
                tally_one(&tallies[topology->node[ranks[k]]], channel->path, i, open[i]);
    }
}

/* The node that explains most of the open channels; CAIRN_NODE_UNKNOWN where none does, or two do
 * equally well. tallies[node_count] are the caller's to reuse. */
static uint32_t
best_node(const struct cairn_detector *detector, const bool *open, struct tally *tallies)
{
    uint32_t best = CAIRN_NODE_UNKNOWN, best_hot = 0;

    memset(tallies, 0, detector->topology->node_count * sizeof *tallies);
    tally_nodes(detector, open, tallies);
    for (uint32_t node = 0; node < detector->topology->node_count; node++) {
        const struct tally *tally = &tallies[node];

        if (tally->hot < 2 || !tally->several_paths ||
            tally->hot < node_share_min * tally->touching)
            continue;
        if (tally->hot > best_hot) {
            best_hot = tally->hot;
            best = node;
        } else if (tally->hot == best_hot) {
            best = CAIRN_NODE_UNKNOWN;
        }
    }
    return best;
}

static cairn_err
add_link(struct cairn_verdict *verdict, uint32_t source, uint32_t target)
{
    const uint32_t ends[] = {source, target};
    cairn_err err = CAIRN_OK;

    for (int i = 0; !err && i < 2; i++) {
        err = cairn_list_add(&verdict->links, ends[i]);
        if (!err)
            err = cairn_list_add(&verdict->ranks, ends[i]);
    }
    return err;
}

/* Names a channel's links in a verdict: of a ring those that touch the node, or all between
 * nodes. */
static cairn_err
add_links(const struct cairn_topology *topology, const struct cairn_channel *channel, uint32_t node,
          struct cairn_verdict *verdict)
{
    const struct cairn_comm *comm;
    cairn_err err = CAIRN_OK;

    if (channel->comm == CAIRN_COMM_NONE)
        return add_link(verdict, channel->source, channel->target);
    comm = &topology->comms[channel->comm];
    for (uint32_t i = 0; !err && i < comm->count; i++) {
        uint32_t source = comm->ranks[i], target = comm->ranks[(i + 1) % comm->count];

        if (comm->crosses && !cairn_topology_apart(topology, source, target))
            continue;
        if (node != CAIRN_NODE_UNKNOWN && topology->node[source] != node &&
            topology->node[target] != node)
            continue;
        err = add_link(verdict, source, target);
    }
    return err;
}

struct cause {
    uint32_t node, source, target; /* a node's NIC, or the pair (either way), or one channel
                                    * alone */
    uint32_t channel;
};

/* True for two pairs of ranks between the same two nodes. */
static bool
between_same_nodes(const struct cairn_topology *topology, const struct cairn_channel *channel,
                   const struct cause *cause)
{
    const uint32_t *node = topology->node;

    return between_nodes(topology, channel) && ((node[channel->source] == node[cause->source] &&
                                                 node[channel->target] == node[cause->target]) ||
                                                (node[channel->source] == node[cause->target] &&
                                                 node[channel->target] == node[cause->source]));
}

static bool
belongs(const struct cairn_detector *detector, uint32_t index, const struct cause *cause)
{
    const struct cairn_channel *channel = &detector->channels[index];

    if (cause->node != CAIRN_NODE_UNKNOWN)
        return between_nodes(detector->topology, channel) &&
               touches(detector->topology, channel, cause->node);
    if (index == cause->channel)
        return true;
    if (channel->members == 2)
        return detector->channels[cause->channel].members == 2 &&
               ((channel->source == cause->source && channel->target == cause->target) ||
                (channel->source == cause->target && channel->target == cause->source) ||
                between_same_nodes(detector->topology, channel, cause));
    /* rings that are slow at the same time go over one slow link */
    return channel->members > 2 && detector->channels[cause->channel].members > 2 &&
           between_nodes(detector->topology, channel) ==
               between_nodes(detector->topology, &detector->channels[cause->channel]);
}

/* How far channels are above their normal in the mean, and how well that is known. */
struct mean_shift {
    double size, error; /* NaN where there are fewer than two channels */
};

/* Of the channels between a node and others outside any verdict, in the last steps. */
static struct mean_shift
others_shift(const struct cairn_detector *detector, uint32_t node, uint32_t index, uint32_t steps)
{
    double sum = 0, squares = 0;
    uint32_t count = 0;

    for (uint32_t i = 0; i < detector->channel_count; i++) {
        const struct cairn_channel *channel = &detector->channels[i];
        double sigma = detector->classes[channel->class_index].sigma;

        if (isnan(channel->normal) || channel->verdict == index || channel->shift.used < steps ||
            !between_nodes(detector->topology, channel) ||
            !touches(detector->topology, channel, node))
            continue;
        sum += cairn_shift_recent(&channel->shift, steps) - channel->base;
        squares += sigma * sigma * (1.0 / steps + 1 / channel->normal_steps);
        count++;
    }
    if (count < 2)
        return (struct mean_shift){(double)NAN, (double)NAN};
    return (struct mean_shift){sum / count, sqrt(squares) / count};
}

/*
 * Several pairs of ranks between two nodes are one cause: what they share. It is the NIC of that
 * node whose channels to third nodes, too noisy each to be called slow, are late as well in the
 * mean, while those of the other are not. When more is known it is reported again.
 */
static cairn_err
join_pairs(struct cairn_detector *detector, uint32_t index, const struct cause *cause)
{
    struct cairn_verdict *verdict = &detector->verdicts.items[index];
    const uint32_t ends[] = {detector->topology->node[cause->source],
                             detector->topology->node[cause->target]};
    uint32_t steps = detector->channels[cause->channel].found.steps;
    double size = log(verdict->rate);
    struct mean_shift shift[2];

    if (verdict->ranks.count <= 2)
        return CAIRN_OK;
    for (uint32_t i = 0; i < detector->channel_count; i++)
        if (detector->channels[i].verdict == index)
            detector->channels[i].vague = true;
    snprintf(verdict->evidence, sizeof verdict->evidence,
             "transfers between node %u and node %u take %.2f times their normal time per byte, "
             "regardless of who "
             "arrives last, those of several pairs of ranks alike: what they share",
             ends[0], ends[1], verdict->rate);
    for (int i = 0; i < 2; i++)
        shift[i] =
            others_shift(detector, ends[i], index, steps < OTHERS_STEPS ? steps : OTHERS_STEPS);
    for (int i = 0; i < 2; i++) {
        size_t used = strlen(verdict->evidence);

        if (!(shift[i].size >= like_share * size && shift[i].size >= like_errors * shift[i].error &&
              shift[1 - i].size <= unlike_share * size))
            continue;
        snprintf(verdict->evidence + used, sizeof verdict->evidence - used,
                 "; channels of node %u to others take %.2f times their normal time, those of node "
                 "%u %.2f times: its NIC",
                 ends[i], exp(shift[i].size), ends[1 - i], exp(shift[1 - i].size));
        return cairn_list_add(&verdict->nodes, ends[i]);
    }
    detector->links_pending = true; /* look again soon */
    detector->links_pending_step = detector->now.step;
    return CAIRN_OK;
}

static cairn_err
say(struct cairn_detector *detector, bool *open, const struct cause *cause)
{
    struct cairn_verdict *verdict;
    uint32_t index, count = 0, rings = 0;
    double score = 0;
    cairn_err err = cairn_verdicts_add(&detector->verdicts, CAIRN_SLOW_LINK, &index);

    if (err)
        return err;
    verdict = &detector->verdicts.items[index];
    verdict->since_step = UINT32_MAX;
    verdict->detected_step = detector->now.step;
    for (uint32_t i = 0; !err && i < detector->channel_count; i++) {
        struct cairn_channel *channel = &detector->channels[i];

        if (!open[i] || !belongs(detector, i, cause))
            continue;
        open[i] = false;
        if (!channel->hot)
            continue;
        channel->verdict = index;
        channel->vague = cause->node == CAIRN_NODE_UNKNOWN && channel->members > 2;
        if (channel->said_step == CAIRN_STEP_NONE)
            channel->said_step = detector->now.step;
        if (channel->said_step < verdict->detected_step)
            verdict->detected_step = channel->said_step;
        score = fmax(score, channel->found.score);
        count++;
        rings += channel->members > 2;
        if (channel->found.since_step < verdict->since_step)
            verdict->since_step = channel->found.since_step;
        err = add_links(detector->topology, channel, cause->node, verdict);
    }
    cairn_list_sort(&verdict->links, 2);
    cairn_list_sort(&verdict->ranks, 1);
    verdict->rate = cairn_detect_link_rate(detector, index);
    verdict->confidence = 1 - exp(-score / 2);
    if (cause->node != CAIRN_NODE_UNKNOWN) {
        if (!err)
            err = cairn_list_add(&verdict->nodes, cause->node);
        snprintf(
            verdict->evidence, sizeof verdict->evidence,
            "%u channels between node %u and others take %.2f times their normal time per byte, "
            "while others keep theirs: the NIC, or what it is plugged into",
            count, cause->node, verdict->rate);
    } else {
        if (rings > 0)
            verdict->confidence *= 0.5; /* one of several links, and nothing says which */
        snprintf(verdict->evidence, sizeof verdict->evidence,
                 "transfers take %.2f times their normal time per byte, regardless of who arrives "
                 "last%s",
                 verdict->rate,
                 rings > 0
                     ? "; a ring of more than two ranks is as slow as its slowest link, and no "
                       "other channel tells which"
                     : "");
        if (!err && detector->channels[cause->channel].members == 2)
            err = join_pairs(detector, index, cause);
    }
    return err;
}

/*
 * Adds to the evidence of a verdict on rings the nodes one of whose NICs it may be: those that
 * nearly all of its rings go over, and hardly any channel that keeps its time. `mine` and `tallies`
 * are scratch.
 */
static void
name_candidates(const struct cairn_detector *detector, uint32_t index, bool *mine,
                struct tally *tallies)
{
    const struct cairn_topology *topology = detector->topology;
    char *text = detector->verdicts.items[index].evidence;
    size_t used = strlen(text);
    uint32_t rings = 0, shown = 0, more = 0;

    for (uint32_t i = 0; i < detector->channel_count; i++) {
        mine[i] = detector->channels[i].verdict == index;
        rings += mine[i] && between_nodes(topology, &detector->channels[i]);
    }
    memset(tallies, 0, topology->node_count * sizeof *tallies);
    tally_nodes(detector, mine, tallies);
    for (uint32_t node = 0; node < topology->node_count && rings > 0; node++) {
        if (tallies[node].hot < node_share_min * rings ||
            tallies[node].hot < node_share_min * tallies[node].touching)
            continue;
        if (shown == NODES_SHOWN || used + NODE_BYTES > CAIRN_EVIDENCE_BYTES) {
            more++;
            continue;
        }
        used += (size_t)snprintf(text + used, CAIRN_EVIDENCE_BYTES - used, "%s %u",
                                 shown++ > 0 ? " or" : "; if it is a NIC, that of node", node);
    }
    if (more > 0 && used < CAIRN_EVIDENCE_BYTES)
        (void)snprintf(text + used, CAIRN_EVIDENCE_BYTES - used, ", or of %u more", more);
}

/* True if a pair was reported slow, and something else that goes over one of its nodes has been
 * slow since the same time: it may be that node's NIC after all. */
static bool
is_in_doubt(const struct cairn_detector *detector, const struct cairn_channel *pair)
{
    const struct cairn_topology *topology = detector->topology;

    if (pair->comm != CAIRN_COMM_NONE || !pair->hot || !between_nodes(topology, pair) ||
        detector->verdicts.items[pair->verdict].nodes.count > 0)
        return false;
    for (uint32_t i = 0; i < detector->channel_count; i++) {
        const struct cairn_channel *channel = &detector->channels[i];

        if (channel->hot && channel->verdict == UINT32_MAX && between_nodes(topology, channel) &&
            channel->found.since_step <= pair->found.since_step + ONSET_STEPS &&
            pair->found.since_step <= channel->found.since_step + ONSET_STEPS &&
            (touches(topology, channel, topology->node[pair->source]) ||
             touches(topology, channel, topology->node[pair->target])))
            return true;
    }
    return false;
}

/* What was reported of rings without a link is reported again, with what is known by now; so is a
 * pair that may be part of more. */
static void
take_back_vague(struct cairn_detector *detector)
{
    for (uint32_t i = 0; i < detector->channel_count; i++) {
        uint32_t index = detector->channels[i].verdict;

        if (index == UINT32_MAX ||
            (!detector->channels[i].vague && !is_in_doubt(detector, &detector->channels[i])))
            continue;
        for (uint32_t k = 0; k < detector->channel_count; k++)
            if (detector->channels[k].verdict == index)
                detector->channels[k].verdict = UINT32_MAX;
        cairn_detect_drop(detector, index);
    }
}

/* Hot channels of a node whose NIC is known to be slow need no verdict of their own. */
static void
join_known(struct cairn_detector *detector, bool *open)
{
    for (uint32_t i = 0; i < detector->channel_count; i++)
        for (uint32_t v = 0; open[i] && v < detector->verdicts.count; v++) {
            const struct cairn_verdict *verdict = &detector->verdicts.items[v];
            struct cause cause = {.channel = i};

            if (verdict->kind != CAIRN_SLOW_LINK || verdict->nodes.count != 1 ||
                verdict->until_step != CAIRN_STEP_NONE)
                continue;
            cause.node = verdict->nodes.items[0];
            if (!belongs(detector, i, &cause))
                continue;
            detector->channels[i].verdict = v;
            open[i] = false;
        }
}

cairn_err
cairn_detect_link_causes(struct cairn_detector *detector)
{
    bool *open = calloc(detector->channel_count + 1, sizeof *open);
    bool *mine = calloc(detector->channel_count + 1, sizeof *mine);
    struct tally *tallies = calloc((size_t)detector->topology->node_count + 1, sizeof *tallies);
    cairn_err err = CAIRN_OK;
    uint32_t node;

    if (!open || !mine || !tallies) {
        err = CAIRN_NOMEM;
        goto done;
    }
    detector->links_pending = false;
    take_back_vague(detector);
    for (uint32_t i = 0; i < detector->channel_count; i++)
        open[i] = unexplained(detector, &detector->channels[i]);
    join_known(detector, open);
    while (!err && (node = best_node(detector, open, tallies)) != CAIRN_NODE_UNKNOWN)
        err = say(detector, open, &(struct cause){.node = node});
    for (int pairs = 1; pairs >= 0; pairs--) /* pairs first: a ring may only go over the same
                                              * link */
        for (uint32_t i = 0; !err && i < detector->channel_count; i++) {
            const struct cairn_channel *channel = &detector->channels[i];
            struct cause cause = {CAIRN_NODE_UNKNOWN, channel->source, channel->target, i};

            if (!open[i] || !channel->hot || (channel->comm == CAIRN_COMM_NONE) != (pairs == 1))
                continue;
            err = say(detector, open, &cause);
            if (!err && channel->vague && channel->members > 2)
                name_candidates(detector, channel->verdict, mine, tallies);
        }
done:
    free(open);
    free(mine);
    free(tallies);
    return err;
}
