/* A load client that keeps to a script: what is sent on which connection, and when.
 *
 *     paced --port P --script FILE --record FILE
 *
 * The script (its layout: _script.py) is open or closed. Open: every request has its planned time, and it is sent then,
 * whatever has become of the others; what is written down is counted from the planned time, so a client or a server
 * that falls behind cannot hide it. Closed: so many requests are always unanswered on each connection, each sent a
 * thinking time after the answer to the last.
 *
 * A deadline on the wire is what is left of it since the planned time. Answers are compared with what the script
 * expects. One line of JSON says how many requests there were; the record holds a column of each of their facts.
 *
 * One thread, one epoll set, one timerfd. Request i has the id i + 1. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "program.h"

enum { HEADER = 32, TYPE_BOUND = 0x04, TYPE_RESULT = 0x20, TYPE_ERROR = 0x22, MAX_EVENTS = 256, READ_NBYTES = 1 << 17 };
/* Nearer than this the next request is waited for awake: a sleep could end later. */
static const uint64_t SPIN_NS = 15000;
static const uint64_t LEAD_NS = 20000000;

typedef struct {
    char magic[8];
    uint32_t connections, templates, requests, closed, outstanding, drain_ms;
    uint64_t think_ns, run_ns;
} script_head;

typedef struct {
    int fd, writing, dirty, gone;
    char *out;
    size_t out_from, out_to, out_room;
    char *in;
    size_t have, in_room;
} connection;

typedef struct {
    uint64_t at_ns;
    uint32_t connection;
} turn;

static script_head script;
static uint32_t *preamble_nbytes, *frame_ends, *expected_ends, *entry_connection, *entry_template;
static char *preambles, *frames, *expected;
static uint64_t *entry_ns;
static connection *all;
static int epoll_fd, timer_fd;
static uint64_t armed_ns;
static int *dirty;
static int dirty_count;

/* The record: a column each. */
static int64_t *planned_ns, *sent_ns, *answered_ns;
static int32_t *status_of;
static uint32_t *reply_us, *connection_of, *template_of;
static uint32_t issued, terminal, wrong, repeated;

/* Closed: who sends next and when, a ring in order of time, because everybody thinks for as long. */
static turn *turns;
static uint32_t turns_head, turns_count, turns_room;

static void *column(FILE *file, size_t count, size_t nbytes) {
    void *memory = room_for(count, nbytes);
    if (fread(memory, nbytes, count, file) != count) fail("the script is cut short");
    return memory;
}

static void read_script(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || fread(&script, sizeof script, 1, file) != 1 || memcmp(script.magic, "TSPACE1\n", 8)) fail("%s: not a script", path);
    if (!script.connections || !script.templates) fail("%s: nothing to send, or nowhere to", path);
    preamble_nbytes = column(file, script.connections, sizeof *preamble_nbytes);
    size_t total = 0;
    for (uint32_t i = 0; i < script.connections; i++) total += preamble_nbytes[i];
    preambles = column(file, total, 1);
    frame_ends = column(file, script.templates, sizeof *frame_ends);
    expected_ends = column(file, script.templates, sizeof *expected_ends);
    frames = column(file, frame_ends[script.templates - 1], 1);
    expected = column(file, expected_ends[script.templates - 1], 1);
    if (!script.closed) {
        entry_ns = column(file, script.requests, sizeof *entry_ns);
        entry_connection = column(file, script.requests, sizeof *entry_connection);
        entry_template = column(file, script.requests, sizeof *entry_template);
    }
    fclose(file);
}

/* ------------------------------------------------------------------ sending */

static void watch_writable(connection *c, int wanted) {
    if (c->writing == wanted || c->gone) return;
    c->writing = wanted;
    struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
}

