/* A load client with a closed loop: on each of C connections K requests are always unanswered.
 *
 *     load --port P --connections C --outstanding K --seconds S --warmup W --plan FILE
 *
 * The plan says what is sent and what must come back (its layout: _plan.py). Every reply is checked. A wrong one ends
 * the run with status 1 and a line that says what was wrong, because the speed of wrong answers is no figure. After a
 * good run one line of JSON says how many replies came within the S seconds that follow the warm-up, how long they
 * took, and how much CPU time this program used meanwhile.
 *
 * One thread and one epoll set. Payloads are sent from the plan without a copy; a frame's header is kept per request.
 * No id is used twice: it is (generation * C + connection) * K + place + 1, so a reply that comes a second time, or to
 * another connection, has an id that is not in flight there. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "program.h"

enum { FRAMES, FIXED, HTTP };
enum { HEADER = 32, TYPE_RESULT = 0x20, TYPE_ERROR = 0x22, MAX_IOV = 64, MAX_EVENTS = 256 };
static const float ABS_TOLERANCE = 1e-4f, REL_TOLERANCE = 1e-4f;
static const double DRAIN_S = 5;

typedef struct {
    char magic[8];
    uint32_t kind, requests, request_nbytes, preamble_nbytes, reply_nbytes, expected_floats;
} plan_head;

typedef struct {
    char header[HEADER]; /* of the frame in flight, with its id */
    uint64_t id, sent_ns;
    int waiting; /* for its reply */
} place;

typedef struct {
    int fd, writing;
    place *places;
    int *queue; /* places whose request is to be sent, in order; a ring of K */
    int queue_head, queued;
    size_t sent; /* bytes of the first queued request that the kernel has */
    char *in;
    size_t have;
} connection;

static plan_head plan;
static char *preamble, *requests;
static float *expected;
static int count = 1, outstanding = 1, epoll_fd;
static size_t in_nbytes;
static uint64_t begin_ns, end_ns, answers_all;
static uint32_t *latencies;
static size_t answers, latencies_room;

static void read_plan(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || fread(&plan, sizeof plan, 1, file) != 1 || memcmp(plan.magic, "TSPLAN1\n", 8)) fail("%s: not a plan", path);
    size_t request_total = (size_t)plan.requests * plan.request_nbytes;
    size_t expected_total = (size_t)plan.requests * plan.expected_floats;
    preamble = room_for(plan.preamble_nbytes, 1);
    requests = room_for(request_total, 1);
    expected = room_for(expected_total, sizeof(float));
    if (fread(preamble, 1, plan.preamble_nbytes, file) != plan.preamble_nbytes || fread(requests, 1, request_total, file) != request_total ||
        fread(expected, sizeof(float), expected_total, file) != expected_total)
        fail("%s: cut short", path);
    fclose(file);
}

/* ------------------------------------------------------------------ sending */

static void watch_writable(connection *c, int wanted) {
    if (c->writing == wanted) return;
    c->writing = wanted;
    struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
}

static const char *request_of(const place *p) { return requests + (size_t)((p->id - 1) % plan.requests) * plan.request_nbytes; }

/* Fills `parts` with what is queued, without what of the first request is already sent. */
static int gather(const connection *c, struct iovec *parts) {
    int used = 0;
    size_t head = plan.kind == FRAMES ? HEADER : 0, skip = c->sent;
    for (int i = 0; i < c->queued && used + 2 <= MAX_IOV; i++) {
        place *p = &c->places[c->queue[(c->queue_head + i) % outstanding]];
        if (skip < head) parts[used++] = (struct iovec){p->header + skip, head - skip};
        size_t from = skip > head ? skip : head;
        if (from < plan.request_nbytes) parts[used++] = (struct iovec){(char *)request_of(p) + from, plan.request_nbytes - from};
        skip = 0;
    }
    return used;
}

static void flush(connection *c) {
    struct iovec parts[MAX_IOV];
    while (c->queued) {
        ssize_t n = writev(c->fd, parts, gather(c, parts));
        if (n < 0 && errno == EAGAIN) {
            watch_writable(c, 1);
            return;
        }
        if (n < 0) fail("write: %s", strerror(errno));
        c->sent += (size_t)n;
        for (; c->queued && c->sent >= plan.request_nbytes; c->queued--) {
            c->sent -= plan.request_nbytes;
            c->queue_head = (c->queue_head + 1) % outstanding;
        }
    }
    watch_writable(c, 0);
}

