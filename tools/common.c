/* tools/common.c - exit codes, messages, sizes and times for people, colour and progress. */
#include "tools/common.h"

#include "base/clock.h"
#include "base/output.h"
#include "tools/verb.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BAR_COLUMNS = 24 };

int
cairn_exit_code(cairn_err err)
{
    switch (err) {
    case CAIRN_OK:
        return CAIRN_EXIT_OK;
    case CAIRN_AGAIN:
    case CAIRN_STALE:
        return CAIRN_EXIT_AGAIN;
    case CAIRN_LOST:
        return CAIRN_EXIT_LOST;
    case CAIRN_PEER:
    case CAIRN_TIMEOUT:
        return CAIRN_EXIT_PEER;
    case CAIRN_IO:
    case CAIRN_FULL:
        return CAIRN_EXIT_IO;
    case CAIRN_CORRUPT:
        return CAIRN_EXIT_INPUT;
    case CAIRN_DENIED:
        return CAIRN_EXIT_DENIED;
    case CAIRN_CONFIG:
        return CAIRN_EXIT_CONFIG;
    case CAIRN_INVAL:
    case CAIRN_NOMEM:
    case CAIRN_NOT_FOUND:
    case CAIRN_VERSION:
    case CAIRN_DEVICE:
    case CAIRN_INTERNAL:
        return CAIRN_EXIT_FAILED;
    }
    return CAIRN_EXIT_FAILED;
}

void
cairn_tool_error(const char *verb, const char *what, const char *why, const char *fix)
{
    fprintf(stderr, "cairn %s: %s", verb, what);
    if (why)
        fprintf(stderr, ": %s", why);
    if (fix)
        fprintf(stderr, "; %s", fix);
    fputc('\n', stderr);
}

void
cairn_json_begin(struct cairn_json_writer *writer)
{
    cairn_json_writer_init(writer);
    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "schema", 1);
}

cairn_err
cairn_json_print(struct cairn_json_writer *writer)
{
    char *text = NULL;
    size_t text_bytes = 0;
    cairn_err err = cairn_json_writer_done(writer, &text, &text_bytes);

    cairn_json_writer_fini(writer);
    if (!err)
        puts(text);
    free(text);
    return err;
}

int
cairn_json_finish(const char *verb, struct cairn_json_writer *writer)
{
    cairn_err err = cairn_json_print(writer);

    if (err)
        cairn_tool_error(verb, "cannot write the answer", cairn_err_text(err), NULL);
    return cairn_exit_code(err);
}

bool
cairn_own_path(char *path, size_t path_bytes)
{
    ssize_t len = readlink("/proc/self/exe", path, path_bytes - 1);

    if (len <= 0 || (size_t)len >= path_bytes - 1) {
        fprintf(stderr, "cairn: /proc/self/exe: cannot find this program's path: %s; mount /proc\n",
                len < 0 ? strerror(errno) : "too long");
        return false;
    }
    path[len] = '\0';
    return true;
}

bool
cairn_find_beside(const char *const places[CAIRN_PLACES_MAX], const char *name,
                  char path[CAIRN_PLACED_PATH_BYTES])
{
    char executable[4096], *slash;

    if (!cairn_own_path(executable, sizeof executable))
        return false;
    slash = strrchr(executable, '/');
    if (!slash)
        return false;
    *slash = '\0';
    for (size_t i = 0; i < CAIRN_PLACES_MAX && places[i]; i++) {
        int length = snprintf(path, CAIRN_PLACED_PATH_BYTES, "%s%s%s", executable, places[i], name);

        if (length > 0 && length < CAIRN_PLACED_PATH_BYTES && access(path, R_OK) == 0)
            return true;
    }
    return false;
}

bool
cairn_find_library(const char *name, char path[CAIRN_PLACED_PATH_BYTES])
{
    static const char *const places[CAIRN_PLACES_MAX] = {"/", "/lib/", "/../lib/"};

    return cairn_find_beside(places, name, path);
}

bool
cairn_absolute_path(const char *path, char *out, size_t out_bytes)
{
    size_t used = 0;
    int len;

    if (!path[0])
        return false;
    out[0] = '\0';
    if (path[0] != '/') {
        if (!getcwd(out, out_bytes))
            return false;
        used = strlen(out);
    }
    len = snprintf(out + used, out_bytes - used, "%s%s", used ? "/" : "", path);
    return len > 0 && (size_t)len < out_bytes - used;
}

