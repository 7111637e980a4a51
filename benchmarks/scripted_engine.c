/* An engine that costs next to nothing: answers every POST with an event stream of fixed pace.
 *
 *   gcc -O2 -o scripted_engine scripted_engine.c
 *   ./scripted_engine PORT EVENTS INTERVAL_US
 *
 * The text of event i of a request depends on i and on the number behind "seed" in its body, and
 * on nothing else: two requests of one seed get the same bytes, whichever way they came. With
 * "stamp" in the body each event says instead when it was written, in microseconds of
 * CLOCK_MONOTONIC. A usage event comes where the body asks for it, then [DONE].
 * GET /v1/models, /metrics, anything else: small answers, enough for a gateway's health checks.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { REQUEST_MAX = 1 << 17, CONNECTIONS_MAX = 1 << 14, READY_MAX = 512 };

typedef struct Connection {
    int fd, used, stamp, usage, event, live;
    long seed;
    int64_t due_us;
    struct Connection *next, *previous; /* in order of due_us: all have the same interval */
    char request[REQUEST_MAX];
} Connection;

static Connection *connections[CONNECTIONS_MAX];
static Connection line = {.next = &line, .previous = &line};
static int events_total;
static int64_t interval_us;

static int64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void leave_line(Connection *c) {
    if (!c->live) return;
    c->live = 0;
    c->previous->next = c->next;
    c->next->previous = c->previous;
}

static void join_line(Connection *c) {
    c->live = 1;
    c->next = &line;
    c->previous = line.previous;
    line.previous->next = c;
    line.previous = c;
}

/* A client that does not read holds the others up for a second at most, then it is let go. */
static int put(Connection *c, const char *data, size_t size) {
    while (size) {
        ssize_t written = send(c->fd, data, size, MSG_NOSIGNAL);
        if (written < 0) {
            struct pollfd wait = {.fd = c->fd, .events = POLLOUT};
            if (errno != EAGAIN || poll(&wait, 1, 1000) != 1) return -1;
            continue;
        }
        data += written;
        size -= (size_t)written;
    }
    return 0;
}

static int put_chunk(Connection *c, const char *data, int size, int last) {
    char chunk[1024];
    int length = sprintf(chunk, "%x\r\n%.*s\r\n%s", size, size, data, last ? "0\r\n\r\n" : "");
    return put(c, chunk, (size_t)length);
}

static int put_event(Connection *c) {
    char text[64], data[640];
    if (c->stamp) sprintf(text, "%lld", (long long)now_us());
    else sprintf(text, " token-%d-%ld", c->event, (c->seed * 2654435761L + c->event * 40503L) % 99991);
    int size = sprintf(data,
        "data: {\"id\":\"chatcmpl-%032ld\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,"
        "\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"},\"logprobs\":null,"
        "\"finish_reason\":null}]}\n\n", c->seed, text);
    return put_chunk(c, data, size, 0);
}

static int put_end(Connection *c) {
    if (c->usage) {
        char data[512];
        int size = sprintf(data,
            "data: {\"id\":\"chatcmpl-%032ld\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,"
            "\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"total_tokens\":%d,"
            "\"completion_tokens\":%d}}\n\n", c->seed, 100 + events_total, events_total);
        if (put_chunk(c, data, size, 0)) return -1;
    }
    return put_chunk(c, "data: [DONE]\n\n", 14, 1);
}

static void hang_up(Connection *c) {
    leave_line(c);
    close(c->fd);
}

static void answer_get(Connection *c) {
    const char *type = "application/json", *body = "{}";
    char out[2048];
    if (strstr(c->request, "GET /v1/models")) {
        body = "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"created\":1,"
               "\"owned_by\":\"scripted\",\"max_model_len\":8192}]}";
    } else if (strstr(c->request, "GET /metrics")) {
        type = "text/plain; version=0.0.4";
        body = "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 0.0\n"
               "vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 0.0\n";
    }
    int size = sprintf(out, "HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n%s",
                       type, strlen(body), body);
    if (put(c, out, (size_t)size)) hang_up(c);
}

static void begin_stream(Connection *c, const char *body) {
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                               "transfer-encoding: chunked\r\n\r\n";
    const char *seed = strstr(body, "\"seed\":");
    c->seed = seed ? atol(seed + 7) % 1000000 : 0;
    c->stamp = strstr(body, "\"stamp\"") != NULL;
    c->usage = strstr(body, "\"include_usage\":true") != NULL;
    c->event = 0;
    c->due_us = now_us() + interval_us;
    if (put(c, head, sizeof head - 1)) hang_up(c);
    else join_line(c);
}

static void readable(Connection *c) {
    ssize_t got = read(c->fd, c->request + c->used, REQUEST_MAX - 1 - (size_t)c->used);
    if (got <= 0) {
        if (got == 0 || errno != EAGAIN) hang_up(c);
        return;
    }
    c->used += (int)got;
    c->request[c->used] = 0;
    char *head_end = strstr(c->request, "\r\n\r\n");
    if (!head_end) return;
    char *length = strcasestr(c->request, "\r\ncontent-length:");
    long body = length && length < head_end ? atol(length + 17) : 0;
    if (c->used < head_end + 4 - c->request + body) return;
    c->used = 0;
    if (!strncmp(c->request, "POST ", 5)) begin_stream(c, head_end + 4);
    else answer_get(c);
}

static void take_in(int listener, int poller) {
    int fd, yes = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        if (fd >= CONNECTIONS_MAX) { close(fd); continue; }
        if (!connections[fd]) connections[fd] = calloc(1, sizeof(Connection));
        Connection *c = connections[fd];
        c->fd = fd;
        c->used = c->live = 0;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        struct epoll_event want = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &want);
    }
}

static void send_what_is_due(void) {
    int64_t now = now_us();
    while (line.next != &line && line.next->due_us <= now) {
        Connection *c = line.next;
        leave_line(c);
        c->due_us += interval_us;
        int failed = put_event(c);
        if (!failed && ++c->event < events_total) join_line(c);
        else if (failed || put_end(c)) hang_up(c);
    }
}

int main(int count, char **arguments) {
    if (count != 4) return fprintf(stderr, "usage: %s PORT EVENTS INTERVAL_US\n", arguments[0]), 2;
    events_total = atoi(arguments[2]);
    interval_us = atol(arguments[3]);
    signal(SIGPIPE, SIG_IGN);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(arguments[1])),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 1024))
        return perror("listen"), 1;
    int poller = epoll_create1(0);
    struct epoll_event want = {.events = EPOLLIN, .data.fd = listener}, ready[READY_MAX];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &want);
    for (;;) {
        int64_t wait_us = line.next == &line ? -1 : line.next->due_us - now_us();
        int wait_ms = line.next == &line ? -1 : wait_us <= 0 ? 0 : (int)(wait_us / 1000 + 1);
        int found = epoll_wait(poller, ready, READY_MAX, wait_ms);
        for (int i = 0; i < found; i++) {
            if (ready[i].data.fd == listener) take_in(listener, poller);
            else readable(connections[ready[i].data.fd]);
        }
        send_what_is_due();
    }
}
