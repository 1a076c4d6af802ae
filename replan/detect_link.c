/*
 * replan/detect_link.c - which links carry their data more slowly than is normal for them.
 *
 * A channel is a pair of ranks in one direction, or a communicator with an operation. Its transfer is
 * what the last rank to arrive needed, per byte. It is compared with the channel's own first steps, or
 * with the channels of its class where it was slow from the beginning. A channel whose transfers stay longer is hot. A node most of whose channels to
 * other nodes are hot has a slow NIC; a hot pair that no node explains is a slow link; a hot ring of
 * more than two ranks that nothing else narrows down names all its links.
 */
#include "replan/detector.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const double score_min = 7, sibling_score_min = 4.5, sigma_floor = 0.02;
static const double node_share_min = 0.75; /* of a node's channels to others that are hot */
static const double excess_min = 0.35;     /* over the class, from the first step on: ln(1.42) */
enum { STEPS_MIN = 4, QUIET_STEPS = 8, GATHER_STEPS = 3, CLASS_MIN = 4, NORMAL_STEPS_MAX = 256, CLASSES = 2 + 16 * 2 * 64 };

/* The least shift that counts: ln(1.3). */
static const double size_min = 0.2624;

static bool
between_nodes(const struct cairn_topology *topology, const struct cairn_channel *channel)
{
    return channel->comm == CAIRN_COMM_NONE
               ? cairn_topology_apart(topology, channel->source, channel->target)
               : topology->comms[channel->comm].crosses;
}

static int
compare_floats(const void *left, const void *right)
{
    float a = *(const float *)left, b = *(const float *)right;

    return (a > b) - (a < b);
}

/* The quantile of a value over the channels of a class. Of their normals, or of the
 * noise of their first steps. NaN with fewer than `least`. */
static double
class_quantile(const struct cairn_detector *detector, uint32_t class_index, bool noise,
               double share, uint32_t least)
{
    float *values = malloc((detector->channel_count * CAIRN_CALIBRATE_STEPS + 1) * sizeof *values);
    uint32_t count = 0;
    double result = (double)NAN;

    for (uint32_t i = 0; values && i < detector->channel_count; i++) {
        const struct cairn_channel *channel = &detector->channels[i];

        if (channel->class_index != class_index || isnan(channel->normal))
            continue;
        if (!noise)
            values[count++] = (float)channel->normal;
        else
            for (uint32_t k = 0; k < channel->first_count; k++)
                values[count++] = fabsf(channel->first[k] - (float)channel->normal);
    }
    if (count >= least && count > 0) {
        qsort(values, count, sizeof *values, compare_floats);
        result = (double)values[(uint32_t)(share * (count - 1))];
    }
    free(values);
    return result;
}

static cairn_err
make_classes(struct cairn_detector *detector)
{
    if (detector->class_sigma)
        return CAIRN_OK;
    detector->class_sigma = calloc(CLASSES, sizeof *detector->class_sigma);
    return detector->class_sigma ? CAIRN_OK : CAIRN_NOMEM;
}

/* A channel's first steps are over: its normal, and its class's noise anew. */
static void
calibrate(struct cairn_detector *detector, struct cairn_channel *channel)
{
    float values[CAIRN_CALIBRATE_STEPS];

    for (uint32_t k = 0; k < channel->first_count; k++)
        values[k] = channel->first[k];
    channel->normal = (double)cairn_quantile(values, channel->first_count, 0.5);
    detector->class_sigma[channel->class_index] = 0; /* to be found again */
}

/* Few values tell little of the noise: the fewer, the more of it is assumed. */
static void
find_class_sigma(struct cairn_detector *detector, uint32_t class_index)
{
    double spread = class_quantile(detector, class_index, true, 0.5, 4);
    uint32_t count = 0;

    for (uint32_t i = 0; i < detector->channel_count; i++)
        if (detector->channels[i].class_index == class_index && !isnan(detector->channels[i].normal))
            count += detector->channels[i].first_count;
    detector->class_sigma[class_index] =
        isnan(spread) ? 1 : fmax(1.6 * (1 + 2 / sqrt(count)) * spread, sigma_floor);
}