static void hang_up(connection *c) {
    if (c->gone) return;
    c->gone = 1;
    epoll_ctl(epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    close(c->fd);
}

static void flush(connection *c) {
    c->dirty = 0;
    while (!c->gone && c->out_from < c->out_to) {
        ssize_t n = send(c->fd, c->out + c->out_from, c->out_to - c->out_from, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            watch_writable(c, 1);
            return;
        }
        if (n < 0) {
            hang_up(c);
            return;
        }
        c->out_from += (size_t)n;
    }
    c->out_from = c->out_to = 0;
    watch_writable(c, 0);
}

static char *out_room(connection *c, size_t nbytes) {
    if (c->out_to + nbytes > c->out_room) {
        c->out_room = 2 * (c->out_to + nbytes);
        c->out = realloc(c->out, c->out_room);
        if (!c->out) fail("out of memory");
    }
    char *at = c->out + c->out_to;
    c->out_to += nbytes;
    return at;
}

static void issue(uint32_t number, uint32_t template, uint64_t due_ns, uint64_t at_ns) {
    connection *c = &all[number];
    uint32_t index = issued++, from = template ? frame_ends[template - 1] : 0, nbytes = frame_ends[template] - from, timeout_us;
    uint64_t id = (uint64_t)index + 1, late_us = (at_ns - due_ns) / 1000;
    planned_ns[index] = (int64_t)due_ns;
    sent_ns[index] = (int64_t)at_ns;
    connection_of[index] = number;
    template_of[index] = template;
    if (c->gone) return;
    char *frame = out_room(c, nbytes);
    memcpy(frame, frames + from, nbytes);
    memcpy(frame + 8, &id, 8);
    memcpy(&timeout_us, frame + 20, 4);
    if (timeout_us) timeout_us = timeout_us > late_us ? timeout_us - (uint32_t)late_us : 1;
    memcpy(frame + 20, &timeout_us, 4);
    if (!c->dirty) dirty[dirty_count++] = (int)number;
    c->dirty = 1;
}

/* ------------------------------------------------------------------ receiving */

static void pass_turn(uint32_t number, uint64_t at_ns) {
    turns[(turns_head + turns_count++) % turns_room] = (turn){at_ns, number};
}

static void ended(uint32_t number, uint64_t id, int32_t status, uint32_t field_us, uint64_t at_ns) {
    if (!id || id > issued || connection_of[id - 1] != number) {
        wrong++;
        return;
    }
    uint32_t index = (uint32_t)id - 1;
    if (answered_ns[index]) {
        repeated++;
        return;
    }
    answered_ns[index] = (int64_t)at_ns;
    status_of[index] = status;
    reply_us[index] = field_us;
    terminal++;
    if (script.closed) pass_turn(number, at_ns + script.think_ns);
}

static void compare(uint64_t id, const char *payload, size_t nbytes) {
    if (!id || id > issued) return;
    uint32_t template = template_of[id - 1], from = template ? expected_ends[template - 1] : 0;
    size_t want = expected_ends[template] - from;
    if (want > nbytes || memcmp(payload, expected + from, want)) wrong++;
}

static void take_frame(uint32_t number, const char *data, size_t whole, uint64_t at_ns) {
    uint64_t id;
    uint32_t field_us;
    uint16_t status, rows, meta8;
    memcpy(&id, data + 8, 8);
    memcpy(&status, data + 16, 2);
    memcpy(&field_us, data + 20, 4);
    memcpy(&meta8, data + 24, 2);
    memcpy(&rows, data + 26, 2);
    int type = (unsigned char)data[3];
    if (type == TYPE_RESULT) {
        compare(id, data + HEADER + 8u * meta8, whole - HEADER - 8u * meta8);
        ended(number, id, 0, field_us, at_ns);
    } else if (type == TYPE_ERROR && id) {
        for (uint64_t i = 0; i < (rows ? rows : 1u); i++) ended(number, id + i, status, field_us, at_ns);
    } else if (type == TYPE_ERROR)
        fail("the server ended a connection: status %u.%u", status & 255u, status >> 8);
}

static void readable(connection *c) {
    if (c->gone) return;
    if (c->in_room - c->have < READ_NBYTES) {
        c->in_room = 2 * (c->have + READ_NBYTES);
        c->in = realloc(c->in, c->in_room);
        if (!c->in) fail("out of memory");
    }
    ssize_t n = recv(c->fd, c->in + c->have, c->in_room - c->have, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        hang_up(c);
        return;
    }
    uint64_t at_ns = now_ns();
    size_t used = 0;
    c->have += (size_t)n;
    while (c->have - used >= HEADER) {
        uint32_t body;
        memcpy(&body, c->in + used + 4, 4);
        if (memcmp(c->in + used, "TS\x01", 3)) fail("a reply that is no frame");
        if (c->have - used < HEADER + (size_t)body) break;
        take_frame((uint32_t)(c - all), c->in + used, HEADER + (size_t)body, at_ns);
        used += HEADER + (size_t)body;
    }
    memmove(c->in, c->in + used, c->have - used);
    c->have -= used;
}

/* ------------------------------------------------------------------ the run */

/* Sends the preamble, frames that are answered one by one; BOUND is the last answer. */
static void greet(int fd, const char *preamble, uint32_t nbytes) {
    char reply[65536];
    if (send(fd, preamble, nbytes, MSG_NOSIGNAL) != (ssize_t)nbytes) fail("preamble: %s", strerror(errno));
    do {
        uint32_t body;
        if (recv(fd, reply, HEADER, MSG_WAITALL) != HEADER) fail("the server closed a connection after its preamble");
        memcpy(&body, reply + 4, 4);
        if (body > sizeof reply - HEADER) fail("an answer of %u bytes to the preamble", body);
        if (body && recv(fd, reply + HEADER, body, MSG_WAITALL) != (ssize_t)body) fail("the answer to the preamble is cut short");
        if ((unsigned char)reply[3] == TYPE_ERROR) fail("preamble: status %u.%u", (unsigned char)reply[16], (unsigned char)reply[17]);
    } while ((unsigned char)reply[3] != TYPE_BOUND);
}

static void open_connections(int port) {
    int one = 1;
    const char *preamble = preambles;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    all = room_for(script.connections, sizeof *all);
    for (uint32_t i = 0; i < script.connections; i++) {
        connection *c = &all[i];
        c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address)) fail("connect: %s", strerror(errno));
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        greet(c->fd, preamble, preamble_nbytes[i]);
        preamble += preamble_nbytes[i];
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event);
    }
}

