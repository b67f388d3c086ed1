/* Ways to use a TCP socket: two processes send each other a vector at the same time.
 *
 *   ways listen|dial ADDRESS CORE ROUNDS MEBIBYTES
 *
 * Both are started with the same last two arguments; the one that listens prints tables in
 * Markdown. Each start of a way has a connection of its own, over which vectors of MEBIBYTES
 * together are exchanged, after some that are not timed. The ways take turns in each round. What
 * lies in a vector is checked after the timing. */

#include "pin.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/errqueue.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

/* Linux 6.2 and later. */
#ifndef IORING_SEND_ZC_REPORT_USAGE
#define IORING_SEND_ZC_REPORT_USAGE (1U << 3)
#define IORING_NOTIF_USAGE_ZC_COPIED (1U << 31)
#endif

enum { WHOLE = 1, BUSY = 2, ZEROCOPY = 4, RING = 8, SHOTS = 16, SLEEPS = 32 };
enum { WAYS = 6, SIZES = 5, MOST_ROUNDS = 99, PORT = 4179, PIECE = 256 << 10 };
enum { BUFFERS = 32, BUFFER = 64 << 10, SEND = 1, RECEIVE = 2 };

static const struct {
    const char *name;
    int how;
} ways[WAYS] = {{"256 KiB a call", 0},
                {"one call", WHOLE},
                {"one call, busy polling", WHOLE | BUSY},
                {"MSG_ZEROCOPY", WHOLE | ZEROCOPY},
                {"io_uring", RING},
                {"SEND_ZC, multishot", RING | SHOTS}};
static const long sizes[SIZES] = {4 << 10, 64 << 10, 256 << 10, 2 << 20, 16 << 20};

/* A connection, and the vectors. */
static int end, how;
static char *from, *to;
static long bytes;

/* Notifications that the kernel reads sent memory no more: expected, come, and such that say that
 * it has copied the memory. Of `io_uring`, `tells` is whether it says so. */
static struct {
    long expected, come, copied;
} notices[WAYS], *notice;
static int tells = 1;

static struct io_uring ring;
static struct io_uring_buf_ring *shots;
static char *pool;
/* What has come in buffers of the pool, in order. */
static struct {
    int buffer;
    long at, end;
} arrived[BUFFERS];
static unsigned first, last;

static long moved(ssize_t count)
{
    if (count == 0)
        fail("the other process is gone");
    if (count < 0 && errno != EAGAIN && errno != EINTR && errno != ENOBUFS)
        fail(strerror(errno));
    return count > 0 ? count : 0;
}

static void read_notices(void)
{
    char room[256];
    struct msghdr message = {.msg_control = room, .msg_controllen = sizeof room};
    while (recvmsg(end, &message, MSG_ERRQUEUE) >= 0) {
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        const struct sock_extended_err *told = head ? (void *)CMSG_DATA(head) : NULL;
        if (told == NULL || told->ee_origin != SO_EE_ORIGIN_ZEROCOPY)
            fail("an error on the connection");
        long count = (long)(told->ee_data - told->ee_info) + 1;
        notice->come += count;
        if (told->ee_code & SO_EE_CODE_ZEROCOPY_COPIED)
            notice->copied += count;
        message.msg_controllen = sizeof room;
    }
}

/* By system calls for each piece. The memory is the caller's again when this returns. */
static void exchange_by_calls(void)
{
    long sent = 0, received = 0, most = how & WHOLE ? bytes : PIECE;
    int flags = MSG_NOSIGNAL | (how & ZEROCOPY ? MSG_ZEROCOPY : 0);
    while (sent < bytes || received < bytes || notice->come < notice->expected) {
        long before = sent + received, left = bytes - sent;
        if (left > 0) {
            struct iovec part = {from + sent, (size_t)(left < most ? left : most)};
            struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
            long count = moved(sendmsg(end, &message, flags));
            sent += count;
            notice->expected += count > 0 && how & ZEROCOPY;
        }
        left = bytes - received;
        if (left > 0)
            received += moved(recv(end, to + received, (size_t)(left < most ? left : most), 0));
        if (notice->come < notice->expected)
            read_notices();
        if (how & SLEEPS && sent + received == before &&
            (sent < bytes || received < bytes || notice->come < notice->expected)) {
            /* Notifications are an error, of which the kernel always tells. */
            short events = (short)((sent < bytes ? POLLOUT : 0) | (received < bytes ? POLLIN : 0));
            struct pollfd look = {end, events, 0};
            poll(&look, 1, 1000);
        }
    }
}

static struct io_uring_sqe *entry(void)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
    if (entry == NULL)
        fail("the ring is full");
    return entry;
}

