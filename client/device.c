/*
 * client/device.c - the devices that tensors are on: their streams, and what follows when one
 * fails.
 *
 * The service thread reopens a failed device after a second, then after ever longer pauses; no
 * snapshot begins until then. A failure is logged once, and again only after a snapshot was copied.
 */
#include "cairn/client.h"

#include "client/state.h"

#include "base/clock.h"

#define RETRY_NS_MIN CAIRN_NS_PER_S
#define RETRY_NS_MAX (60 * CAIRN_NS_PER_S)

cairn_err
cairn_client_set_stream(struct cairn_client *client, int32_t device, void *stream)
{
    uint32_t i = 0;

    if (!client_usable(client) || device < 0)
        return CAIRN_INVAL;
    while (i < client->stream_count && client->streams[i].device != device)
        i++;
    if (i == CAIRN_RANKS_PER_NODE_MAX)
        return CAIRN_FULL;
    client->streams[i] = (struct client_stream){device, stream};
    client->stream_count += i == client->stream_count;
    return CAIRN_OK;
}

void *
client_stream_of(const struct cairn_client *client, int32_t device)
{
    for (uint32_t i = 0; i < client->stream_count; i++)
        if (client->streams[i].device == device)
            return client->streams[i].stream;
    return NULL;
}

cairn_err
client_devices_order(struct cairn_client *client)
{
    const struct client_tensors *tensors = client->tensors;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < tensors->device_count && !err; i++)
        err = cairn_capture_order(client->capture, tensors->devices[i],
                                  client_stream_of(client, tensors->devices[i]));
    return err;
}

bool
client_devices_fail(struct cairn_client *client)
{
    client->device_failed = true;
    client->device_retry_ns = client->device_retry_ns ? 2 * client->device_retry_ns : RETRY_NS_MIN;
    if (client->device_retry_ns > RETRY_NS_MAX)
        client->device_retry_ns = RETRY_NS_MAX;
    client->device_retry_at_ns = client_now_ns() + client->device_retry_ns;
    client_wake(client);
    return !atomic_exchange(&client->devices_are_silent, true);
}

void
client_devices_say_failed(const struct cairn_client *client)
{
    client_say(client, CAIRN_LOG_WARN,
               "client: tensors on a device cannot be copied (the line before says why): snapshots "
               "stop, and go on by themselves when the device answers again");
}

bool
client_devices_work(struct cairn_client *client)
{
    client->device_retry_ns = 0;
    return atomic_exchange(&client->devices_are_silent, false);
}

/* Opens all devices of the tensors again, and pins every slot for them. */
static cairn_err
prepare_again(struct cairn_client *client, const int32_t *devices, uint32_t device_count)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < client->slot_count; i++)
        if (client->slots[i].map && !cairn_capture_forget(client->capture, client->slots[i].map))
            return CAIRN_DEVICE; /* the client is being closed */
    for (uint32_t i = 0; i < client->slot_count; i++)
        for (uint32_t d = 0; d < device_count && client->slots[i].map && !err; d++)
            err = cairn_capture_prepare(client->capture, devices[d], client->slots[i].map,
                                        client->slots[i].map_bytes);
    return err;
}

void
client_devices_retry(struct cairn_client *client)
{
    int32_t devices[CAIRN_RANKS_PER_NODE_MAX];
    uint32_t device_count = 0;
    bool due;

    pthread_mutex_lock(&client->lock);
    due = client->device_failed && client->registration == CLIENT_REGISTER_DONE &&
          !client->engine_busy && client_now_ns() >= client->device_retry_at_ns;
    if (due) { /* register may replace the tensors meanwhile and prepares them itself */
        device_count = client->tensors->device_count;
        for (uint32_t i = 0; i < device_count; i++)
            devices[i] = client->tensors->devices[i];
    }
    pthread_mutex_unlock(&client->lock);
    if (!due)
        return;
    if (prepare_again(client, devices, device_count) == CAIRN_OK) {
        pthread_mutex_lock(&client->lock);
        client->device_failed = false;
        pthread_mutex_unlock(&client->lock);
    } else {
        pthread_mutex_lock(&client->lock);
        (void)client_devices_fail(client);
        pthread_mutex_unlock(&client->lock);
    }
}