/* When the next request is due; 0 if there is none. */
static uint64_t next_ns(uint64_t end_ns) {
    if (issued == script.requests) return 0;
    if (!script.closed) return entry_ns[issued];
    if (!turns_count || turns[turns_head].at_ns >= end_ns) return 0;
    return turns[turns_head].at_ns;
}

static void issue_due(uint64_t end_ns) {
    uint64_t due_ns, at_ns = now_ns();
    for (int n = 0; n < MAX_EVENTS && (due_ns = next_ns(end_ns)) && due_ns <= at_ns; n++) {
        if (script.closed) {
            turn next = turns[turns_head];
            turns_head = (turns_head + 1) % turns_room;
            turns_count--;
            issue(next.connection, issued % script.templates, due_ns, at_ns);
        } else
            issue(entry_connection[issued], entry_template[issued], due_ns, at_ns);
    }
    for (int i = 0; i < dirty_count; i++) flush(&all[dirty[i]]);
    dirty_count = 0;
}

static void arm(uint64_t at_ns) {
    if (at_ns == armed_ns) return;
    armed_ns = at_ns;
    struct itimerspec spec = {.it_value = {.tv_sec = (time_t)(at_ns / 1000000000u), .tv_nsec = (long)(at_ns % 1000000000u)}};
    timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &spec, NULL);
}

static void wait_and_read(uint64_t due_ns) {
    struct epoll_event events[MAX_EVENTS];
    int near = due_ns && due_ns < now_ns() + SPIN_NS;
    if (due_ns && !near) arm(due_ns);
    int count = epoll_wait(epoll_fd, events, MAX_EVENTS, near ? 0 : 20);
    for (int i = 0; i < count; i++) {
        connection *c = events[i].data.ptr;
        if (!c) {
            uint64_t expiries;
            if (read(timer_fd, &expiries, sizeof expiries) > 0) armed_ns = 0;
            continue;
        }
        if (events[i].events & EPOLLOUT) flush(c);
        if (events[i].events & ~(uint32_t)EPOLLOUT) readable(c);
    }
}