/* A channel that was slow from the beginning, among the others of its class. */
static void
find_excess(struct cairn_detector *detector, struct cairn_channel *channel)
{
    double middle = class_quantile(detector, channel->class_index, false, 0.35, CLASS_MIN);
    double least = fmax(excess_min, 5 * 1.25 * detector->class_sigma[channel->class_index] /
                                        sqrt(CAIRN_CALIBRATE_STEPS));

    channel->normal_steps = CAIRN_CALIBRATE_STEPS / 1.57; /* a median's efficiency */
    if (!isnan(middle) && channel->normal - middle > least)
        channel->excess = channel->normal - middle;
    for (uint32_t k = 0; k < channel->first_count; k++)
        cairn_shift_push(&channel->shift, channel->first_step[k],
                         (double)channel->first[k] - channel->normal + channel->excess);
}

/* What has left the window without being part of a shift makes the normal better known. */
static void
refine(const struct cairn_detector *detector, struct cairn_channel *channel)
{
    double clip = 3 * detector->class_sigma[channel->class_index], oldest;

    if (channel->shift.used < CAIRN_SHIFT_WINDOW || channel->hot)
        return;
    oldest = cairn_shift_value(&channel->shift, CAIRN_SHIFT_WINDOW - 1) - channel->base;
    channel->normal_steps = fmin(channel->normal_steps + 1, NORMAL_STEPS_MAX);
    channel->base += fmax(fmin(oldest, clip), -clip) / channel->normal_steps;
}

static void
follow(struct cairn_detector *detector, struct cairn_channel *channel)
{
    double value = cairn_shift_value(&channel->shift, 0) - channel->base;
    bool others = false;

    if (value >= channel->found.size / 3) {
        channel->quiet_steps = 0;
        return;
    }
    if (++channel->quiet_steps < QUIET_STEPS)
        return;
    channel->hot = false;
    for (uint32_t i = 0; i < detector->channel_count; i++)
        others |= detector->channels[i].hot && detector->channels[i].verdict == channel->verdict;
    if (channel->verdict != UINT32_MAX && !others && channel->shift.used > QUIET_STEPS)
        detector->verdicts.items[channel->verdict].until_step =
            cairn_shift_step(&channel->shift, QUIET_STEPS);
    channel->verdict = UINT32_MAX;
    channel->excess = 0;
    channel->quiet_steps = 0;
    cairn_shift_clear(&channel->shift);
}

static void
judge(struct cairn_detector *detector, struct cairn_channel *channel)
{
    struct cairn_shift_limits limits = {detector->class_sigma[channel->class_index], channel->base,
                                        channel->normal_steps, score_min, size_min, STEPS_MIN};

    if (channel->hot) {
        follow(detector, channel);
        return;
    }
    if (!cairn_shift_find(&channel->shift, &limits, &channel->found))
        return;
    channel->hot = true;
    channel->said_step = CAIRN_STEP_NONE;
    channel->vague = false;
    if (!detector->links_pending) {
        detector->links_pending = true;
        detector->links_pending_step = detector->now.step;
    }
}

/* ---- from hot channels to causes ---- */

/* True where a channel is hot and not explained yet, or nearly so. */
static bool
unexplained(const struct cairn_detector *detector, const struct cairn_channel *channel)
{
    struct cairn_shift_limits limits = {detector->class_sigma[channel->class_index], channel->base,
                                        channel->normal_steps, sibling_score_min, size_min / 1.5,
                                        STEPS_MIN};
    struct cairn_shift_found found;

    if (channel->verdict != UINT32_MAX || isnan(channel->normal))
        return false;
    return channel->hot || cairn_shift_find(&channel->shift, &limits, &found);
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
    uint32_t touching, hot, first_pair[2];
    bool several_pairs;
};