static void enqueue(connection *c, int index, uint64_t at_ns) {
    place *p = &c->places[index];
    p->id += (uint64_t)(count * outstanding);
    p->sent_ns = at_ns;
    p->waiting = 1;
    if (plan.kind == FRAMES) {
        memcpy(p->header, request_of(p), HEADER);
        memcpy(p->header + 8, &p->id, 8);
    }
    c->queue[(c->queue_head + c->queued++) % outstanding] = index;
}

/* ------------------------------------------------------------------ receiving */

static void compare(const place *p, const char *payload) {
    const float *want = expected + (size_t)((p->id - 1) % plan.requests) * plan.expected_floats;
    for (uint32_t i = 0; i < plan.expected_floats; i++) {
        float got;
        memcpy(&got, payload + 4 * i, 4);
        if (!(fabsf(got - want[i]) <= ABS_TOLERANCE + REL_TOLERANCE * fabsf(want[i])))
            fail("request %lu: value %u is %g, expected %g", (unsigned long)p->id, i, got, want[i]);
    }
}

static void answered(connection *c, int index, const char *payload, uint64_t at_ns) {
    place *p = &c->places[index];
    compare(p, payload);
    p->waiting = 0;
    answers_all++;
    if (at_ns < begin_ns || at_ns > end_ns) return;
    if (answers == latencies_room) {
        latencies_room = latencies_room ? 2 * latencies_room : 1 << 16;
        latencies = realloc(latencies, latencies_room * sizeof *latencies);
        if (!latencies) fail("out of memory");
    }
    uint64_t took_ns = at_ns - p->sent_ns;
    latencies[answers++] = took_ns > UINT32_MAX ? UINT32_MAX : (uint32_t)took_ns;
}

/* Returns the place that a whole reply at `data` is for and sets its size; -1 if it is not whole. */
static int take_frame(const connection *c, const char *data, size_t have, size_t *size, const char **payload) {
    if (have < HEADER) return -1;
    uint32_t body;
    uint64_t id;
    memcpy(&body, data + 4, 4);
    memcpy(&id, data + 8, 8);
    int type = (unsigned char)data[3];
    if (memcmp(data, "TS\x01", 3)) fail("a reply that is no frame");
    if (type == TYPE_ERROR) fail("request %lu: status %u.%u", (unsigned long)id, (unsigned char)data[16], (unsigned char)data[17]);
    if (type != TYPE_RESULT || HEADER + body != plan.reply_nbytes) fail("request %lu: type %#x with %u bytes", (unsigned long)id, type, body);
    if (have < plan.reply_nbytes) return -1;
    int index = (int)((id - 1) % (uint64_t)outstanding);
    if (!id || !c->places[index].waiting || c->places[index].id != id) fail("a reply with id %lu, which is not in flight here", (unsigned long)id);
    *size = plan.reply_nbytes;
    *payload = data + HEADER;
    return index;
}

static int take_http(const char *data, size_t have, size_t *size, const char **payload) {
    const char *end = memmem(data, have, "\r\n\r\n", 4);
    if (!end) return -1;
    size_t head = (size_t)(end - data) + 4;
    if (strncmp(data, "HTTP/1.1 200", 12)) fail("%.*s", (int)strcspn(data, "\r"), data);
    *size = head + plan.reply_nbytes;
    *payload = data + head;
    return have < *size ? -1 : 0;
}

static int take(const connection *c, const char *data, size_t have, size_t *size, const char **payload) {
    if (plan.kind == FRAMES) return take_frame(c, data, have, size, payload);
    if (plan.kind == HTTP) return take_http(data, have, size, payload);
    *size = plan.reply_nbytes;
    *payload = data;
    return have < *size ? -1 : 0;
}

static void readable(connection *c) {
    ssize_t n = read(c->fd, c->in + c->have, in_nbytes - c->have);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) fail("the server closed a connection");
    c->have += (size_t)n;
    c->in[c->have] = 0;
    uint64_t at_ns = now_ns();
    size_t used = 0, size = 0;
    const char *payload = NULL;
    int index;
    while (c->have > used && (index = take(c, c->in + used, c->have - used, &size, &payload)) >= 0) {
        answered(c, index, payload, at_ns);
        used += size;
        if (at_ns < end_ns) enqueue(c, index, at_ns);
    }
    if (used) memmove(c->in, c->in + used, c->have - used);
    c->have -= used;
    flush(c);
}

/* ------------------------------------------------------------------ the run */