uint16_t
cairn_free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t address_len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    uint16_t port = 0;

    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &address_len) == 0)
        port = ntohs(address.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

bool
cairn_output_parse(const char *text, bool *json)
{
    *json = text && strcmp(text, "json") == 0;
    return !text || *json || strcmp(text, "table") == 0;
}

static bool
read_number(const char **text, uint64_t *out)
{
    char *end;

    if (**text < '0' || **text > '9')
        return false;
    errno = 0;
    *out = strtoull(*text, &end, 10);
    *text = end;
    return errno == 0;
}

bool
cairn_generation_parse(const char *text, struct cairn_generation_id *out)
{
    struct cairn_generation_id value = {0};

    if (!read_number(&text, &value.epoch) || *text++ != ':' || !read_number(&text, &value.step) ||
        *text != '\0')
        return false;
    *out = value;
    return true;
}

bool
cairn_duration_parse(const char *text, uint64_t *out_ns)
{
    static const char units[] = "smhd";
    static const uint64_t seconds[] = {1, 60, 3600, 86400};
    const char *unit;
    uint64_t count;
    char *end;

    if (text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    count = strtoull(text, &end, 10);
    unit = *end ? strchr(units, *end) : NULL;
    if (errno || !unit || end[1] || count == 0 ||
        count > UINT64_C(365) * 86400 / seconds[unit - units])
        return false;
    *out_ns = count * seconds[unit - units] * UINT64_C(1000000000);
    return true;
}

const char *
cairn_show_duration(uint64_t duration_ns, char out[CAIRN_SHOWN_BYTES])
{
    uint64_t s = duration_ns / CAIRN_NS_PER_S;
    double ns = (double)duration_ns;

    if (duration_ns < CAIRN_NS_PER_US)
        snprintf(out, CAIRN_SHOWN_BYTES, "%" PRIu64 " ns", duration_ns);
    else if (duration_ns < CAIRN_NS_PER_MS)
        snprintf(out, CAIRN_SHOWN_BYTES, "%.1f us", ns / 1e3);
    else if (duration_ns < CAIRN_NS_PER_S)
        snprintf(out, CAIRN_SHOWN_BYTES, "%.*f ms", ns < 1e7 ? 2 : 1, ns / 1e6);
    else if (s < 60)
        snprintf(out, CAIRN_SHOWN_BYTES, "%.1f s", ns / 1e9);
    else if (s < 3600)
        snprintf(out, CAIRN_SHOWN_BYTES, "%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
    else if (s < 86400)
        snprintf(out, CAIRN_SHOWN_BYTES, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s % 3600 / 60);
    else
        snprintf(out, CAIRN_SHOWN_BYTES, "%" PRIu64 " d %" PRIu64 " h", s / 86400,
                 s % 86400 / 3600);
    return out;
}

bool
cairn_colour(FILE *stream)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");

    return !(no_color && no_color[0]) && term && strcmp(term, "dumb") != 0 &&
           cairn_output_is_terminal(stream);
}

void
cairn_print_coloured(FILE *stream, const char *colour, const char *text)
{
    char begin[16];

    if (!cairn_colour(stream)) {
        fputs(text, stream);
        return;
    }
    (void)snprintf(begin, sizeof begin, "\033[%sm", colour);
    cairn_output_steer(stream, begin);
    fputs(text, stream);
    cairn_output_steer(stream, "\033[0m");
}

void
cairn_progress_start(struct cairn_progress *progress, const char *what, uint64_t total_bytes,
                     uint64_t now_ns)
{
    *progress = (struct cairn_progress){.what = what,
                                        .total_bytes = total_bytes,
                                        .started_ns = now_ns,
                                        .terminal = cairn_output_is_terminal(stderr)};
}

static void
draw_bar(struct cairn_progress *progress, uint64_t done_bytes, uint64_t now_ns)
{
    uint64_t elapsed_ns = now_ns - progress->started_ns;
    char bar[BAR_COLUMNS + 1], rate[CAIRN_SHOWN_BYTES], left[CAIRN_SHOWN_BYTES];
    double share = (double)done_bytes / (double)progress->total_bytes;
    size_t filled = (size_t)(share * BAR_COLUMNS);
    double per_s = elapsed_ns ? (double)done_bytes * 1e9 / (double)elapsed_ns : 0;

    memset(bar, '.', BAR_COLUMNS);
    memset(bar, '#', filled < BAR_COLUMNS ? filled : BAR_COLUMNS);
    bar[BAR_COLUMNS] = '\0';
    cairn_show_bytes((uint64_t)per_s, rate);
    if (done_bytes)
        cairn_show_duration((uint64_t)((double)elapsed_ns * (1 - share) / share), left);
    else
        snprintf(left, sizeof left, "?");
    cairn_output_steer(stderr, "\r");
    fprintf(stderr, "%s [%s] %3.0f %%  %s/s  %s left", progress->what, bar, share * 100, rate,
            left);
    cairn_output_steer(stderr, "\033[K");
}

void
cairn_progress_show(struct cairn_progress *progress, uint64_t done_bytes, uint64_t now_ns)
{
    char shown[CAIRN_SHOWN_BYTES];

    if (progress->total_bytes && done_bytes > progress->total_bytes)
        done_bytes = progress->total_bytes;
    if (!progress->terminal) {
        uint32_t tenths = progress->total_bytes
                              ? (uint32_t)((double)done_bytes * 10 / (double)progress->total_bytes)
                              : 0;

        if (tenths > progress->tenths)
            fprintf(stderr, "%s: %u %% after %s\n", progress->what, tenths * 10,
                    cairn_show_duration(now_ns - progress->started_ns, shown));
        progress->tenths = tenths;
        return;
    }
    if (progress->drawn && now_ns - progress->drawn_ns < 100 * CAIRN_NS_PER_MS)
        return;
    progress->drawn = true;
    progress->drawn_ns = now_ns;
    if (progress->total_bytes) {
        draw_bar(progress, done_bytes, now_ns);
        return;
    }
    cairn_output_steer(stderr, "\r");
    fprintf(stderr, "%s: %s", progress->what,
            cairn_show_duration(now_ns - progress->started_ns, shown));
    cairn_output_steer(stderr, "\033[K");
}

void
cairn_progress_stop(struct cairn_progress *progress)
{
    if (progress->drawn)
        cairn_output_steer(stderr, "\r\033[K");
    progress->drawn = false;
}