static void
tally_node(const struct cairn_detector *detector, const bool *open, uint32_t node, struct tally *tally)
{
    *tally = (struct tally){.touching = 0};
    for (uint32_t i = 0; i < detector->channel_count; i++) {
        const struct cairn_channel *channel = &detector->channels[i];
        uint32_t pair[2] = {channel->source, channel->target};

        if (isnan(channel->normal) || !between_nodes(detector->topology, channel) ||
            !touches(detector->topology, channel, node))
            continue;
        tally->touching++;
        if (!open[i])
            continue;
        if (pair[0] > pair[1]) {
            pair[0] = channel->target;
            pair[1] = channel->source;
        }
        if (tally->hot++ == 0) {
            tally->first_pair[0] = pair[0];
            tally->first_pair[1] = pair[1];
        } else if (pair[0] != tally->first_pair[0] || pair[1] != tally->first_pair[1]) {
            tally->several_pairs = true;
        }
    }
}

/* The node that explains most of the open channels; CAIRN_NODE_UNKNOWN where none does, or two do
 * equally well. */
static uint32_t
best_node(const struct cairn_detector *detector, const bool *open)
{
    uint32_t best = CAIRN_NODE_UNKNOWN;
    double best_weight = 0;

    for (uint32_t node = 0; node < detector->topology->node_count; node++) {
        struct tally tally;
        double weight;

        tally_node(detector, open, node, &tally);
        if (tally.hot < 2 || !tally.several_pairs || tally.hot < node_share_min * tally.touching)
            continue;
        weight = tally.hot;
        if (weight > best_weight) {
            best_weight = weight;
            best = node;
        } else if (weight == best_weight) {
            best = CAIRN_NODE_UNKNOWN;
        }
    }
    return best;
}

static cairn_err
add_link(struct cairn_verdict *verdict, uint32_t source, uint32_t target)
{
    cairn_err err;

    for (uint32_t i = 0; i + 1 < verdict->links.count; i += 2)
        if (verdict->links.items[i] == source && verdict->links.items[i + 1] == target)
            return CAIRN_OK;
    err = cairn_list_add(&verdict->links, source);
    if (!err)
        err = cairn_list_add(&verdict->links, target);
    if (!err)
        err = cairn_list_add_once(&verdict->ranks, source);
    return err ? err : cairn_list_add_once(&verdict->ranks, target);
}

/* Names a channel's links in a verdict: of a ring those that touch the node, or all between nodes. */
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
    uint32_t node, source, target; /* a node's NIC, or the pair (either way), or one channel alone */
    uint32_t channel;
};

static bool
belongs(const struct cairn_detector *detector, uint32_t index, const struct cause *cause)
{
    const struct cairn_channel *channel = &detector->channels[index];

    if (cause->node != CAIRN_NODE_UNKNOWN)
        return between_nodes(detector->topology, channel) &&
               touches(detector->topology, channel, cause->node);
    if (index == cause->channel)
        return true;
    if (channel->comm == CAIRN_COMM_NONE)
        return (channel->source == cause->source && channel->target == cause->target) ||
               (channel->source == cause->target && channel->target == cause->source);
    /* rings that are slow at the same time go over one slow link, whichever it is */
    return channel->members > 2 && detector->channels[cause->channel].members > 2 &&
           between_nodes(detector->topology, channel) ==
               between_nodes(detector->topology, &detector->channels[cause->channel]);
}

static cairn_err
say(struct cairn_detector *detector, bool *open, const struct cause *cause)
{
    struct cairn_verdict *verdict;
    uint32_t index, count = 0, rings = 0;
    double size = 0, score = 0;
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
        size += channel->found.size;
        score = fmax(score, channel->found.score);
        count++;
        rings += channel->members > 2;
        if (channel->found.since_step < verdict->since_step)
            verdict->since_step = channel->found.since_step;
        err = add_links(detector->topology, channel, cause->node, verdict);
    }
    verdict->rate = exp(size / (count ? count : 1));
    verdict->confidence = 1 - exp(-score / 2);
    if (cause->node != CAIRN_NODE_UNKNOWN) {
        if (!err)
            err = cairn_list_add(&verdict->nodes, cause->node);
        snprintf(verdict->evidence, sizeof verdict->evidence,
                 "%u channels between node %u and others take %.2f times their normal time per byte, "
                 "while others keep theirs: the NIC, or what it is plugged into",
                 count, cause->node, verdict->rate);
    } else {
        if (rings > 0)
            verdict->confidence *= 0.5; /* one of several links, and nothing says which */
        snprintf(verdict->evidence, sizeof verdict->evidence,
                 "transfers take %.2f times their normal time per byte, whoever arrives last%s",
                 verdict->rate,
                 rings > 0 ? "; a ring of more than two ranks is as slow as its slowest link, and no "
                             "other channel tells which"
                           : "");
    }
    return err;
}