static void converse_preamble(int fd) {
    char reply[65536];
    size_t have = 0, whole = HEADER;
    if (!plan.preamble_nbytes) return;
    if (write(fd, preamble, plan.preamble_nbytes) != (ssize_t)plan.preamble_nbytes) fail("preamble: %s", strerror(errno));
    while (have < whole) {
        ssize_t n = read(fd, reply + have, whole - have);
        if (n <= 0) fail("the server closed a connection after its preamble");
        have += (size_t)n;
        uint32_t body;
        memcpy(&body, reply + 4, 4);
        if (have == HEADER && body > sizeof reply - HEADER) fail("an answer of %u bytes to the preamble", body);
        if (have == HEADER) whole += body;
    }
    if ((unsigned char)reply[3] == TYPE_ERROR) fail("preamble: status %u.%u", (unsigned char)reply[16], (unsigned char)reply[17]);
}

static void open_connection(connection *c, int number, int port) {
    int one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address)) fail("connect: %s", strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    converse_preamble(c->fd);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->places = room_for((size_t)outstanding, sizeof *c->places);
    c->queue = room_for((size_t)outstanding, sizeof *c->queue);
    c->in = room_for(in_nbytes + 1, 1);
    /* One generation before the first, which `enqueue` begins; the sum may wrap, the ids that are sent do not. */
    for (int k = 0; k < outstanding; k++) c->places[k].id = (uint64_t)(number * outstanding + k + 1) - (uint64_t)(count * outstanding);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event);
}

static double cpu_s(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1e-6;
}

static int unanswered(const connection *all) {
    int left = 0;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < outstanding; k++) left += all[i].places[k].waiting;
    return left;
}

/* Serves events until all requests are answered; returns the CPU time used between `begin_ns` and `end_ns`. */
static double serve(connection *all) {
    struct epoll_event events[MAX_EVENTS];
    double cpu_begin_s = -1, cpu_end_s = -1;
    for (;;) {
        uint64_t at_ns = now_ns();
        if (cpu_begin_s < 0 && at_ns >= begin_ns) cpu_begin_s = cpu_s();
        if (at_ns > end_ns) {
            if (cpu_end_s < 0) cpu_end_s = cpu_s();
            int left = unanswered(all);
            if (!left) return cpu_end_s - cpu_begin_s;
            if (at_ns > end_ns + (uint64_t)(DRAIN_S * 1e9)) fail("%d requests were never answered", left);
        }
        int n = epoll_wait(epoll_fd, events, MAX_EVENTS, 20);
        for (int i = 0; i < n; i++) {
            if (events[i].events & EPOLLOUT) flush(events[i].data.ptr);
            if (events[i].events & ~(uint32_t)EPOLLOUT) readable(events[i].data.ptr);
        }
    }
}

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static double quantile_us(double q) { return answers ? latencies[(size_t)((double)(answers - 1) * q)] / 1e3 : 0; }

int main(int argc, char **argv) {
    int port = 0;
    double seconds = 1, warmup = 0.2;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--port")) port = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--connections")) count = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--outstanding")) outstanding = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--seconds")) seconds = atof(argv[i + 1]);
        else if (!strcmp(argv[i], "--warmup")) warmup = atof(argv[i + 1]);
        else if (!strcmp(argv[i], "--plan")) read_plan(argv[i + 1]);
        else fail("unknown option %s", argv[i]);
    }
    if (!plan.requests || count < 1 || outstanding < 1) fail("see the head of load.c");
    if (plan.kind != FRAMES && outstanding > 1) fail("only frames can be multiplexed");
    in_nbytes = 65536 + 2 * (size_t)plan.reply_nbytes;
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    connection *all = room_for((size_t)count, sizeof *all);
    for (int i = 0; i < count; i++) open_connection(&all[i], i, port);
    uint64_t start_ns = now_ns();
    begin_ns = start_ns + (uint64_t)(warmup * 1e9);
    end_ns = begin_ns + (uint64_t)(seconds * 1e9);
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < outstanding; k++) enqueue(&all[i], k, start_ns);
        flush(&all[i]);
    }
    double used_s = serve(all);
    qsort(latencies, answers, sizeof *latencies, by_value);
    printf("{\"answers\": %zu, \"seconds\": %.6f, \"answers_all\": %lu, \"cpu_s\": %.6f, \"p50_us\": %.2f, \"p90_us\": %.2f, "
           "\"p99_us\": %.2f, \"max_us\": %.2f}\n",
           answers, seconds, (unsigned long)answers_all, used_s, quantile_us(.5), quantile_us(.9), quantile_us(.99), quantile_us(1));
    return 0;
}