static int anybody_left(void) {
    for (uint32_t i = 0; i < script.connections; i++)
        if (!all[i].gone) return 1;
    return 0;
}

static void run(uint64_t start_ns) {
    uint64_t end_ns = start_ns + script.run_ns, last_ns = 0;
    for (;;) {
        issue_due(end_ns);
        uint64_t due_ns = next_ns(end_ns), at_ns = now_ns();
        /* In a closed run somebody's turn may still come, as long as an answer does. */
        int more = due_ns || (script.closed && at_ns < end_ns && issued < script.requests);
        if (!more && !last_ns) last_ns = at_ns;
        if (!more && (terminal == issued || at_ns > last_ns + (uint64_t)script.drain_ms * 1000000u)) return;
        if (!anybody_left()) return;
        wait_and_read(due_ns);
    }
}

static void make_record(void) {
    size_t n = script.requests;
    planned_ns = room_for(n, sizeof *planned_ns);
    sent_ns = room_for(n, sizeof *sent_ns);
    answered_ns = room_for(n, sizeof *answered_ns);
    status_of = room_for(n, sizeof *status_of);
    reply_us = room_for(n, sizeof *reply_us);
    connection_of = room_for(n, sizeof *connection_of);
    template_of = room_for(n, sizeof *template_of);
    memset(status_of, 0xFF, n * sizeof *status_of);
    /* Touched now, so that the kernel finds the pages before they are needed. */
    memset(answered_ns, 0, n * sizeof *answered_ns);
}

static void write_record(const char *path) {
    FILE *file = fopen(path, "wb");
    if (!file) fail("%s: %s", path, strerror(errno));
    size_t n = issued, done = 0;
    done += fwrite(planned_ns, sizeof *planned_ns, n, file);
    done += fwrite(sent_ns, sizeof *sent_ns, n, file);
    done += fwrite(answered_ns, sizeof *answered_ns, n, file);
    done += fwrite(status_of, sizeof *status_of, n, file);
    done += fwrite(reply_us, sizeof *reply_us, n, file);
    done += fwrite(connection_of, sizeof *connection_of, n, file);
    done += fwrite(template_of, sizeof *template_of, n, file);
    if (fclose(file) || done != 7 * n) fail("%s: cannot be written", path);
}

int main(int argc, char **argv) {
    int port = 0;
    const char *record_path = NULL;
    struct rusage used;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--port")) port = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--script")) read_script(argv[i + 1]);
        else if (!strcmp(argv[i], "--record")) record_path = argv[i + 1];
        else fail("unknown option %s", argv[i]);
    }
    if (!script.connections || !record_path) fail("see the head of paced.c");
    prctl(PR_SET_TIMERSLACK, 1);
    /* What measures must not wait for what is measured; without the right to it, the record shows what came of that. */
    setpriority(PRIO_PROCESS, 0, -10);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, timer_fd, &event);
    dirty = room_for(script.connections, sizeof *dirty);
    turns_room = script.connections * (script.outstanding ? script.outstanding : 1);
    turns = room_for(turns_room, sizeof *turns);
    make_record();
    open_connections(port);
    uint64_t start_ns = now_ns() + LEAD_NS;
    if (!script.closed)
        for (uint32_t i = 0; i < script.requests; i++) entry_ns[i] += start_ns;
    else
        for (uint32_t i = 0; i < turns_room; i++) pass_turn(i % script.connections, start_ns);
    run(start_ns);
    write_record(record_path);
    getrusage(RUSAGE_SELF, &used);
    printf("{\"requests\": %u, \"wrong\": %u, \"repeated\": %u, \"start_ns\": %lu, \"cpu_s\": %.6f}\n", issued, wrong, repeated, (unsigned long)start_ns,
           (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6);
    return 0;
}
