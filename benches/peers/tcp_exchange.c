// The floor of an all_reduce of two ranks over TCP: two processes send each other as many bytes as
// the vector has, both at the same time, and do nothing else.
//
// usage: tcp_exchange bytes [sockets [bytes of one call [rounds]]]
// prints: result <median microseconds of an exchange> <the least>

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_SOCKETS = 16 };

struct stream {
    int socket;
    char *outgoing, *incoming;
    size_t unsent, unread;
};

static void check(int good, const char *what) {
    if (!good) {
        perror(what);
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void bind_to_core(int core) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core % (int)sysconf(_SC_NPROCESSORS_ONLN), &cores);
    check(sched_setaffinity(0, sizeof cores, &cores) == 0, "sched_setaffinity");
}

// Two sockets that a TCP connection over loopback joins.
static void join(int ends[2]) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    check(listener >= 0 && bind(listener, (struct sockaddr *)&address, length) == 0 &&
              listen(listener, 1) == 0 &&
              getsockname(listener, (struct sockaddr *)&address, &length) == 0,
          "listening");
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    check(ends[0] >= 0 && connect(ends[0], (struct sockaddr *)&address, length) == 0, "connect");
    ends[1] = accept(listener, NULL, NULL);
    check(ends[1] >= 0, "accept");
    for (int end = 0; end < 2; end++)
        check(setsockopt(ends[end], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0, "TCP_NODELAY");
    close(listener);
}

// What one call sends or receives; 0: not yet.
static size_t moved(ssize_t bytes) {
    check(bytes > 0 || (bytes < 0 && (errno == EAGAIN || errno == EINTR)), "send or recv");
    return bytes > 0 ? (size_t)bytes : 0;
}

static size_t least(size_t left, size_t right) { return left < right ? left : right; }

static void exchange(const struct stream *all, int count, size_t call) {
    struct stream streams[MOST_SOCKETS];
    memcpy(streams, all, count * sizeof *all);
    for (size_t left = 1; left > 0;) {
        left = 0;
        for (struct stream *one = streams; one < streams + count; one++) {
            if (one->unsent > 0) {
                size_t sent = moved(send(one->socket, one->outgoing, least(call, one->unsent),
                                         MSG_DONTWAIT | MSG_NOSIGNAL));
                one->outgoing += sent;
                one->unsent -= sent;
            }
            if (one->unread > 0) {
                size_t got =
                    moved(recv(one->socket, one->incoming, least(call, one->unread), MSG_DONTWAIT));
                one->incoming += got;
                one->unread -= got;
            }
            left += one->unsent + one->unread;
        }
    }
}

static int by_time(const void *left, const void *right) {
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

static void run(int side, int (*sockets)[2], int count, size_t bytes, size_t call, int rounds) {
    bind_to_core(side);
    char *outgoing = malloc(bytes), *incoming = malloc(bytes);
    double *times = malloc(rounds * sizeof *times);
    check(outgoing && incoming && times, "malloc");
    memset(outgoing, side + 1, bytes);
    memset(incoming, 0, bytes);
    struct stream streams[MOST_SOCKETS];
    for (int index = 0; index < count; index++) {
        size_t from = bytes * index / count, to = bytes * (index + 1) / count;
        streams[index] = (struct stream){sockets[index][side], outgoing + from, incoming + from,
                                         to - from, to - from};
    }
    exchange(streams, count, call);
    for (int round = 0; round < rounds; round++) {
        double since = now();
        exchange(streams, count, call);
        times[round] = now() - since;
    }
    check(incoming[0] == 2 - side && incoming[bytes - 1] == 2 - side, "the peer's bytes");
    qsort(times, rounds, sizeof *times, by_time);
    if (side == 0)
        printf("result %.3f %.3f\n", times[rounds / 2], times[0]);
}

static long argument(int count, char **words, int index, long otherwise) {
    long value = index < count ? atol(words[index]) : otherwise;
    if (value < 1) {
        fprintf(stderr, "usage: %s bytes [sockets [bytes of one call [rounds]]]\n", words[0]);
        exit(2);
    }
    return value;
}

int main(int count, char **words) {
    size_t bytes = argument(count, words, 1, 0);
    int streams = (int)argument(count, words, 2, 1);
    size_t call = argument(count, words, 3, 256 << 10);
    long some = 200000 / (long)(5 + bytes / 2000);
    int rounds = (int)argument(count, words, 4, some < 5 ? 5 : some);
    int sockets[MOST_SOCKETS][2];
    if (streams > MOST_SOCKETS)
        streams = MOST_SOCKETS;
    for (int index = 0; index < streams; index++)
        join(sockets[index]);
    pid_t child = fork();
    check(child >= 0, "fork");
    run(child == 0, sockets, streams, bytes, call, rounds);
    int status = 0;
    check(child == 0 || waitpid(child, &status, 0) == child, "waitpid");
    return status != 0;
}