/* What was said of rings without naming a link is said anew, with what is known by now. */
static void
take_back_vague(struct cairn_detector *detector)
{
    for (uint32_t i = 0; i < detector->channel_count; i++) {
        uint32_t index = detector->channels[i].verdict;

        if (index == UINT32_MAX || !detector->channels[i].vague)
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

static cairn_err
find_causes(struct cairn_detector *detector)
{
    bool *open = calloc(detector->channel_count + 1, sizeof *open);
    cairn_err err = CAIRN_OK;
    uint32_t node;

    if (!open)
        return CAIRN_NOMEM;
    detector->links_pending = false;
    take_back_vague(detector);
    for (uint32_t i = 0; i < detector->channel_count; i++)
        open[i] = unexplained(detector, &detector->channels[i]);
    join_known(detector, open);
    while (!err && (node = best_node(detector, open)) != CAIRN_NODE_UNKNOWN)
        err = say(detector, open, &(struct cause){.node = node});
    for (int pairs = 1; pairs >= 0; pairs--) /* pairs first: a ring may only go over the same link */
        for (uint32_t i = 0; !err && i < detector->channel_count; i++) {
            const struct cairn_channel *channel = &detector->channels[i];
            struct cause cause = {CAIRN_NODE_UNKNOWN, channel->source, channel->target, i};

            if (open[i] && channel->hot && (channel->comm == CAIRN_COMM_NONE) == (pairs == 1))
                err = say(detector, open, &cause);
        }
    free(open);
    return err;
}

cairn_err
cairn_detect_links(struct cairn_detector *detector)
{
    cairn_err err = make_classes(detector);
    bool fresh = false;

    if (err)
        return err;
    for (uint32_t i = 0; i < detector->channel_count; i++) {
        struct cairn_channel *channel = &detector->channels[i];

        if (isnan(channel->transfer) || !isnan(channel->normal))
            continue;
        channel->first_step[channel->first_count] = detector->now.step;
        channel->first[channel->first_count++] = (float)log(channel->transfer);
        if (channel->first_count == CAIRN_CALIBRATE_STEPS) {
            calibrate(detector, channel);
            fresh = true;
        }
    }
    for (uint32_t c = 0; fresh && c < CLASSES; c++)
        detector->class_sigma[c] = 0;
    for (uint32_t i = 0; i < detector->channel_count; i++) {
        struct cairn_channel *channel = &detector->channels[i];
        uint32_t c = channel->class_index;

        if (isnan(channel->transfer) || isnan(channel->normal))
            continue;
        if (detector->class_sigma[c] == 0)
            find_class_sigma(detector, c);
        if (channel->shift.used == 0 && channel->first_count == CAIRN_CALIBRATE_STEPS && fresh) {
            find_excess(detector, channel);
            judge(detector, channel);
            continue;
        }
        refine(detector, channel);
        cairn_shift_push(&channel->shift, detector->now.step,
                         log(channel->transfer) - channel->normal + channel->excess);
        judge(detector, channel);
    }
    if (detector->links_pending && detector->now.step - detector->links_pending_step >= GATHER_STEPS)
        return find_causes(detector);
    return CAIRN_OK;
}

cairn_err
cairn_detect_links_finish(struct cairn_detector *detector)
{
    return detector->links_pending ? find_causes(detector) : CAIRN_OK;
}