static void begin_send(long sent)
{
    struct io_uring_sqe *send = entry();
    if (how & SHOTS)
        io_uring_prep_send_zc(send, end, from + sent, (size_t)(bytes - sent), MSG_NOSIGNAL,
                              tells ? IORING_SEND_ZC_REPORT_USAGE : 0);
    else
        io_uring_prep_send(send, end, from + sent, (size_t)(bytes - sent), MSG_NOSIGNAL);
    send->user_data = SEND;
}

static void begin_receive(long received)
{
    struct io_uring_sqe *receive = entry();
    if (how & SHOTS) {
        io_uring_prep_recv_multishot(receive, end, NULL, 0, 0);
        receive->flags |= IOSQE_BUFFER_SELECT;
        receive->buf_group = 0;
    } else {
        io_uring_prep_recv(receive, end, to + received, (size_t)(bytes - received), 0);
    }
    receive->user_data = RECEIVE;
}

static void give(int buffer)
{
    io_uring_buf_ring_add(shots, pool + (long)buffer * BUFFER, BUFFER, (unsigned short)buffer,
                          BUFFERS - 1, 0);
    io_uring_buf_ring_advance(shots, 1);
}

/* Copies what has come out of the pool, as far as it is of this vector. */
static long take(long received)
{
    while (first != last && received < bytes) {
        typeof(&arrived[0]) one = &arrived[first % BUFFERS];
        long count = one->end - one->at, left = bytes - received;
        if (count > left)
            count = left;
        memcpy(to + received, pool + (long)one->buffer * BUFFER + one->at, (size_t)count);
        received += count;
        one->at += count;
        if (one->at == one->end) {
            give(one->buffer);
            first++;
        }
    }
    return received;
}

static struct io_uring_cqe *completion(void)
{
    struct io_uring_cqe *done;
    if (!(how & SLEEPS)) {
        io_uring_submit(&ring);
        while (io_uring_peek_cqe(&ring, &done) != 0)
            ;
        return done;
    }
    io_uring_submit_and_wait(&ring, 1);
    return io_uring_peek_cqe(&ring, &done) == 0 ? done : NULL;
}

static void exchange_by_ring(void)
{
    long sent = 0, received = take(0);
    begin_send(0);
    if (!(how & SHOTS))
        begin_receive(0);
    while (sent < bytes || received < bytes || notice->come < notice->expected) {
        struct io_uring_cqe *done = completion();
        if (done == NULL)
            continue;
        struct io_uring_cqe got = *done;
        io_uring_cqe_seen(&ring, done);
        if (got.flags & IORING_CQE_F_NOTIF) {
            notice->come++;
            notice->copied += tells && (unsigned)got.res & IORING_NOTIF_USAGE_ZC_COPIED;
            continue;
        }
        if (got.user_data == SEND) {
            notice->expected += (got.flags & IORING_CQE_F_MORE) != 0;
            if (got.res == -EINVAL && tells)
                tells = 0;
            else
                sent += moved(got.res < 0 ? (errno = -got.res, -1) : got.res);
            if (sent < bytes)
                begin_send(sent);
            continue;
        }
        if (got.res == 0 && received == bytes)
            continue; /* The other process has ended, and this one waits for notifications. */
        long count = moved(got.res < 0 ? (errno = -got.res, -1) : got.res);
        if (how & SHOTS) {
            if (count > 0) {
                arrived[last % BUFFERS].buffer = (int)(got.flags >> IORING_CQE_BUFFER_SHIFT);
                arrived[last % BUFFERS].at = 0;
                arrived[last++ % BUFFERS].end = count;
            }
            received = take(received);
            if (!(got.flags & IORING_CQE_F_MORE))
                begin_receive(received);
        } else if ((received += count) < bytes) {
            begin_receive(received);
        }
    }
}

static void exchange(void)
{
    how & RING ? exchange_by_ring() : exchange_by_calls();
}

/* Returns whether the kernel can do it. */
static int open_ring(void)
{
    unsigned flags = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
    struct io_uring_params params = {.flags = flags | IORING_SETUP_SINGLE_ISSUER};
    if (io_uring_queue_init_params(64, &ring, &params) != 0)
        return 0;
    if (!(how & SHOTS))
        return 1;
    struct io_uring_buf_reg group = {.ring_addr = (unsigned long)shots, .ring_entries = BUFFERS};
    if (io_uring_register_buf_ring(&ring, &group, 0) != 0)
        return 0;
    io_uring_buf_ring_init(shots);
    for (int buffer = 0; buffer < BUFFERS; buffer++)
        give(buffer);
    first = last = 0;
    begin_receive(0);
    return 1;
}

static void prepare(void)
{
    int yes = 1, us = 50;
    /* On a socket that does not block, a ring does not wait either. */
    if (end < 0 || fcntl(end, F_SETFL, how & RING ? 0 : O_NONBLOCK) != 0 ||
        setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) != 0 ||
        (how & ZEROCOPY && setsockopt(end, SOL_SOCKET, SO_ZEROCOPY, &yes, sizeof yes) != 0) ||
        (how & BUSY && setsockopt(end, SOL_SOCKET, SO_BUSY_POLL, &us, sizeof us) != 0))
        fail("cannot prepare the connection");
}

