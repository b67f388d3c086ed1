/* What TCP over loopback allows: two processes, each on a core of its own, send each other a vector
 * at the same time. An all-reduce of two ranks sends no less.
 *
 *   exchange PIECE BUFFER BYTES CALLS ROOM
 *
 * Both poll without sleeping, and move at most PIECE bytes in one system call: more keeps a side
 * from receiving meanwhile. BUFFER bytes are under way at most (0: as the system likes); fewer stay
 * in the caches. Calls move through buffers of ROOM bytes. There is no form in place. */

#include "pin.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static long most;

/* Moves on a transfer of which `done` of `bytes` are through. */
static long progress(ssize_t moved, long done)
{
    if (moved == 0)
        fail("the other process is gone");
    if (moved < 0 && errno != EAGAIN && errno != EINTR)
        fail("the connection broke");
    return moved > 0 ? done + moved : done;
}

static long piece(long bytes)
{
    return bytes < most ? bytes : most;
}

static void exchange(int socket, const char *from, char *to, long bytes)
{
    long sent = 0, received = 0;
    while (sent < bytes || received < bytes) {
        if (sent < bytes)
            sent = progress(send(socket, from + sent, (size_t)piece(bytes - sent), MSG_NOSIGNAL),
                            sent);
        if (received < bytes)
            received = progress(
                recv(socket, to + received, (size_t)piece(bytes - received), 0), received);
    }
}

static struct times measure(int socket, long bytes, long calls, long room)
{
    long count = bytes / (long)sizeof(float), turns = turns_in(room, count);
    struct parts from = allocate(count, turns), to = allocate(count, turns);
    touch(from);
    touch(to);
    exchange(socket, (char *)part(from, turns - 1), (char *)part(to, turns - 1), bytes);
    struct times start = now(CLOCK_PROCESS_CPUTIME_ID);
    for (long i = 0; i < calls; i++)
        exchange(socket, (char *)part(from, i), (char *)part(to, i), bytes);
    return per_call(start, now(CLOCK_PROCESS_CPUTIME_ID), calls);
}

/* Before the connection is made: the sizes of its windows depend on it. */
static void limit(int end, int buffer)
{
    if (end < 0)
        fail("no socket");
    if (buffer > 0 &&
        (setsockopt(end, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer) != 0 ||
         setsockopt(end, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer) != 0))
        fail("cannot limit the socket's buffers");
}

static int listen_on(struct sockaddr_in *address, int buffer)
{
    socklen_t length = sizeof *address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    *address = (struct sockaddr_in){.sin_family = AF_INET,
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    limit(listener, buffer);
    if (bind(listener, (struct sockaddr *)address, sizeof *address) != 0 ||
        listen(listener, 1) != 0 || getsockname(listener, (struct sockaddr *)address, &length) != 0)
        fail("cannot listen on loopback");
    return listener;
}

static int dial(const struct sockaddr_in *address, int buffer)
{
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    limit(connection, buffer);
    if (connect(connection, (const struct sockaddr *)address, sizeof *address) != 0)
        fail("cannot connect");
    return connection;
}

static void prepare(int connection)
{
    int yes = 1;
    if (connection < 0 || fcntl(connection, F_SETFL, O_NONBLOCK) != 0 ||
        setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) != 0)
        fail("cannot prepare the connection");
}

int main(int argc, char **argv)
{
    if (argc != 6)
        fail("expected PIECE BUFFER BYTES CALLS ROOM");
    most = number(argv[1]);
    int buffer = (int)number(argv[2]);
    long bytes = number(argv[3]), calls = number(argv[4]), room = number(argv[5]);
    struct sockaddr_in address;
    int listener = listen_on(&address, buffer);
    pid_t child = fork();
    if (child < 0)
        fail("cannot start the second process");
    pin(child == 0);
    int connection = child == 0 ? dial(&address, buffer) : accept(listener, NULL, NULL);
    prepare(connection);
    struct times times = measure(connection, bytes, calls, room);
    if (child == 0)
        return 0;
    int status;
    if (waitpid(child, &status, 0) != child || status != 0)
        fail("the second process failed");
    print_result(times, times, 0);
    return 0;
}