/* A way over a new connection; no times if the kernel lacks it. */
static struct times measure(long mebibytes)
{
    long calls = (mebibytes << 20) / bytes;
    calls = calls < 3 ? 3 : calls > 2000 ? 2000 : calls;
    prepare();
    if (how & RING && !open_ring())
        return (struct times){0, 0};
    for (long i = 0; i < 1 + calls / 8; i++)
        exchange();
    struct times start = now(CLOCK_PROCESS_CPUTIME_ID);
    for (long i = 0; i < calls; i++)
        exchange();
    struct times times = per_call(start, now(CLOCK_PROCESS_CPUTIME_ID), calls);
    memset(to, 0, (size_t)bytes);
    exchange();
    for (long i = 0; i < bytes; i++)
        if (to[i] != (char)(i / 3))
            fail("a byte is not what was sent");
    if (how & RING)
        io_uring_queue_exit(&ring);
    return times;
}

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median(double *of, int count)
{
    qsort(of, (size_t)count, sizeof *of, compare);
    return count % 2 ? of[count / 2] : (of[count / 2 - 1] + of[count / 2]) / 2;
}

static double wall[2][SIZES][WAYS][MOST_ROUNDS], cpu[2][SIZES][WAYS][MOST_ROUNDS];

static void report(int sleeps, int rounds)
{
    printf("\n%s\n\n| bytes |", sleeps ? "Sleeping" : "Polling");
    for (int way = 0; way < WAYS; way++)
        printf(" %s |", ways[way].name);
    printf("\n| ---: |");
    for (int way = 0; way < WAYS; way++)
        printf(" ---: |");
    for (int size = 0; size < SIZES; size++) {
        printf("\n| %ld KiB |", sizes[size] >> 10);
        for (int way = 0; way < WAYS; way++) {
            double us = median(wall[sleeps][size][way], rounds);
            double each = median(cpu[sleeps][size][way], rounds) * (1 << 20) / (double)sizes[size];
            if (us == 0)
                printf("  |");
            else if (sleeps)
                printf(" %.*f (%.0f) |", us < 100, us, each);
            else
                printf(" %.*f |", us < 100, us);
        }
    }
    printf("\n");
}

static void tell_notices(void)
{
    for (int way = 0; way < WAYS; way++)
        if (notices[way].come > 0)
            printf("\n%s: %ld notifications, %ld of them of copies%s\n", ways[way].name,
                   notices[way].come, notices[way].copied,
                   ways[way].how & RING && !tells ? " (this kernel does not tell)" : "");
}

static int dial(const struct sockaddr_in *address)
{
    for (int try = 0; try < 3000; try++) {
        int connection = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(connection, (const struct sockaddr *)address, sizeof *address) == 0)
            return connection;
        close(connection);
        usleep(10000);
    }
    fail("nobody listens");
    return -1;
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    if (argc != 6 || inet_pton(AF_INET, argv[2], &address.sin_addr) != 1)
        fail("expected listen|dial ADDRESS CORE ROUNDS MEBIBYTES");
    int listens = strcmp(argv[1], "listen") == 0, yes = 1, listener = -1;
    int rounds = (int)number(argv[4]), runs = rounds * 2 * SIZES * WAYS;
    pin((int)number(argv[3]));
    if (listens) {
        listener = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
            listen(listener, 1) != 0)
            fail("cannot listen");
    }
    from = aligned_alloc(PAGE, sizes[SIZES - 1]);
    to = aligned_alloc(PAGE, sizes[SIZES - 1]);
    pool = aligned_alloc(PAGE, BUFFERS * BUFFER);
    shots = aligned_alloc(PAGE, PAGE);
    if (rounds < 1 || rounds > MOST_ROUNDS || !from || !to || !pool || !shots)
        fail("1 to 99 rounds, and memory, are needed");
    memset(pool, 0, BUFFERS * BUFFER);
    memset(to, 0, (size_t)sizes[SIZES - 1]);
    for (long i = 0; i < sizes[SIZES - 1]; i++)
        from[i] = (char)(i / 3);
    for (int run = 0; run < runs; run++) {
        int way = run % WAYS, size = run / WAYS % SIZES;
        int sleeps = run / WAYS / SIZES % 2, round = run / WAYS / SIZES / 2;
        how = ways[way].how | (sleeps ? SLEEPS : 0);
        bytes = sizes[size];
        notice = &notices[way];
        end = listens ? accept(listener, NULL, NULL) : dial(&address);
        struct times times = measure(number(argv[5]));
        wall[sleeps][size][way][round] = times.wall;
        cpu[sleeps][size][way][round] = times.cpu;
        close(end);
    }
    if (listens) {
        report(0, rounds);
        report(1, rounds);
        tell_notices();
    }
    return 0;
}
